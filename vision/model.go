package vision

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/accum"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/fused"
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
	// Train says of a parameter of the projector by its published name whether it trains; nil: all do.
	Train func(name string) bool
	// NoEncoder leaves the tower out: images come as Features alone.
	NoEncoder bool
}

// Batch is a micro-batch of a [Model].
type Batch struct {
	// Text has the tokens of sequences with [Model.Rows] placeholders, [Model.Token], for each image. Its Embeddings and Added are the
	// model's to set, and in the models of Qwen the Positions of a batch with images.
	// Of a PaliGemma its Spans are the prefixes, images among them: from the first token of a sequence on those whose token_type_ids are 0.
	// Without Spans they are the tokens before the first that is learned by the Labels, or all, as its processor makes them.
	Text transformer.Batch
	// Images are those of the placeholders in their order, as a processor gives them.
	Images []Pixels
	// Features are what the [Encoder] computed of the images before, in place of Images.
	Features []Features
}

// Model is a model of images and text: a frozen [Encoder], a projector, and a text model, in whose input rows of images take the place of
// placeholders. It is a train.Model of [Batch]: gradients of the projector and of what trains in the text model go to one window.
//
// A pass first runs the encoder over the images of the batch, as if there was no training, and keeps what the projector reads on the
// host in float32: 4 bytes an element of the tower's width for each row. The projector keeps its rows for the backward pass beside the
// text model.
//
// A Model is not safe for concurrent use.
type Model struct {
	Text    *transformer.Model
	Encoder *Encoder // nil with ModelOptions.NoEncoder

	projector *layers.Model
	join      *join
	connection
	family *modelFamily
	dir    string // where the model was opened, which has the tensors of the tower
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
	options := layers.Options{DType: m.dtype, Device: o.Text.Device, Seed: o.Text.Seed, Monitor: o.Text.Monitor}
	if !o.NoEncoder {
		if m.Encoder, err = c.encoder(w, file, options); err != nil {
			return m, err
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
	return m.token
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

// Trainable yields the parameters that train, those of the projector first.
func (m *Model) Trainable() iter.Seq2[string, snug.View] {
	return func(yield func(string, snug.View) bool) {
		if m == nil || m.projector == nil {
			return
		}
		for name, v := range m.projector.Trainable() {
			if !yield(name, v) {
				return
			}
		}
		m.Text.Trainable()(yield)
	}
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
	if m.projector.Shape(name) != nil {
		return m.projector.Matrix(name)
	}
	return m.Text.Matrix(name)
}

// Shape is layers.Model's or transformer.Model's, by the name.
func (m *Model) Shape(name string) []int {
	if m == nil || m.projector == nil {
		return nil
	}
	if s := m.projector.Shape(name); s != nil {
		return s
	}
	return m.Text.Shape(name)
}

// Block is transformer.Model's; a vector of the projector is one block.
func (m *Model) Block(name string) int {
	if m == nil || m.projector == nil || m.projector.Shape(name) != nil {
		return 0
	}
	return m.Text.Block(name)
}

// Paged is transformer.Model's.
func (m *Model) Paged(name string) (key string, dt snug.DType, elements int) {
	if m == nil || m.projector == nil || m.projector.Shape(name) != nil {
		return "", 0, 0
	}
	return m.Text.Paged(name)
}

// begin checks a batch, and computes the rows of its images. The sample is empty without images.
func (m *Model) begin(ctx context.Context, b Batch) (s layers.Sample, err error) {
	switch {
	case ctx == nil:
		return s, fmt.Errorf("the context is nil: %w", snug.ErrConfig)
	case m == nil || m.projector == nil || len(m.projector.Params()) == 0:
		return s, fmt.Errorf("a Model that OpenModel did not make, or is closed: %w", snug.ErrConfig)
	case len(b.Text.Embeddings.Rows) > 0 || len(b.Text.Added) > 0:
		return s, fmt.Errorf("the batch has Embeddings or Added of its own, want images: %w", snug.ErrConfig)
	}
	if m.spans && len(b.Text.Spans) > 0 {
		return s, fmt.Errorf("the batch has Spans of its own, want those of its images: %w", snug.ErrConfig)
	}
	if m.spans {
		b.Text.Spans = nil // whose memory is not ours
	}
	if m.prefixes {
		if b.Text.Spans == nil {
			b.Text.Spans = prefixesOf(&b.Text)
		}
		if err := checkPrefixes(&b.Text, m.token); err != nil {
			return s, err
		}
	}
	images, err := m.layouts(b)
	if err != nil {
		return s, err
	}
	if m.announce != nil {
		m.announce(layoutsOf(b))
	}
	rows := m.join.rows[:0]
	var next, left int // the images before, and the placeholders that the last of them lacks
	for i, token := range b.Text.Tokens {
		begins := beginsAt(&b.Text, i)
		if begins && left > 0 {
			return s, fmt.Errorf("a sequence begins with token %d, which lacks %d placeholders of image %d: %w", i, left, next-1, snug.ErrShape)
		}
		if token != m.token {
			continue
		}
		if left == 0 {
			if next == len(images) {
				return s, fmt.Errorf("a placeholder (token %d) at %d behind those of %d images: %w", m.token, i, len(images), snug.ErrShape)
			}
			left, next = images[next], next+1
		}
		left--
		if rows = append(rows, int32(i)); !m.spans {
			continue
		}
		if n := len(b.Text.Spans) - 1; n >= 0 && b.Text.Spans[n][1] == i && !begins {
			b.Text.Spans[n][1]++
		} else {
			b.Text.Spans = append(b.Text.Spans, [2]int{i, i + 1})
		}
	}
	if left > 0 || next < len(images) {
		return s, fmt.Errorf("%d placeholders (token %d) for %d images, which want %v: %w", len(rows), m.token, len(images), images, snug.ErrShape)
	}
	if m.axes && len(rows) > 0 {
		if b.Text.Positions != nil {
			return s, fmt.Errorf("the batch has Positions of its own, want those of its images: %w", snug.ErrConfig)
		}
		if b.Text.Positions, err = m.place(b); err != nil {
			return s, err
		}
	}
	m.join.rows, m.join.batch, m.join.ctx = rows, b.Text, ctx
	if len(rows) == 0 {
		return s, nil
	}
	m.x = grown(m.x, len(rows)*m.per*m.reads)
	if b.Features == nil {
		err = m.Encoder.images.encode(ctx, m.x, b.Images)
	} else {
		x := m.x
		for _, f := range b.Features {
			if err = amp.Cast(x[:f.Values.Len()], f.Values); err != nil {
				break
			}
			x = x[f.Values.Len():]
		}
	}
	return layers.Sample{X: m.grouped(images), Draw: b.Text.Draw}, err
}

// layouts returns the rows of each image of a batch in the text.
func (m *Model) layouts(b Batch) (rows []int, err error) {
	n := len(b.Images)
	switch {
	case b.Features != nil && b.Images != nil:
		return nil, fmt.Errorf("the batch has Images and Features, want one of them: %w", snug.ErrConfig)
	case b.Features != nil:
		n = len(b.Features)
	case n > 0 && m.Encoder == nil:
		return nil, fmt.Errorf("the batch has Images, and the Model no Encoder: want Features: %w", snug.ErrConfig)
	}
	rows = make([]int, n)
	for i := range rows {
		if b.Features == nil {
			rows[i], err = m.Encoder.check(b.Images[i])
		} else if rows[i], err = m.rows(b.Features[i].Layout); err == nil && b.Features[i].Values.Len() != rows[i]*m.per*m.reads {
			err = fmt.Errorf("the features have %d elements, want %d rows of %d: %w", b.Features[i].Values.Len(), rows[i]*m.per, m.reads, snug.ErrShape)
		}
		if err != nil {
			return nil, fmt.Errorf("image %d: %w", i, err)
		}
	}
	return rows, nil
}

// layoutsOf returns the layouts of a batch's images.
func layoutsOf(b Batch) (list []Layout) {
	for _, x := range b.Images {
		list = append(list, x.Layout)
	}
	for _, f := range b.Features {
		list = append(list, f.Layout)
	}
	return list
}

// beginsAt says whether a sequence of a batch begins with a token. The text refuses what is wrong with Sequences and Starts.
func beginsAt(b *transformer.Batch, token int) bool {
	if b.Starts == nil {
		return b.Sequences > 1 && token%max(1, len(b.Tokens)/b.Sequences) == 0
	}
	_, begins := slices.BinarySearch(b.Starts, token)
	return begins
}

// grown returns a slice of n elements, in the memory of another one if it has so many.
func grown(x []float32, n int) []float32 {
	if cap(x) < n {
		return make([]float32, n)
	}
	return x[:n]
}

// Backprop runs a micro-batch forward and backward. It adds to the window the gradients of scale times the mean loss, and returns the
// loss, not scaled. Errors are those of [transformer.Model.Backprop], and wrap [snug.ErrShape] for placeholders that are not those of
// the images.
func (m *Model) Backprop(ctx context.Context, b Batch, scale float32, w layers.Window) (loss fused.Loss, err error) {
	defer fault.Named(&err, "vision: Backprop")
	if w == nil {
		return loss, fmt.Errorf("the window is nil: %w", snug.ErrConfig)
	}
	s, err := m.begin(ctx, b)
	if err != nil {
		return loss, err
	}
	defer m.join.end()
	if s.X == nil {
		if err := m.nothing(w); err != nil {
			return loss, err
		}
		return m.Text.Backprop(ctx, m.join.batch, scale, w)
	}
	return m.projector.Backprop(ctx, s, scale, w)
}

// nothing adds the gradient of the projector in a batch without images, 0.
func (m *Model) nothing(w layers.Window) error {
	for name, v := range m.projector.Trainable() {
		acc, into, err := w.Into(name)
		if err == nil && into.Beta != 1 {
			none := snug.ViewOf([]float32(nil))
			err = amp.MatMul(acc, none, none, amp.MatMulOptions{M: 1, N: v.Len(), Into: snug.Into{Beta: into.Beta}})
		}
		if c, learns := w.(accum.Completer); err == nil && learns {
			err = c.Done(name)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Evaluate returns the loss of a micro-batch without training on it. Errors are those of Backprop.
func (m *Model) Evaluate(ctx context.Context, b Batch) (loss fused.Loss, err error) {
	defer fault.Named(&err, "vision: Evaluate")
	s, err := m.begin(ctx, b)
	if err != nil {
		return loss, err
	}
	defer m.join.end()
	if s.X == nil {
		return m.Text.Evaluate(ctx, m.join.batch)
	}
	return m.projector.Evaluate(ctx, s)
}

// Logits writes the logits of rows of the text, the last of each sequence if rows is nil, to out in float32: see
// [transformer.Model.Logits].
func (m *Model) Logits(ctx context.Context, out []float32, b Batch, rows []int32) (err error) {
	defer fault.Named(&err, "vision: Logits")
	return m.embedded(ctx, b, func(b transformer.Batch) error { return m.Text.Logits(ctx, out, b, rows) })
}

// Prompt begins a text with images: see [transformer.Generator.PromptBatch]. The batch has one sequence, and the Generator is one of Text.
func (m *Model) Prompt(ctx context.Context, g *transformer.Generator, b Batch) (err error) {
	defer fault.Named(&err, "vision: Prompt")
	if m != nil && g.Model() != m.Text {
		return fmt.Errorf("the Generator is nil, or of another model: %w", snug.ErrConfig)
	}
	return m.embedded(ctx, b, func(b transformer.Batch) error {
		if m.axes && b.Embeddings.Rows != nil {
			for _, list := range b.Positions { // which are ours
				for i := range list {
					list[i] += int32(g.Position())
				}
			}
		}
		return g.PromptBatch(ctx, b)
	})
}

// embedded calls do with the text of a batch, whose Embeddings are the rows of its images in new memory.
func (m *Model) embedded(ctx context.Context, b Batch, do func(b transformer.Batch) error) error {
	s, err := m.begin(ctx, b)
	if err != nil {
		return err
	}
	defer m.join.end()
	if s.X == nil {
		return do(m.join.batch)
	}
	values := make([]float32, len(m.join.rows)*m.per*m.width)
	if err := m.projector.Predict(ctx, values, s); err != nil {
		return err
	}
	v, free, err := snug.MakeView(m.device, snug.F32, len(values))
	if err != nil {
		return err
	}
	if err = snug.Copy(v, snug.ViewOf(values)); err == nil {
		var text transformer.Batch
		if text, err = m.join.with(v, snug.View{}); err == nil {
			err = do(text)
		}
	}
	return errors.Join(err, free())
}
