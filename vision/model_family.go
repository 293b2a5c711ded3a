package vision

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/layers"
	"github.com/snug-ml/snug/transformer"
)

// modelFamily is what differs between the models of images and text of one model_type and others. Each is in a file of its own.
type modelFamily struct {
	modelType string
	towers    []string // prefixes of the tower's tensors in folders, which may follow "model."
	projector string   // of those of the projector
	tower     string   // model_type of the tower where vision_config has none
	// read reads the fields of config.json between the tower and the text into c, which has the tower and the width of the text.
	read func(c *connection, text []byte) error
}

var modelFamilies = []*modelFamily{llavaModel, gemma3Model, paligemmaModel}

// connection is how the rows of a tower become rows of a text.
type connection struct {
	tower  TowerConfig
	norms  bool // the tower's outputs are normalized
	from   int  // the first row of the tower that the projector reads
	each   int  // rows of an image in the text, if all have as many
	square int  // the side of a square of patches whose mean it reads; 0: it reads them all
	spans  bool // the rows of an image see each other in both directions
	// prefixes says that a text begins with a prefix that has its images, and whose rows see each other in both directions
	prefixes bool
	width    int   // of the text
	token    int32 // the placeholder of a row of an image
	// rows returns the rows of an image in the text. The error wraps [snug.ErrShape].
	rows   func(l Layout) (int, error)
	per    int // rows that the projector reads for one of them
	reads  int // elements of such a row
	layers func(prefix string) []layers.Layer
}

// one says that an image has a number of rows, whatever its layout.
func (c *connection) one(rows int) {
	c.each = rows
	c.rows = func(Layout) (int, error) { return rows, nil }
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
		ModelType string          `json:"model_type"`
		Tower     json.RawMessage `json:"vision_config"`
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
	tower := map[string]json.RawMessage{}
	if top.Tower != nil {
		if err = lenientJSON.Unmarshal(top.Tower, &tower); err != nil {
			return nil, c, fmt.Errorf("vision_config: %w: %w", err, snug.ErrCorrupt)
		}
	}
	if tower["model_type"] == nil {
		tower["model_type"] = json.RawMessage(fmt.Sprintf("%q", w.tower))
	}
	inner, err := json.Marshal(tower)
	if err != nil {
		return nil, c, err
	}
	c.width, c.norms = width, true
	alone := false
	if c.tower, alone, err = parseConfig(inner); err != nil {
		return nil, c, fmt.Errorf("vision_config: %w", err)
	} else if !alone {
		return nil, c, fmt.Errorf("vision_config: model_type is %s, want that of a tower: %w", tower["model_type"], snug.ErrConfig)
	}
	c.tower.Labels, c.per, c.reads = nil, 1, c.tower.Width
	return w, c, w.read(&c, text)
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
	if c.token < 0 || int(c.token) >= text.Vocab {
		return nil, c, text, fmt.Errorf("%s: the token of images is %d, want one of the %d of the text: %w", configName, c.token, text.Vocab, snug.ErrConfig)
	}
	return w, c, text, nil
}

// gather copies the rows of an image that the projector reads to dst, or means of them.
func (c *connection) gather(dst, rows []float32) {
	width := c.tower.Width
	if rows = rows[c.from*width:]; c.square <= 1 {
		copy(dst, rows)
		return
	}
	side := c.tower.Image / c.tower.Patch
	for i := range c.each {
		y, x := i/(side/c.square)*c.square, i%(side/c.square)*c.square
		to := dst[i*width:][:width]
		clear(to)
		for j := range c.square * c.square {
			from := rows[((y+j/c.square)*side+x+j%c.square)*width:]
			for k := range to {
				to[k] += from[k]
			}
		}
		for k := range to {
			to[k] /= float32(c.square * c.square)
		}
	}
}

// places lists how the tensors of a tower may be called in a folder.
func (w *modelFamily) places(f *towerFamily) (list []place) {
	for i := range f.spellings {
		for _, prefix := range w.towers {
			for _, outer := range []string{"", "model."} {
				list = append(list, place{outer + prefix, &f.spellings[i]})
			}
		}
	}
	slices.SortFunc(list, func(a, b place) int { return len(b.prefix) - len(a.prefix) }) // a prefix of another one comes later
	return list
}
