package segment

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/internal/fault"
	"github.com/snug-ml/snug/layers"
)

// Encoder is the encoder of images of a model, a vision transformer or TinyViT. It is frozen. It computes on the CPU, and is not safe for
// concurrent use.
type Encoder struct {
	model  *layers.Model
	kind   kind
	config Config
	folded []*folded // convolutions in all layers
	x      []float32 // of an image, as the first layer takes it
}

// kind is a kind of encoder of images, with a file of its own.
type kind interface {
	name() string
	layout(c *Config) (layout, error)                                // in which a new model is written
	tensor() string                                                  // that this kind has, and no other, in the layout of segment_anything
	describe(s *shapes, c *Config)                                   // reads Encoder from the shapes of tensors in this layout
	check(c *Config) error                                           // of Encoder
	width(e *EncoderConfig) int                                      // of a row of what the first layer takes
	input(to []float32, e *EncoderConfig, image []float32) []float32 // appends that of an image [channels, side, side]
	layers(c *Config) []layers.Layer                                 // of which none needs a backward step
}

var kinds = []kind{vit{}, tinyViT{}}

// kind returns that of the encoder.
func (c *Config) kind() (kind, error) {
	for i, k := range kinds {
		if c.Encoder.Type == k.name() || c.Encoder.Type == "" && i == 0 {
			return k, nil
		}
	}
	return nil, fmt.Errorf("the encoder's Type is %.40q, want vit or tiny_vit: %w", c.Encoder.Type, snug.ErrConfig)
}

// OpenEncoder opens the encoder of a folder or a file, as [Open] does with the decoder. Weights are converted to the type of the options.
// The error wraps [snug.ErrConfig] for another model or a device other than the CPU, [snug.ErrShape] or [snug.ErrCorrupt] for weights that
// do not fit the configuration, or is that of the file system.
func OpenEncoder(dir string, o layers.Options) (e *Encoder, err error) {
	defer fault.Named(&err, "segment: OpenEncoder")
	s, err := openSource(dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	return newEncoder(s.config, s.layout, o, s.Weights)
}

// newEncoder makes an encoder with random values, or with those of a file, whose tensors are compared before the encoder takes memory.
func newEncoder(c Config, l layout, o layers.Options, file *amp.Weights) (*Encoder, error) {
	if o.Device != nil && !o.Device.IsCPU() {
		return nil, fmt.Errorf("the encoder computes on the CPU, not on %s: %w", o.Device.Name(), snug.ErrConfig)
	}
	k, err := c.kind()
	if err != nil {
		return nil, err
	}
	list, all := layers.Sequential(k.layers(&c)), []layers.Layer{}
	list.Params(func(p *layers.Param) bool {
		p.Name, p.Trains = l.rename(p.Name), false
		return true
	})
	if file != nil {
		if err := checkTensors(file, list); err != nil {
			return nil, err
		}
	}
	for _, l := range list {
		all = append(all, layers.NoGrad{Layer: l})
	}
	e := &Encoder{kind: k, config: c, folded: foldedOf(list)}
	if e.model, err = layers.NewModel(k.width(&c.Encoder), layers.MSE{}, o, all...); err != nil || file == nil {
		return e, err
	}
	err = load(file, e.model)
	for _, f := range e.folded {
		err = cmp.Or(err, f.fold(file))
	}
	if err != nil {
		return nil, errors.Join(err, e.Close())
	}
	return e, nil
}

// Config returns what the model computes.
func (e *Encoder) Config() Config {
	if e == nil {
		return Config{}
	}
	return e.config
}

// Close ends the use of the encoder, whose memory the garbage collector frees.
func (e *Encoder) Close() error {
	if e == nil || e.model == nil {
		return nil
	}
	m := e.model
	e.model, e.x = nil, nil
	return m.Close()
}

// Encode writes the features of images to out, [images, Config.Rows, Encoder.Out] in float32: the last hidden state of transformers with
// channels last. An image is [channels, side, side] as the processor of the folder gives it. The images pass one after the other, so that
// memory is that of one: besides the weights about 15 activations of [Config.Rows, Width] at most, and of TinyViT two activations of its first
// stage, [(Image/4)², Stages[0].Width], the image in the order of the layers twice, and parts of some MiB. The error wraps [snug.ErrConfig],
// [snug.ErrShape], or is of ctx.
func (e *Encoder) Encode(ctx context.Context, out []float32, images [][]float32) (err error) {
	defer fault.Named(&err, "segment: Encode")
	if e == nil || e.model == nil {
		return fmt.Errorf("an Encoder that OpenEncoder did not make, or is closed: %w", snug.ErrConfig)
	}
	c := &e.config
	want := c.Encoder.Channels * c.Encoder.Image * c.Encoder.Image
	for i, x := range images {
		if len(x) != want {
			return fmt.Errorf("image %d has %d elements, want %d channels of %d by %d pixels: %w", i, len(x), c.Encoder.Channels, c.Encoder.Image, c.Encoder.Image, snug.ErrShape)
		}
	}
	each := c.FeatureLen()
	if len(out) != len(images)*each {
		return fmt.Errorf("out has %d elements, want %d for each of %d images: %w", len(out), each, len(images), snug.ErrShape)
	}
	for i, x := range images {
		e.x = e.kind.input(e.x[:0], &c.Encoder, x)
		if err := e.model.Predict(ctx, out[i*each:][:each], layers.Sample{X: e.x}); err != nil {
			return err
		}
	}
	return nil
}
