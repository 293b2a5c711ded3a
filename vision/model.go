package vision

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"strings"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/internal/fault"
	"github.com/snug-ml/snug/layers"
	"github.com/snug-ml/snug/qlora"
	"github.com/snug-ml/snug/transformer"
)

// ModelOptions are the options of [OpenModel].
type ModelOptions struct {
	// Text has the options of the text model: type, device, adapters, quantized matrices, pages and what else trains in it. The tower
	// and the projector have its type, device, seed and monitor.
	Text transformer.Options
	// Train says of a parameter of the projector by its published name whether it trains; nil: all do but image_newline of LLaVA-NeXT.
	Train func(name string) bool
	// TrainEncoder says of a parameter of the encoder's tower by its name, as Trainable yields it, whether it trains; nil: none does. Batches
	// have Images then; [Model.Save] writes what has trained, and SaveAdapter is an error.
	TrainEncoder func(name string) bool
	// NoEncoder leaves the tower out: images come as Features alone.
	NoEncoder bool
}

// Batch is a micro-batch of a [Model].
type Batch struct {
	// Text has the tokens of sequences with [Model.Rows] placeholders, [Model.Token], for each image, and [Model.VideoToken] for each video. The Model sets Embeddings and Added, for
	// Gemma 3 Spans, and for Qwen's models the Positions of a batch with images: leave them empty. For PaliGemma Spans are the prefixes, images and
	// question, each from the first token of its sequence on; nil: all tokens before the first that is learned by the Labels, or all.
	Text transformer.Batch
	// Images are the images and videos of the placeholders in their order, as a processor gives them.
	Images []Pixels
	// Features are what the [Encoder] computed of the images before, in place of Images.
	Features []Features
}

// Model is a model of images and text: an [Encoder], which is frozen unless ModelOptions.TrainEncoder says otherwise, a projector, and a text model, in whose input rows of images take the place of
// placeholders. It is a train.Model of [Batch]: Backprop adds the gradients of the projector and of the text model to the same window.
//
// A pass first runs a frozen encoder over the images of the batch, without gradients, and holds the projector's input on the host in float32, 4 bytes
// an element, and with an Encoder the encoder's output besides, at least as much. The projector keeps its rows for the backward pass beside
// the text model.
//
// A Model is not safe for concurrent use.
type Model struct {
	Text    *transformer.Model
	Encoder *Encoder // nil with ModelOptions.NoEncoder

	projector *layers.Model
	join      *join
	through   *through // unless nil, the tower may train
	connection
	family *modelFamily
	dir    string // where the model was opened, which has the tensors of the tower
	text   []byte // config.json there
	dtype  snug.DType
	device *snug.Device
	x      []float32 // what the projector reads
	groups []float32 // the same, see grouped
}

