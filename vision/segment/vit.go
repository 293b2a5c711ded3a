package segment

import (
	"fmt"
	"math"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/conv"
	"github.com/snug-ml/snug/layers"
)

// vit is a vision transformer (Dosovitskiy et al. 2020, arXiv:2010.11929) with attention in windows and relative positions (Li et al. 2022,
// arXiv:2203.16527), and two convolutions: the encoder of Segment Anything. Its rows are patches.
type vit struct{}

func (vit) name() string { return "vit" }

func (vit) layout(c *Config) (layout, error) {
	text, err := c.text()
	return &huggingFace{text}, err
}

func (vit) tensor() string { return "image_encoder.patch_embed.proj.weight" }

// describe implements kind. Windows and heads follow from the tables of relative positions.
func (vit) describe(s *shapes, c *Config) {
	e, at := &c.Encoder, "image_encoder."
	first, blocks := s.of(at+"patch_embed.proj.weight", 4), at+"blocks.%d."
	e.Width, e.Channels, e.Patch = first[0], first[1], first[2]
	grid := s.of(at+"pos_embed", 4)[1]
	e.Image, e.Positions, e.Relative = grid*min(e.Patch, most), true, true
	e.Activation, e.Eps, e.Ratio = "gelu", 1e-6, 4
	e.Layers = s.count(blocks + "norm1.weight")
	e.QKVBias = s.has(fmt.Sprintf(blocks+"attn.qkv.bias", 0))
	e.Hidden = s.of(fmt.Sprintf(blocks+"mlp.lin1.weight", 0), 2)[0]
	e.Heads = e.Width / max(1, s.of(fmt.Sprintf(blocks+"attn.rel_pos_h", 0), 2)[1])
	for i := range e.Layers {
		if side := (s.of(fmt.Sprintf(blocks+"attn.rel_pos_h", i), 2)[0] + 1) / 2; side == grid {
			e.Global = append(e.Global, i)
		} else {
			e.Window = side
		}
	}
	e.Out = s.of(at+"neck.0.weight", 4)[0]
}

func (vit) check(c *Config) error {
	e, grid := &c.Encoder, c.Grid()
	for _, n := range []struct {
		name string
		of   int
	}{
		{"hidden_size", e.Width}, {"mlp_dim", e.Hidden}, {"num_hidden_layers", e.Layers}, {"num_attention_heads", e.Heads},
	} {
		if n.of < 1 || n.of > most {
			return fmt.Errorf("vision_config.%s is %d, want 1 to 2^20: %w", n.name, n.of, snug.ErrConfig)
		}
	}
	product := func(a, b int) float64 { return float64(a) * float64(b) }
	switch {
	case 4*product(e.Width, e.Width)+2*product(e.Width, e.Hidden) > math.MaxInt32 || product(e.Out, e.Width) > math.MaxInt32:
		return fmt.Errorf("layers of %d and %d elements in the encoder, want at most 2^31 elements of a block: %w", e.Width, e.Hidden, snug.ErrConfig)
	case e.Width%e.Heads != 0:
		return fmt.Errorf("%d heads of the encoder do not divide hidden_size: %w", e.Heads, snug.ErrConfig)
	case e.Window < 0 || e.Window > grid || e.Layers > 1<<10:
		return fmt.Errorf("a window of %d patches or %d layers, want a window of up to %d, and up to 1024 layers: %w", e.Window, e.Layers, grid, snug.ErrConfig)
	case product(c.Rows(), 3*e.Width) > math.MaxInt32:
		return fmt.Errorf("%d rows of %d elements, want up to 2^31 elements in all: %w", c.Rows(), 3*e.Width, snug.ErrConfig)
	}
	return checkLayer(e.Activation, e.Eps)
}

// width implements kind: that of a patch.
func (vit) width(e *EncoderConfig) int { return e.Channels * e.Patch * e.Patch }

// input implements kind: it appends the patches of an image.
func (vit) input(to []float32, e *EncoderConfig, image []float32) []float32 {
	for row := 0; row < e.Image; row += e.Patch {
		for column := 0; column < e.Image; column += e.Patch {
			for channel := range e.Channels {
				for y := range e.Patch {
					to = append(to, image[(channel*e.Image+row+y)*e.Image+column:][:e.Patch]...)
				}
			}
		}
	}
	return to
}

// layers implements kind.
func (vit) layers(c *Config) (list []layers.Layer) {
	const prefix = "vision_encoder."
	e := &c.Encoder
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
	return append(list, narrow, norm("neck.layer_norm1", e.Out, eps), convolve{layers.NewConv(prefix+"neck.conv2", near, false)}, norm("neck.layer_norm2", e.Out, eps))
}

// window returns the patches of the side of what attention of a layer sees.
func (c *Config) window(layer int) int {
	if c.Encoder.Window == 0 || slices.Contains(c.Encoder.Global, layer) {
		return c.Grid()
	}
	return c.Encoder.Window
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
