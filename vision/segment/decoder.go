package segment

import (
	"fmt"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/conv"
	"github.com/snug-ml/snug/layers"
)

// decoder makes masks of the features of images and of prompts: a prompt encoder, a transformer in which tokens and positions of the image
// attend to each other, and a product of what becomes of tokens and of the image. Its rows are prompts: of an image's features, channels
// last, to the logits of all masks, [masks, side, side], and their scores.
type decoder struct {
	config  *Config
	prompts prompts   // of the pass
	at      []float32 // positions of the patches of an image, from its first pass on

	waves               *layers.Param
	points              []*layers.Param // of background, foreground and the corners of a box
	notPoint, noMask    *layers.Param
	maskEmbed           layers.Sequential
	iouToken, maskToken *layers.Param
	blocks              []block
	last                cross
	lastNorm            *layers.Norm
	up1, up2            *layers.Conv
	upNorm              *layers.Norm
	masks               []head
	scores              head
}

// cross is attention of some rows to others.
type cross struct {
	q, k, v, out *layers.Linear
	heads        int
}

// block is one of the transformer: tokens attend to themselves and to the image, then the image to the tokens.
type block struct {
	self, toImage, toTokens cross
	norms                   [4]*layers.Norm
	up, down                *layers.Linear
	activation              layers.Activation
}

// head is linear layers with ReLU between them.
type head []*layers.Linear

func newDecoder(c *Config) *decoder {
	p, d, grid := &c.Prompt, &c.Decoder, c.Grid()
	embedding := func(name string, rows, width int) *layers.Param {
		return layers.NewEmbedding(name, rows, width).Table
	}
	attention := func(name string, downsample int) cross {
		inner := d.Width / downsample
		return cross{
			layers.NewLinear(name+".q_proj", d.Width, inner, true), layers.NewLinear(name+".k_proj", d.Width, inner, true),
			layers.NewLinear(name+".v_proj", d.Width, inner, true), layers.NewLinear(name+".out_proj", inner, d.Width, true), d.Heads,
		}
	}
	norm := func(name string, cols int, eps float64) *layers.Norm {
		n := layers.NewLayerNorm(name, cols)
		n.Eps = float32(eps)
		return n
	}
	m := &decoder{config: c, waves: embedding("", 2, c.Encoder.Waves)}
	m.waves.Name, m.waves.Trains = "shared_image_embedding.positional_embedding", false

	at := "prompt_encoder."
	for i := range p.Points {
		m.points = append(m.points, embedding(fmt.Sprintf("%spoint_embed.%d", at, i), 1, p.Width))
	}
	m.notPoint, m.noMask = embedding(at+"not_a_point_embed", 1, p.Width), embedding(at+"no_mask_embed", 1, p.Width)
	at += "mask_embed."
	half := func(name string, in, out, size int) *layers.Conv {
		return layers.NewConv(at+name, conv.Shape{In: in, Out: out, Dims: 2, Size: [3]int{size, size}, Kernel: [3]int{2, 2}, Stride: [3]int{2, 2}, Layout: conv.ChannelsLast}, true)
	}
	few := p.Channels / 4
	m.maskEmbed = layers.Sequential{
		half("conv1", 1, few, 4*grid), norm(at+"layer_norm1", few, p.Eps), activations[p.Activation],
		half("conv2", few, p.Channels, 2*grid), norm(at+"layer_norm2", p.Channels, p.Eps), activations[p.Activation],
		layers.NewConv(at+"conv3", conv.Shape{In: p.Channels, Out: p.Width, Dims: 2, Size: [3]int{grid, grid}, Kernel: [3]int{1, 1}, Layout: conv.ChannelsLast}, true),
	}

	at = "mask_decoder."
	m.iouToken, m.maskToken = embedding(at+"iou_token", 1, d.Width), embedding(at+"mask_tokens", 1+d.Masks, d.Width)
	for i := range d.Layers {
		at := fmt.Sprintf("%stransformer.layers.%d.", at, i)
		b := block{
			self: attention(at+"self_attn", 1), toImage: attention(at+"cross_attn_token_to_image", 2), toTokens: attention(at+"cross_attn_image_to_token", 2),
			up: layers.NewLinear(at+"mlp.lin1", d.Width, d.Hidden, true), down: layers.NewLinear(at+"mlp.lin2", d.Hidden, d.Width, true), activation: activations[d.Activation],
		}
		for j := range b.norms {
			b.norms[j] = norm(fmt.Sprint(at, "layer_norm", j+1), d.Width, d.Eps)
		}
		m.blocks = append(m.blocks, b)
	}
	m.last = attention(at+"transformer.final_attn_token_to_image", d.Downsample)
	m.lastNorm = norm(at+"transformer.layer_norm_final_attn", d.Width, 1e-5) // whatever config.json says, as that of upscale_layer_norm
	double := func(name string, in, out, size int) *layers.Conv {
		return layers.NewConv(at+name, conv.Shape{In: in, Out: out, Dims: 2, Size: [3]int{size, size}, Kernel: [3]int{2, 2}, Stride: [3]int{2, 2}, Transposed: true, Layout: conv.ChannelsLast}, true)
	}
	m.up1, m.up2 = double("upscale_conv1", d.Width, d.Width/4, grid), double("upscale_conv2", d.Width/4, d.Width/8, 2*grid)
	m.upNorm = norm(at+"upscale_layer_norm", d.Width/4, 1e-6)
	feed := func(name string, hidden, out, depth int) (h head) {
		h = head{layers.NewLinear(name+".proj_in", d.Width, hidden, true)}
		for i := range depth - 2 {
			h = append(h, layers.NewLinear(fmt.Sprintf("%s.layers.%d", name, i), hidden, hidden, true))
		}
		return append(h, layers.NewLinear(name+".proj_out", hidden, out, true))
	}
	for i := range 1 + d.Masks {
		m.masks = append(m.masks, feed(fmt.Sprintf("%soutput_hypernetworks_mlps.%d", at, i), d.Width, d.Width/8, 3))
	}
	m.scores = feed(at+"iou_prediction_head", d.IoUHidden, 1+d.Masks, d.IoUDepth)
	return m
}

