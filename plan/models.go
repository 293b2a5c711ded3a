package plan

import (
	"cmp"
	"fmt"
	"math"
)

// GPT is a decoder of transformer layers, each two stages of the chain:
//
//	z = x + proj(attention(qkv(norm(x))))
//	y = z + down(gelu(up(norm(z)) + bias))      or down(silu(gate(norm(z)))·up(norm(z)))
//
// A sample is a sequence of Context tokens. The zero value of the options is GPT-2
// (Radford et al. 2019) without biases of linear layers, except the bias of GELU. The
// options of Llama (Touvron et al. 2023, arXiv:2302.13971) are Gated, RMSNorm, Rotary,
// Untied and SplitQKV.
//
// With the width C, the hidden width H and K = KVHeads/Heads, the stages keep for a
// token, in elements in addition to their outputs: (2+2K)·C for q, k, v and attention's
// output, and H, or 2H when gated. Norms, the input of GELU with its bias, and the
// product of a gated pair are computed again from these, see package fused. The
// statistics of a norm are 2 float32 a token, or 1 with RMSNorm. examples/gpt has these
// sizes, and measures them.
type GPT struct {
	Name    string `json:"name,omitempty"`
	Vocab   int    `json:"vocab"`
	Dim     int    `json:"dim"`
	Layers  int    `json:"layers"`
	Heads   int    `json:"heads"`
	Context int    `json:"context"`            // tokens of a sequence
	KVHeads int    `json:"kv_heads,omitempty"` // 0: Heads
	Hidden  int    `json:"hidden,omitempty"`   // 0: 4·Dim
	Gated   bool   `json:"gated,omitempty"`    // SwiGLU instead of GELU
	RMSNorm bool   `json:"rmsnorm,omitempty"`  // instead of LayerNorm
	Rotary  bool   `json:"rotary,omitempty"`   // instead of a table of positions
	Untied  bool   `json:"untied,omitempty"`   // the output layer has a matrix of its own
	Bias    bool   `json:"bias,omitempty"`     // all linear layers except the output have biases

	// SplitQKV says that q, k and v have a matrix each, and an adapter each, as in Llama. In
	// GPT-2 they share one.
	SplitQKV bool `json:"split_qkv,omitempty"`
	// Positions is the number of rows of the table of positions of a model without
	// Rotary, and therefore its longest sequence; 0: Context.
	Positions int `json:"positions,omitempty"`
}

// Model returns the chain. The error wraps [snug.ErrShape]: a count below 1, heads that do
// not divide the width, key heads that do not divide the heads, or a Context longer than
// Positions.
func (g GPT) Model() (Model, error) {
	g.Name = cmp.Or(g.Name, "gpt")
	g.KVHeads = cmp.Or(g.KVHeads, g.Heads)
	g.Hidden = cmp.Or(g.Hidden, 4*g.Dim)
	if g.Rotary && g.Positions != 0 {
		return Model{}, shapeless("model %.40q: a table of %d positions, and rotary ones in its place", g.Name, g.Positions)
	}
	g.Positions = cmp.Or(g.Positions, g.Context)
	err := atLeastOne(g.Name, counts{{"vocab", g.Vocab}, {"dim", g.Dim}, {"layers", g.Layers}, {"heads", g.Heads},
		{"context", g.Context}, {"kv_heads", g.KVHeads}, {"hidden", g.Hidden}, {"positions", g.Positions}})
	switch {
	case err != nil:
		return Model{}, err
	case !g.Rotary && g.Context > g.Positions:
		return Model{}, shapeless("model %.40q: a context of %d tokens, but its learned positions are for %d at most; a model with more positions is another one",
			g.Name, g.Context, g.Positions)
	}
	b := blocks{dim: g.Dim, heads: g.Heads, kvHeads: g.KVHeads, hidden: g.Hidden, rows: g.Context,
		gated: g.Gated, rms: g.RMSNorm, bias: g.Bias, split: g.SplitQKV, causal: true}
	if err := b.check(g.Name, g.Layers); err != nil {
		return Model{}, err
	}
	m := Model{
		Name: g.Name, Context: g.Context, Input: b.width(), Params: [][]int{{g.Vocab, g.Dim}}, Layers: b.layers(g.Layers),
		Head: Head{Params: b.norm(), Tied: !g.Untied, Rows: g.Context, Cols: g.Dim, Classes: g.Vocab, Stats: b.stats()},
	}
	if !g.Rotary {
		m.Params = append(m.Params, []int{g.Positions, g.Dim})
	}
	if g.Untied {
		m.Head.Params = append(m.Head.Params, []int{g.Vocab, g.Dim})
	}
	return m, m.Validate()
}

