package vision

import (
	"cmp"
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/layers"
	"github.com/snug-ml/snug/transformer"
)

// modelFamily is what differs between the models of images and text of one model_type and others. Each is in a file of its own.
type modelFamily struct {
	modelType string
	towers    []string // prefixes of the tower's tensors in folders, which may follow "model."
	projector string   // of those of the projector
	text      string   // of those of the text
	body      string   // what these have in place of "model.", where the others begin with "model." too; empty: none
	// read reads the fields of config.json between the tower and the text into c, which has the tower and the width of the text.
	read func(c *connection, text []byte) error
}

var modelFamilies = []*modelFamily{llavaModel, gemma3Model, paligemmaModel, idefics3Model, smolvlmModel, llavaNextModel, qwen2Model, qwen25Model, qwen3Model}

// connection is how the rows of a tower become rows of a text.
type connection struct {
	tower TowerConfig
	open  func(w *modelFamily, file *amp.Weights, o TowerOptions) (imageTower, error)
	spans bool // the rows of an image see each other in both directions
	// prefixes says that a text begins with a prefix that has its images, and whose rows see each other in both directions
	prefixes bool
	placed   bool // positions are in three axes
	axes     Axes // the placeholders of rows of images and of videos, and their places
	width    int  // of the text
	// rows returns the rows of an image in the text. The error wraps [snug.ErrShape].
	rows     func(l Layout) (int, error)
	stack    func() (list []layers.Layer, width int) // the layers of the tower, all of which train, and the elements of a row that they read
	patches  func(rows int64) int64                  // how many rows the tower has for images that have so many in the text, about
	per      int                                     // rows that the projector reads for one of them: groups behind each other, of which all but the first are added to layers of the text
	reads    int                                     // elements of such a row
	layers   func(prefix string) []layers.Layer
	announce func(images []Layout) // unless nil, it is told the images of a batch before the projector runs
}

// noToken is the placeholder of videos in a text that has none.
const noToken = -1

// isPlaceholder reports whether a token stands for a row of an image or a video.
func (c *connection) isPlaceholder(token int32) bool {
	return token == c.axes.Image || token == c.axes.Video && token != noToken
}

// placeholder has the fields of config.json for the placeholder of a row of an image. As in transformers, the first goes before the other.
type placeholder struct {
	ID    *int32 `json:"image_token_id"`
	Index *int32 `json:"image_token_index"`
}

// or returns the placeholder, or what the family has without fields.
func (p placeholder) or(standard int32) int32 { return *cmp.Or(p.ID, p.Index, &standard) }

// connect reads how config.json of a model of images and text connects both.
func connect(text []byte, width int) (w *modelFamily, c connection, err error) {
	var top struct {
		ModelType string `json:"model_type"`
	}
	if err = lenientJSON.Unmarshal(text, &top); err != nil {
		return nil, c, fmt.Errorf("%w: %w", err, snug.ErrCorrupt)
	}
	var known []string
	for _, one := range modelFamilies {
		if known = append(known, one.modelType); one.modelType == top.ModelType {
			w = one
		}
	}
	if w == nil {
		return nil, c, fmt.Errorf("model_type is %.40q, want one of %q: %w", top.ModelType, known, snug.ErrConfig)
	}
	c.width, c.per, c.axes.Video = width, 1, noToken
	err = w.read(&c, text)
	return w, c, err
}

// readConnection reads config.json of a folder.
func readConnection(dir string) (w *modelFamily, c connection, text *transformer.Config, err error) {
	data, err := readConfig(dir)
	if err != nil {
		return nil, c, text, err
	}
	if text, err = transformer.ReadConfig(dir); err != nil {
		return nil, c, text, err
	}
	if w, c, err = connect(data, text.Dim); err != nil {
		return nil, c, text, fmt.Errorf("%s: %w", configName, err)
	}
	if c.axes.Image < 0 || int(c.axes.Image) >= text.Vocab {
		return nil, c, text, fmt.Errorf("%s: the token of images is %d, want one of the %d of the text: %w", configName, c.axes.Image, text.Vocab, snug.ErrConfig)
	}
	if int(c.axes.Video) >= text.Vocab || c.axes.Video == c.axes.Image {
		c.axes.Video = noToken // a text without videos
	}
	if c.placed && text.Rope.Sections == [3]int{} {
		return nil, c, text, fmt.Errorf("%s: the rope of the text has no mrope_section: %w", configName, snug.ErrConfig)
	}
	if c.per-1 > text.Layers {
		return nil, c, text, fmt.Errorf("%s: rows of images are added to %d layers, and the text has %d: %w", configName, c.per-1, text.Layers, snug.ErrConfig)
	}
	return w, c, text, nil
}