// OpenModel opens a folder of a model of images and text that transformers wrote. The error wraps [snug.ErrConfig] for a model that is
// not known, [snug.ErrShape] or [snug.ErrCorrupt] for weights that do not fit config.json, or is that of [transformer.Open].
func OpenModel(dir string, o ModelOptions) (m *Model, err error) {
	defer fault.Named(&err, "vision: OpenModel")
	w, c, config, err := readConnection(dir)
	if err != nil {
		return nil, err
	}
	file, err := amp.OpenWeights(dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	m = &Model{connection: c, family: w, dir: dir, dtype: cmp.Or(o.Text.DType, config.DType, snug.F32), device: cmp.Or(o.Text.Device, snug.CPU())}
	defer func() {
		if err != nil {
			err, m = errors.Join(err, m.Close()), nil
		}
	}()
	m.join = &join{width: c.width}
	if m.text, err = readConfig(dir); err != nil {
		return m, err
	}
	options := layers.Options{DType: m.dtype, Device: o.Text.Device, Seed: o.Text.Seed, Monitor: o.Text.Monitor}
	tower := TowerOptions{Options: options, Train: never}
	switch {
	case o.TrainEncoder != nil && o.NoEncoder:
		return m, fmt.Errorf("TrainEncoder and NoEncoder, want one of them: %w", snug.ErrConfig)
	case o.TrainEncoder != nil:
		m.through = &through{m: m, tap: &tap{width: c.reads}}
		tower.Train, tower.over = o.TrainEncoder, m.through
	}
	if !o.NoEncoder {
		if m.Encoder, err = c.encoder(w, file, tower); err != nil {
			return m, err
		}
	}
	if o.TrainEncoder != nil {
		for range m.Encoder.images.trainer().Trainable() {
			m.through.tower = m.Encoder.images // unless none trains
		}
	}
	if err = m.openProjector(file, w, options, o.Train); err != nil {
		return m, err
	}
	o.Text.Beside = nil
	for _, p := range m.projector.Params() {
		if p.Trains || o.Text.AdapterDir != "" {
			o.Text.Beside = append(o.Text.Beside, qlora.Module{Name: p.Name, Shape: p.Shape, Value: p.Value})
		}
	}
	m.Text, err = transformer.Open(dir, o.Text)
	m.join.text = m.Text
	return m, err
}

// SaveAdapter writes the adapters of the text, and the projector if it trains, as PEFT loads them for the whole model of transformers:
// see [transformer.Model.SaveAdapter]. [OpenModel] with AdapterDir goes on with them.
func (m *Model) SaveAdapter(dir string) (err error) {
	defer fault.Named(&err, "vision: SaveAdapter")
	if m == nil || m.Text == nil {
		return fmt.Errorf("a Model that OpenModel did not make: %w", snug.ErrConfig)
	}
	if m.trains() != nil {
		return fmt.Errorf("the encoder trains, and PEFT's adapters do not have it, want the whole model by Save: %w", snug.ErrConfig)
	}
	return m.Text.SaveAdapter(dir)
}

// openProjector reads the projector.
func (m *Model) openProjector(file *amp.Weights, w *modelFamily, o layers.Options, trains func(name string) bool) (err error) {
	list := m.layers(w.projector)
	outer := ""
	layers.Sequential(list).Params(func(p *layers.Param) bool {
		if _, has := file.Tensor("model." + p.Name); has {
			outer = "model."
		}
		p.Trains = strings.HasPrefix(p.Name, w.projector) && (trains == nil || trains(p.Name))
		err = checkTensor(file, outer+p.Name, p.Shape)
		return err == nil
	})
	if err != nil {
		return err
	}
	if m.through != nil {
		list = append([]layers.Layer{m.through.tap}, list...)
	}
	if m.projector, err = layers.NewModel(m.reads, m.join, o, list...); err != nil {
		return err
	}
	return file.LoadAll(func(yield func(string, snug.View) bool) {
		for _, p := range m.projector.Params() {
			if !yield(outer+p.Name, p.Value) {
				return
			}
		}
	})
}

// Token returns the placeholder of a row of an image.
func (m *Model) Token() int32 {
	if m == nil {
		return 0
	}
	return m.axes.Image
}

// VideoToken returns the placeholder of a row of a video, and -1 for a model without videos.
func (m *Model) VideoToken() int32 {
	if m == nil || m.rows == nil {
		return noToken
	}
	return m.axes.Video
}

// Rows returns the rows of an image of a layout in a text. The error wraps [snug.ErrShape] for one that the model does not take.
func (m *Model) Rows(l Layout) (int, error) {
	if m == nil || m.rows == nil {
		return 0, fmt.Errorf("vision: a Model that OpenModel did not make: %w", snug.ErrConfig)
	}
	return m.rows(l)
}

// Close frees the memory of a device.
func (m *Model) Close() (err error) {
	if m == nil {
		return nil
	}
	if err = errors.Join(m.Encoder.Close(), m.projector.Close()); m.Text != nil {
		err = errors.Join(err, m.Text.Close())
	}
	return err
}

// Trainable yields the parameters that train: those of the encoder, of the projector and of the text.
func (m *Model) Trainable() iter.Seq2[string, snug.View] {
	return func(yield func(string, snug.View) bool) {
		if m == nil || m.projector == nil {
			return
		}
		for _, part := range m.beside() {
			for name, v := range part.Trainable() {
				if !yield(name, v) {
					return
				}
			}
		}
		m.Text.Trainable()(yield)
	}
}

// beside returns the models beside the text that train: the tower if it does, and the projector.
func (m *Model) beside() (list []*layers.Model) {
	if tower := m.trains(); tower != nil {
		list = append(list, tower)
	}
	return append(list, m.projector)
}

// of returns the model beside the text that has a parameter, else nil.
func (m *Model) of(name string) *layers.Model {
	for _, part := range m.beside() {
		if part.Shape(name) != nil {
			return part
		}
	}
	return nil
}

// Weight returns the weight of a batch in a mean over several: that of its text.
func (m *Model) Weight(b Batch) float64 {
	if m == nil || m.Text == nil {
		return 0
	}
	return m.Text.Weight(b.Text)
}

// Matrix is layers.Model's or transformer.Model's, by the name.
func (m *Model) Matrix(name string) (rows, cols int) {
	if m == nil || m.projector == nil {
		return 0, 0
	}
	if part := m.of(name); part != nil {
		return part.Matrix(name)
	}
	return m.Text.Matrix(name)
}

// Shape is layers.Model's or transformer.Model's, by the name.
func (m *Model) Shape(name string) []int {
	if m == nil || m.projector == nil {
		return nil
	}
	if part := m.of(name); part != nil {
		return part.Shape(name)
	}
	return m.Text.Shape(name)
}

// Block is transformer.Model's; a vector beside the text is one block.
func (m *Model) Block(name string) int {
	if m == nil || m.projector == nil || m.of(name) != nil {
		return 0
	}
	return m.Text.Block(name)
}

// Paged is transformer.Model's.
func (m *Model) Paged(name string) (key string, dt snug.DType, elements int) {
	if m == nil || m.projector == nil || m.of(name) != nil {
		return "", 0, 0
	}
	return m.Text.Paged(name)
}