// ViT is a vision transformer (Dosovitskiy et al. 2021, arXiv:2010.11929): an image is
// cut into patches, a class token is put before them, and the layers are [GPT]'s layers
// with biases and without a causal mask. q, k and v have a matrix each, as in Hugging
// Face's model. The loss is the loss of the class token.
type ViT struct {
	Name     string `json:"name,omitempty"`
	Image    int    `json:"image"`              // pixels of a side
	Patch    int    `json:"patch"`              // pixels of a side, a divisor of Image
	Channels int    `json:"channels,omitempty"` // 0: 3
	Classes  int    `json:"classes"`
	Dim      int    `json:"dim"`
	Layers   int    `json:"layers"`
	Heads    int    `json:"heads"`
	Hidden   int    `json:"hidden,omitempty"` // 0: 4·Dim
}

// Model returns the chain. The error wraps [snug.ErrShape].
func (v ViT) Model() (Model, error) {
	v.Name = cmp.Or(v.Name, "vit")
	v.Channels = cmp.Or(v.Channels, 3)
	v.Hidden = cmp.Or(v.Hidden, 4*v.Dim)
	err := atLeastOne(v.Name, counts{{"image", v.Image}, {"patch", v.Patch}, {"channels", v.Channels}, {"classes", v.Classes},
		{"dim", v.Dim}, {"layers", v.Layers}, {"heads", v.Heads}, {"hidden", v.Hidden}})
	if err != nil {
		return Model{}, err
	}
	if v.Image%v.Patch != 0 || v.Image > maxSide || v.Channels > maxWidth {
		return Model{}, shapeless("model %.40q: patches of %d in an image of %d with %d channels, want a divisor, at most %d, and at most %d",
			v.Name, v.Patch, v.Image, v.Channels, maxSide, maxWidth)
	}
	side := v.Image / v.Patch
	b := blocks{dim: v.Dim, heads: v.Heads, kvHeads: v.Heads, hidden: v.Hidden, rows: side*side + 1, bias: true, split: true}
	if err := b.check(v.Name, v.Layers); err != nil {
		return Model{}, err
	}
	unfolded := int64(v.Channels) * int64(v.Image) * int64(v.Image)
	patches := Layer{
		Name: "patches", Params: [][]int{{v.Dim, v.Channels, v.Patch, v.Patch}, {v.Dim}, {v.Dim}, {1, b.rows, v.Dim}}, Output: b.width(),
		Forward: unfolded, Backward: unfolded, MACs: times(unfolded, int64(v.Dim)),
	}
	m := Model{
		Name: v.Name, Input: int64(v.Channels) * int64(v.Image) * int64(v.Image),
		Layers: append([]Layer{patches}, b.layers(v.Layers)...),
		Head:   Head{Params: append(b.norm(), []int{v.Classes, v.Dim}, []int{v.Classes}), Rows: 1, Cols: v.Dim, Classes: v.Classes, Stats: b.stats()},
	}
	return m, m.Validate()
}

const maxSide = 1 << 14 // pixels of a side of an image

// counts are fields of a model with their names in a file.
type counts []struct {
	name string
	n    int
}

// maxDim is the maximum of a count of a model. Sums of three counts fit into an int, also
// on 32-bit systems.
const maxDim = 1 << 28

// atLeastOne returns an error for the first count that is not from 1 to maxDim.
func atLeastOne(model string, all counts) error {
	for _, c := range all {
		if c.n < 1 || c.n > maxDim {
			return shapeless("model %.40q: %s is %d, want 1 to 2^28", model, c.name, c.n)
		}
	}
	return nil
}

// times returns the product of counts. If the product overflows an int64 it returns more
// than any field may have, so that [Model.Validate] refuses it.
func times(all ...int64) int64 {
	product, size := int64(1), 1.0
	for _, n := range all {
		product, size = product*n, size*float64(n)
	}
	if size > maxMACs {
		return math.MaxInt64
	}
	return product
}