// Params implements [layers.Layer].
func (m *decoder) Params(yield func(*layers.Param) bool) {
	list := append([]*layers.Param{m.waves}, m.points...)
	list = append(list, m.notPoint, m.noMask)
	add := func(all ...layers.Layer) {
		layers.Sequential(all).Params(func(p *layers.Param) bool {
			list = append(list, p)
			return true
		})
	}
	attention := func(c cross) { add(c.q, c.k, c.v, c.out) }
	add(m.maskEmbed)
	list = append(list, m.iouToken, m.maskToken)
	for _, b := range m.blocks {
		attention(b.self)
		add(b.norms[0])
		attention(b.toImage)
		add(b.norms[1], b.up, b.down, b.norms[2])
		attention(b.toTokens)
		add(b.norms[3])
	}
	attention(m.last)
	add(m.lastNorm, m.up1, m.upNorm, m.up2)
	for _, h := range append(slices.Clone(m.masks), m.scores) {
		for _, l := range h {
			add(l)
		}
	}
	for _, p := range list {
		if !yield(p) {
			return
		}
	}
}

// Width implements [layers.Layer].
func (m *decoder) Width(in int) (int, error) {
	if want := m.config.FeatureLen(); in != want {
		return 0, fmt.Errorf("segment: features of %d elements, want %d: %w", in, want, snug.ErrShape)
	}
	return (1 + m.config.Decoder.Masks) * (m.config.Side()*m.config.Side() + 1), nil
}

// Forward implements [layers.Layer].
func (m *decoder) Forward(p *layers.Pass, x *layers.Tensor) *layers.Tensor {
	return m.run(&graph{p: p}, x).v
}

// ForwardSave implements [layers.Layer].
func (m *decoder) ForwardSave(p *layers.Pass, x *layers.Tensor) (*layers.Tensor, layers.Saved) {
	g := &graph{p: p, keeps: true}
	return m.run(g, x).v, g
}

// Backward implements [layers.Layer]. The gradient of the features, which are fixed, may have any value.
func (m *decoder) Backward(p *layers.Pass, _ *layers.Tensor, kept layers.Saved, dy *layers.Tensor) *layers.Tensor {
	kept.(*graph).backward(dy)
	return p.Get(m.config.FeatureLen())
}

