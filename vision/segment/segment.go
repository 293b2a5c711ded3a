package segment

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/fused"
	"github.com/snug-ml/snug/internal/fault"
	"github.com/snug-ml/snug/layers"
	"github.com/snug-ml/snug/meter"
)

// Options are the options of a [Model].
type Options struct {
	Monitor *meter.Monitor // counts the bytes of tensors and limits them, unless nil
	// Train says of a parameter by its published name whether it trains; nil: all do of the prompt encoder and of the mask decoder. The
	// waves of positions never do.
	Train func(name string) bool
	Loss  Loss
	// Several makes the loss and Predict take the masks for a prompt that may mean several things, Decoder.Masks of them; else one mask.
	Several bool
}

// Item is a prompt for an image, and what is meant.
type Item struct {
	Features snug.View // of the image, as Encoder.Encode writes them, in float32 or 16 bits on the CPU
	Prompt   Prompt
	Target   []float32 // [n, n] for any n, from 0 to 1: the mask of the resized and padded image that the encoder gets
}

// Model is the prompt encoder and the mask decoder of Segment Anything (Kirillov et al. 2023, arXiv:2304.02643), which train on features of
// images that an [Encoder] has computed. It is a train.Model of []Item. It computes in float32 on the CPU.
//
// In training a pass keeps for each item about 20 activations of [Config.Rows, Decoder.Width]: 82 MiB in the published shapes.
//
// A Model is not safe for concurrent use.
type Model struct {
	model   *layers.Model
	decoder *decoder
	loss    *loss
	config  Config
	dir     string // which has the encoder
	layout  layout // there
	x       []float32
}

