package segment

import (
	"context"
	"errors"
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/conv"
	"github.com/snug-ml/snug/internal/fault"
	"github.com/snug-ml/snug/layers"
)

// Encoder is the encoder of images of a model: a vision transformer (Dosovitskiy et al. 2020, arXiv:2010.11929) with attention in windows and
// relative positions (Li et al. 2022, arXiv:2203.16527), and two convolutions. It is frozen. It computes on the CPU, and is not safe for
// concurrent use.
type Encoder struct {
	model  *layers.Model
	config Config
	x      []float32 // patches
}

// OpenEncoder opens the encoder of a folder of model_type sam that transformers wrote. Weights are converted to the type of the options.
// The error wraps [snug.ErrConfig] for another model or a device other than the CPU, [snug.ErrShape] or [snug.ErrCorrupt] for weights that
// do not fit config.json, or is that of the file system.
func OpenEncoder(dir string, o layers.Options) (e *Encoder, err error) {
	defer fault.Named(&err, "segment: OpenEncoder")
	c, _, err := readConfig(dir)
	if err != nil {
		return nil, err
	}
	file, err := amp.OpenWeights(dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	list := c.Encoder.layers(&c)
	if err := checkTensors(file, list); err != nil {
		return nil, err
	}
	if e, err = newEncoder(c, o, list); err != nil {
		return nil, err
	}
	if err := load(file, e.model); err != nil {
		return nil, errors.Join(err, e.Close())
	}
	return e, nil
}

func newEncoder(c Config, o layers.Options, list []layers.Layer) (*Encoder, error) {
	if o.Device != nil && !o.Device.IsCPU() {
		return nil, fmt.Errorf("the encoder computes on the CPU, not on %s: %w", o.Device.Name(), snug.ErrConfig)
	}
	for i, l := range list {
		list[i] = layers.NoGrad{Layer: l}
	}
	m, err := layers.NewModel(c.Encoder.Channels*c.Encoder.Patch*c.Encoder.Patch, layers.MSE{}, o, list...)
	return &Encoder{model: m, config: c}, err
}

// layers returns the layers of the encoder, whose rows are patches. No parameter trains.
func (e *EncoderConfig) layers(c *Config) (list []layers.Layer) {
	const prefix = "vision_encoder."
	grid, patch := c.Grid(), e.Channels*e.Patch*e.Patch
	norm := func(name string, cols int, eps float64) *layers.Norm {
		n := layers.NewLayerNorm(prefix+name, cols)
		n.Eps = float32(eps)
		return n
	}
	first := layers.NewPatches(prefix+"patch_embed", patch, e.Width, grid*grid, false)
	first.Project.Weight.Shape = []int{e.Width, e.Channels, e.Patch, e.Patch}
	first.Positions.Name, first.Positions.Shape = prefix+"pos_embed", []int{1, grid, grid, e.Width}
	if list = append(list, first); !e.Positions {
		list[0] = &first.Project
	}
	for i := range e.Layers {
		at := fmt.Sprintf("layers.%d.", i)
		a := &attend{
			norm: *norm(at+"layer_norm1", e.Width, e.Eps), qkv: *layers.NewLinear(prefix+at+"attn.qkv", e.Width, 3*e.Width, e.QKVBias),
			out: *layers.NewLinear(prefix+at+"attn.proj", e.Width, e.Width, true), heads: e.Heads, grid: grid, window: c.window(i),
		}
		if e.Relative {
			for j, name := range []string{"attn.rel_pos_h", "attn.rel_pos_w"} {
				p := layers.NewEmbedding(prefix+at+name, 2*a.window-1, e.Width/e.Heads).Table
				p.Name = prefix + at + name
				a.relative[j] = p
			}
		}
		m := layers.NewMLP("", e.Width, e.Hidden, activations[e.Activation], false)
		up := layers.NewLinear(prefix+at+"mlp.lin1", e.Width, e.Hidden, true)
		m.Norm, m.Bias, up.Bias = *norm(at+"layer_norm2", e.Width, e.Eps), up.Bias, nil
		m.In[0], m.Down[0] = *up, *layers.NewLinear(prefix+at+"mlp.lin2", e.Hidden, e.Width, true)
		list = append(list, a, m)
	}
	const eps = 1e-6 // whatever config.json says
	narrow := layers.NewLinear(prefix+"neck.conv1", e.Width, e.Out, false)
	narrow.Weight.Shape = []int{e.Out, e.Width, 1, 1}
	near := conv.Shape{In: e.Out, Out: e.Out, Dims: 2, Size: [3]int{grid, grid}, Kernel: [3]int{3, 3}, Layout: conv.ChannelsLast}.Same()
	list = append(list, narrow, norm("neck.layer_norm1", e.Out, eps), convolve{layers.NewConv(prefix+"neck.conv2", near, false)}, norm("neck.layer_norm2", e.Out, eps))
	layers.Sequential(list).Params(func(p *layers.Param) bool {
		p.Trains = false
		return true
	})
	return list
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
// memory is that of one: besides the weights about 15 activations of [Config.Rows, Width] at most. The error wraps [snug.ErrConfig],
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
		e.cut(x)
		if err := e.model.Predict(ctx, out[i*each:][:each], layers.Sample{X: e.x}); err != nil {
			return err
		}
	}
	return nil
}

// cut writes the patches of an image to e.x.
func (e *Encoder) cut(image []float32) {
	c := &e.config.Encoder
	e.x = e.x[:0]
	for row := 0; row < c.Image; row += c.Patch {
		for column := 0; column < c.Image; column += c.Patch {
			for channel := range c.Channels {
				for y := range c.Patch {
					e.x = append(e.x, image[(channel*c.Image+row+y)*c.Image+column:][:c.Patch]...)
				}
			}
		}
	}
}

// convolve is a convolution of images whose positions are rows.
type convolve struct{ *layers.Conv }

// Width implements [layers.Layer].
func (c convolve) Width(in int) (int, error) {
	s := c.Shape
	n := s.Size[0] * s.Size[1]
	out, err := c.Conv.Width(in * n)
	return out / n, err
}

// Forward implements [layers.Layer].
func (c convolve) Forward(p *layers.Pass, x *layers.Tensor) *layers.Tensor {
	y, s := p.Get(c.Shape.Out), c.Shape
	s.Batch = p.Rows() / (s.Size[0] * s.Size[1])
	p.Do(func() error { return conv.Forward(y.View, x.View, c.Weight.Value, snug.View{}, s) })
	return y
}