func (m *decoder) run(g *graph, x *layers.Tensor) *value {
	width := m.config.Decoder.Width
	image := m.dense(g, &value{v: x, width: m.config.FeatureLen(), fixed: true})
	tokens := m.tokens(g)
	q, at := tokens, m.positions()
	for i, b := range m.blocks {
		q, image = b.run(g, q, image, tokens, at, i == 0)
	}
	k := g.plusAll(image, at)
	q = m.last.run(g, g.plus(q, tokens), k, image, q)
	q = g.layer(m.lastNorm, q)
	g.drop(k)

	x1 := g.layer(m.up1, image)
	g.drop(image)
	x2 := g.layer(m.upNorm, x1)
	g.drop(x1)
	x3 := g.gelu(x2, width/4)
	g.drop(x2)
	x4 := g.layer(m.up2, x3)
	g.drop(x3)
	up := g.gelu(x4, width/8)
	g.drop(x4)
	var masks []*value
	for i, h := range m.masks {
		masks = append(masks, h.run(g, g.pick(q, 1+i, width)))
	}
	scores := m.scores.run(g, g.pick(q, 0, width))
	y := m.product(g, masks, up, scores)
	g.drop(up)
	return y
}

// run returns x + out(attention(q, k, v)), where v are the rows that keys were made of without positions.
func (c cross) run(g *graph, q, k, v, x *value) *value {
	a, b, d := g.linear(c.q, q), g.linear(c.k, k), g.linear(c.v, v)
	out := g.attention(a, b, d, c.heads, c.q.Out)
	g.drop(a, b, d)
	y := g.linear(c.out, out)
	g.drop(out)
	if x == nil {
		return y
	}
	return g.plusOver(x, y)
}

func (b block) run(g *graph, q, image, tokens *value, at snug.View, first bool) (*value, *value) {
	if first { // without positions, and in place of the tokens
		q = b.self.run(g, q, q, q, nil)
	} else {
		with := g.plus(q, tokens)
		q = b.self.run(g, with, with, q, q)
	}
	q = g.layer(b.norms[0], q)
	k := g.plusAll(image, at)
	q = b.toImage.run(g, g.plus(q, tokens), k, image, q)
	q = g.layer(b.norms[1], q)
	q = g.plusOver(q, g.linear(b.down, g.layer(b.activation, g.linear(b.up, q))))
	q = g.layer(b.norms[2], q)
	y := b.toTokens.run(g, k, g.plus(q, tokens), q, image)
	g.drop(k, image)
	z := g.layer(b.norms[3], y)
	g.drop(y)
	return q, z
}

func (h head) run(g *graph, x *value) *value {
	for i, l := range h {
		if x = g.linear(l, x); i < len(h)-1 {
			x = g.layer(layers.ReLU, x)
		}
	}
	return x
}

// product is the logits of masks, each the product of its token and of the image, and the scores behind them.
func (m *decoder) product(g *graph, masks []*value, up, scores *value) *value {
	p, n := g.p, m.config.Side()*m.config.Side()
	channels, count := masks[0].width, len(masks)
	width := count*n + count
	v := p.Get(width)
	tokens := make([]float32, count*channels)
	each := func(do func(b int, image, logits []float32) error, logits *layers.Tensor) {
		p.Do(func() error {
			for b := range p.Rows() {
				for i, x := range masks {
					copy(tokens[i*channels:], x.v.Float32s()[b*channels:][:channels])
				}
				if err := do(b, up.v.Float32s()[b*up.width:][:up.width], logits.Float32s()[b*width:][:width]); err != nil {
					return err
				}
			}
			return nil
		})
	}
	each(func(b int, image, logits []float32) error {
		copy(logits[count*n:], scores.v.Float32s()[b*count:][:count])
		return amp.MatMul(logits[:count*n], tokens, image, amp.MatMulOptions{M: count, N: n, K: channels, TransB: true})
	}, v)
	return g.add(width, v, func(y *value) {
		up.d, scores.d = p.Get(up.width), p.Get(count)
		for _, x := range masks {
			x.d = p.Get(channels)
		}
		dtokens := make([]float32, len(tokens))
		each(func(b int, image, d []float32) error {
			copy(scores.d.Float32s()[b*count:][:count], d[count*n:])
			if err := amp.MatMul(up.d.Float32s()[b*up.width:][:up.width], d[:count*n], tokens, amp.MatMulOptions{M: n, N: channels, K: count, TransA: true}); err != nil {
				return err
			}
			err := amp.MatMul(dtokens, d[:count*n], image, amp.MatMulOptions{M: count, N: channels, K: n})
			for i, x := range masks {
				copy(x.d.Float32s()[b*channels:][:channels], dtokens[i*channels:])
			}
			return err
		}, y.d)
	})
}