// Open opens a model without its encoder: a folder of model_type sam that transformers wrote; or a safetensors file, or a folder with
// model.safetensors and no config.json, with the names of tensors that segment_anything, MobileSAM and TinySAM give them, whose shapes say
// what the model computes. These have 8 heads in the decoder, and with TinyViT images of 1024 pixels, unless the file's metadata has
// another image_size. The error wraps [snug.ErrConfig] for another model, [snug.ErrShape] or [snug.ErrCorrupt] for weights that do not
// fit the configuration, or is that of the file system.
func Open(dir string, o Options) (m *Model, err error) {
	defer fault.Named(&err, "segment: Open")
	s, err := openSource(dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if m, err = newModel(s.config, s.layout, o, 0, s.Weights); err != nil {
		return nil, err
	}
	m.dir = dir
	if err := load(s.Weights, m.model); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

// newModel makes a model with random values. Unless nil, file has the tensors, which are compared before the model takes memory.
func newModel(c Config, l layout, o Options, seed uint64, file *amp.Weights) (*Model, error) {
	m := &Model{config: c, layout: l}
	if o.Loss == (Loss{}) {
		o.Loss = Loss{20, 1, 1}
	}
	m.decoder, m.loss = newDecoder(&m.config), &loss{Loss: o.Loss, config: &m.config, several: o.Several}
	m.decoder.Params(func(p *layers.Param) bool {
		p.Name = l.rename(p.Name)
		p.Trains = p.Trains && (o.Train == nil || o.Train(p.Name))
		return true
	})
	if file != nil {
		if err := checkTensors(file, layers.Sequential{m.decoder}); err != nil {
			return nil, err
		}
	}
	var err error
	m.model, err = layers.NewModel(c.FeatureLen(), m.loss, layers.Options{Seed: seed, Monitor: o.Monitor}, m.decoder)
	return m, err
}

// Config returns what the model computes.
func (m *Model) Config() Config {
	if m == nil {
		return Config{}
	}
	return m.config
}

// Close ends the use of the model, whose memory the garbage collector frees.
func (m *Model) Close() error {
	if m == nil || m.model == nil {
		return nil
	}
	inner := m.model
	m.model = nil
	return inner.Close()
}

// Trainable yields the names and values of the parameters that train.
func (m *Model) Trainable() iter.Seq2[string, snug.View] {
	return func(yield func(string, snug.View) bool) {
		if m != nil && m.model != nil {
			m.model.Trainable()(yield)
		}
	}
}

// Matrix is [layers.Model.Matrix].
func (m *Model) Matrix(name string) (rows, cols int) {
	if m == nil {
		return 0, 0
	}
	return m.model.Matrix(name)
}

// Shape is [layers.Model.Shape].
func (m *Model) Shape(name string) []int {
	if m == nil {
		return nil
	}
	return m.model.Shape(name)
}

// Weight returns the weight of a batch in a mean over several: its items.
func (m *Model) Weight(batch []Item) float64 { return float64(len(batch)) }

// begin checks a batch, and returns its sample.
func (m *Model) begin(ctx context.Context, batch []Item, trains bool) (s layers.Sample, err error) {
	if ctx == nil || m == nil || m.model == nil {
		return s, fmt.Errorf("the context is nil, or Open did not make the model, or it is closed: %w", snug.ErrConfig)
	}
	if len(batch) == 0 {
		return s, fmt.Errorf("a batch without items: %w", snug.ErrShape)
	}
	each := m.config.FeatureLen()
	for i := range batch {
		item := &batch[i]
		switch n := int(math.Sqrt(float64(len(item.Target)))); {
		case item.Features.Len() != each:
			err = fmt.Errorf("features of %d elements, want %d: %w", item.Features.Len(), each, snug.ErrShape)
		case !item.Features.Device().IsCPU():
			err = fmt.Errorf("features on %s, want them on the CPU: %w", item.Features.Device().Name(), snug.ErrDevice)
		case trains && (n < 1 || n*n != len(item.Target)):
			err = fmt.Errorf("a Target of %d elements, want a square: %w", len(item.Target), snug.ErrShape)
		case (item.Prompt.Mask == nil) != (batch[0].Prompt.Mask == nil):
			err = fmt.Errorf("a mask in one prompt and none in another of the batch: %w", snug.ErrConfig)
		default:
			if err = item.Prompt.check(m.config.Side()); err == nil && trains {
				err = checkTarget(item.Target)
			}
		}
		if err != nil {
			return s, fmt.Errorf("item %d has %w", i, err)
		}
	}
	if cap(m.x) < len(batch)*each {
		m.x = make([]float32, len(batch)*each)
	}
	m.x = m.x[:len(batch)*each]
	m.decoder.prompts, m.loss.targets = m.decoder.prompts[:0], m.loss.targets[:0]
	for i := range batch {
		if err := amp.Cast(snug.ViewOf(m.x[i*each:][:each]), batch[i].Features); err != nil {
			return s, err
		}
		m.decoder.prompts, m.loss.targets = append(m.decoder.prompts, batch[i].Prompt), append(m.loss.targets, batch[i].Target)
	}
	return layers.Sample{X: m.x}, nil
}

// checkTarget returns an error unless all values of a target are from 0 to 1.
func checkTarget(target []float32) error {
	for i, v := range target {
		if !(v >= 0 && v <= 1) {
			return fmt.Errorf("a Target with %v at %d, want 0 to 1: %w", v, i, snug.ErrConfig)
		}
	}
	return nil
}

// end forgets what belongs to the caller.
func (m *Model) end() {
	clear(m.decoder.prompts)
	clear(m.loss.targets)
}

// Backprop runs a batch forward and backward. It adds to the window the gradients of scale times the mean loss, and returns the loss, not
// scaled. The error wraps [snug.ErrShape] or [snug.ErrConfig] for a batch that does not fit, or is that of [layers.Model.Backprop].
func (m *Model) Backprop(ctx context.Context, batch []Item, scale float32, w layers.Window) (of fused.Loss, err error) {
	defer fault.Named(&err, "segment: Backprop")
	s, err := m.begin(ctx, batch, true)
	if err != nil {
		return of, err
	}
	defer m.end()
	return m.model.Backprop(ctx, s, scale, w)
}

// Evaluate returns the loss of a batch without training on it. Errors are those of Backprop.
func (m *Model) Evaluate(ctx context.Context, batch []Item) (of fused.Loss, err error) {
	defer fault.Named(&err, "segment: Evaluate")
	s, err := m.begin(ctx, batch, true)
	if err != nil {
		return of, err
	}
	defer m.end()
	return m.model.Evaluate(ctx, s)
}

// Masks returns how many masks Predict writes for an item.
func (m *Model) Masks() int {
	if m == nil || m.loss == nil {
		return 0
	}
	lo, hi := m.loss.masks()
	return hi - lo
}

// Predict writes the logits of masks to masks, [items, Masks, Config.Side, Config.Side], and what the model takes for their intersections
// over unions to scores, [items, Masks]. Targets do not count. Errors are those of Backprop, and [snug.ErrShape] for other lengths.
func (m *Model) Predict(ctx context.Context, masks, scores []float32, batch []Item) (err error) {
	defer fault.Named(&err, "segment: Predict")
	s, err := m.begin(ctx, batch, false)
	if err != nil {
		return err
	}
	defer m.end()
	lo, hi := m.loss.masks()
	n, count, each := m.config.Side()*m.config.Side(), 1+m.config.Decoder.Masks, hi-lo
	if len(masks) != len(batch)*each*n || len(scores) != len(batch)*each {
		return fmt.Errorf("%d elements of masks and %d scores, want %d and %d: %w", len(masks), len(scores), len(batch)*each*n, len(batch)*each, snug.ErrShape)
	}
	out := make([]float32, len(batch)*count*(n+1))
	if err := m.model.Predict(ctx, out, s); err != nil {
		return err
	}
	for i := range batch {
		of := out[i*count*(n+1):][:count*(n+1)]
		copy(masks[i*each*n:][:each*n], of[lo*n:])
		copy(scores[i*each:][:each], of[count*n+lo:])
	}
	return nil
}