// blocks are the transformer layers of a model.
type blocks struct {
	dim, heads, kvHeads, hidden, rows int
	gated, rms, bias, split, causal   bool
}

// check also checks the number of layers, each of two stages, before they are made.
func (b blocks) check(model string, layers int) error {
	if layers > maxStages/2 {
		return shapeless("model %.40q: %d layers, want 1 to %d", model, layers, maxStages/2)
	}
	if b.dim%b.heads != 0 || b.heads%b.kvHeads != 0 {
		return shapeless("model %.40q: width %d, %d heads, %d key heads, want each to divide the one before",
			model, b.dim, b.heads, b.kvHeads)
	}
	if float64(b.rows)*(float64(b.dim)+float64(b.hidden))*float64(b.dim) > maxCount*(1<<20) {
		return shapeless("model %.40q: %d rows of width %d and hidden width %d are too large", model, b.rows, b.dim, b.hidden)
	}
	return nil
}

// width returns the elements of an activation of a sample.
func (b blocks) width() int64 { return int64(b.rows) * int64(b.dim) }

// stats returns the number of float32 values that a norm keeps for a sample.
func (b blocks) stats() int64 {
	if b.rms {
		return int64(b.rows)
	}
	return 2 * int64(b.rows)
}

// norm returns the shapes of a norm's parameters.
func (b blocks) norm() [][]int {
	if b.rms {
		return [][]int{{b.dim}}
	}
	return [][]int{{b.dim}, {b.dim}}
}

// linear appends the shapes of a linear layer's parameters.
func (b blocks) linear(shapes [][]int, out, in int) [][]int {
	shapes = append(shapes, []int{out, in})
	if b.bias {
		shapes = append(shapes, []int{out})
	}
	return shapes
}

// layers returns n transformer layers.
func (b blocks) layers(n int) (list []Layer) {
	for i := range n {
		attention, mlp := b.attention(), b.mlp()
		attention.Name, mlp.Name = fmt.Sprintf("layers.%d.attention", i), fmt.Sprintf("layers.%d.mlp", i)
		list = append(list, attention, mlp)
	}
	return list
}

func (b blocks) base() Layer {
	l := Layer{Output: b.width(), Stats: b.stats(), Rows: b.rows, LayerNorm: b.dim}
	if b.rms {
		l.LayerNorm, l.RMSNorm = 0, b.dim
	}
	return l
}

// attention holds, in addition to its output, at most q, k and v in a forward step. In a
// backward step it holds their gradients and the gradient of attention's output, which
// the normalized input then replaces.
func (b blocks) attention() Layer {
	l := b.base()
	kv := b.kvHeads * (b.dim / b.heads)
	qkv := int64(b.rows) * int64(b.dim+2*kv)
	l.Params = b.norm()
	if b.split {
		l.Params = b.linear(b.linear(b.linear(l.Params, b.dim, b.dim), kv, b.dim), kv, b.dim)
	} else {
		l.Params = b.linear(l.Params, b.dim+2*kv, b.dim)
	}
	l.Params = b.linear(l.Params, b.dim, b.dim)
	l.Kept, l.Forward, l.Backward = qkv+b.width(), qkv, qkv+b.width()
	l.MACs = qkv*int64(b.dim) + b.width()*int64(b.dim)
	l.Attention = Attention{Heads: b.heads, Queries: b.rows, Keys: b.rows, Dim: b.dim / b.heads, Causal: b.causal}
	return l
}

// mlp keeps the inputs of GELU or SwiGLU. A forward step also holds the result. A
// backward step also holds the result, whose gradient replaces it, and after that the normalized
// input. The gradients of the inputs of GELU or SwiGLU replace these.
func (b blocks) mlp() Layer {
	l := b.base()
	hidden := int64(b.rows) * int64(b.hidden)
	in := 1
	if b.gated {
		in = 2
		l.Params = b.linear(b.linear(b.norm(), b.hidden, b.dim), b.hidden, b.dim)
	} else {
		l.Params = append(b.norm(), []int{b.hidden, b.dim}, []int{b.hidden})
		l.GELU = b.hidden
	}
	l.Params = b.linear(l.Params, b.dim, b.hidden)
	l.Kept, l.Forward, l.Backward = int64(in)*hidden, int64(in)*hidden, max(hidden, b.width())
	l.MACs = int64(in+1) * hidden * int64(b.dim)
	return l
}
