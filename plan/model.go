package plan

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/snug-ml/snug/internal/saturate"
)

// Model is a network: a chain of layers, with an input, such as embeddings, before it and
// a loss after it. [GPT], [ViT] and [CNN] make a Model, [ReadModel] reads one, and any
// other model is a list of layers. Counts are elements of one sample: a sequence or an
// image.
type Model struct {
	Name      string  `json:"name"`
	Context   int     `json:"context,omitempty"`   // tokens of a sequence, which a plan's table shows; 0: a sample is no sequence
	Sequences int     `json:"sequences,omitempty"` // sequences of a sample, see [Model.Samples]; 0 is 1
	Input     int64   `json:"input"`               // elements that enter the chain
	Params    [][]int `json:"params,omitempty"`    // shapes of parameters that are used before the chain, such as tables of embeddings
	Tables    int64   `json:"tables,omitempty"`    // float32 numbers that do not train, for any batch, such as the angles of a rope
	Vectors   int64   `json:"vectors,omitempty"`   // elements of the compute type that do not train, such as a vector of ones
	Frozen    int64   `json:"frozen,omitempty"`    // elements of weights that do not train, whose Layers and Head do not list them: the frozen part of a model without adapters
	// Beside has the elements of the compute type that stages share beside the chain, such as keys and values of several layers, and their gradients.
	Beside int64 `json:"beside,omitempty"`
	// Stored is the mean bits of an element of matrices under adapters that a folder has quantized and that stay so. 0 is what package qlora
	// makes of a [Task.Base], and 8 for GGUF, whose types differ from one matrix to the next.
	Stored float64 `json:"stored_bits,omitempty"`
	Layers []Layer `json:"layers"`
	Head   Head    `json:"head,omitzero"`
}

// Layer is one step of the chain, or several equal steps. It counts in the terms of
// package remat.
type Layer struct {
	Name   string `json:"name"`             // such as "layers.3.mlp"; layers of one kind have the same name after the last dot
	Repeat int    `json:"repeat,omitempty"` // number of equal steps in a row; 0 means 1
	// Params are the shapes of its parameters. [out, in] is a matrix that multiplies, on which
	// [Task] puts an adapter; a table of other use has more dimensions, such as
	// [1, rows, columns] for positions.
	Params [][]int `json:"params,omitempty"`
	// Floats are the indices in Params of matrices that stay in the compute type whatever [Run].Frozen says, in rising
	// order: a published folder may have some matrices in floats, and the others quantized.
	Floats []int `json:"floats,omitempty"`
	// Plain are the indices in Params of matrices on which [Task] puts no adapter, in rising order.
	Plain []int `json:"plain,omitempty"`

	// Elements of the compute type of one sample.
	Output   int64 `json:"output"`             // elements of its output
	Kept     int64 `json:"kept,omitempty"`     // kept for the backward step in addition to the output
	Forward  int64 `json:"forward,omitempty"`  // transient in a forward step, in addition to the output
	Backward int64 `json:"backward,omitempty"` // transient in a backward step, in addition to the gradients that enter and leave
	// Adapters are for a layer whose backward step computes again what its adapters hold in the
	// forward step. A layer without them keeps all of it.
	Adapters []Adapter `json:"adapters,omitempty"`
	Tiles    Tiles     `json:"tiles,omitzero"` // for a layer that can run in tiles of rows

	Stats         int64     `json:"stats,omitempty"`          // float32 numbers kept, such as the statistics of a norm
	ForwardStats  int64     `json:"forward_stats,omitempty"`  // float32 numbers transient in a forward step
	BackwardStats int64     `json:"backward_stats,omitempty"` // float32 numbers transient in a backward step
	Attention     Attention `json:"attention,omitzero"`       // its attention, if it has one
	MACs          int64     `json:"macs,omitempty"`           // multiply-adds of a forward step, without Attention
	Rows          int       `json:"rows,omitempty"`           // rows of a sample that norms, biases and a GELU pass over, for their workspace:
	LayerNorm     int       `json:"layernorm,omitempty"`      // columns of a LayerNorm
	RMSNorm       int       `json:"rmsnorm,omitempty"`        // columns of an RMSNorm
	HeadNorm      int       `json:"headnorm,omitempty"`       // columns of an RMSNorm of each head of Attention, or of HeadRows
	HeadRows      int       `json:"headrows,omitempty"`       // rows of a HeadNorm of a layer without Attention: heads times rows of a sample
	HeadScale     int       `json:"headscale,omitempty"`      // columns of a norm of heads that has factors of each
	Bias          int       `json:"bias,omitempty"`           // columns of the widest bias that is added by itself
	GELU          int       `json:"gelu,omitempty"`           // columns of a GELU with bias
	Convs         []Conv    `json:"convs,omitempty"`          // convolutions, for their workspace
}

// Adapter is the memory of a layer while one of its adapters computes, in elements of the compute type of one sample.
// Adapters that share an input compute in turn: they are one Adapter, the widest.
//
// A forward step holds Forward and the adapter's inner product, Rank elements a row. A backward step holds Backward,
// the inner product and its gradient. With [Task.Dropout] each step also holds the dropped input, In. With [Task.DoRA]
// each holds the output before the magnitudes, Out; a forward step does so only for an adapter that Adds. With
// [Task.FrozenA] and with [Task.VeRA] a backward step holds the inner products of all adapters that share the input,
// and writes the gradient of the input over it.
type Adapter struct {
	In       int64 `json:"in"`                 // input of the adapter
	Out      int64 `json:"out"`                // output of the adapter
	Forward  int64 `json:"forward"`            // what else a forward step holds then, without the layer's output
	Backward int64 `json:"backward"`           // what else a backward step holds then, less what it has freed of what the layer keeps
	Gradient int64 `json:"gradient,omitempty"` // the gradient of the input, which Backward counts
	Shares   int   `json:"shares,omitempty"`   // how many adapters share the input; 0 is 1
	Rows     int   `json:"rows,omitempty"`     // rows of a sample that the adapter computes at a time; 0 is Rows of the layer
	Adds     bool  `json:"adds,omitempty"`     // the product is added to a vector that is there, such as the residual stream
}

// Tiles are what a layer holds that runs in tiles of its Rows, one after the other, as [Run].Tiles says. It then keeps
// its output alone. A backward step holds for the rows of a tile what the layer keeps otherwise, with Kept and Stats,
// and what else it holds. The zero Tiles are of a layer whose rows depend on each other.
type Tiles struct {
	Whole int `json:"whole"` // rows of a micro-batch that are one tile, also where a Run says more
	// What a forward step holds, as the fields of a Layer, if all rows of a sample are one tile.
	Forward  int64     `json:"forward,omitempty"`
	Adapters []Adapter `json:"adapters,omitempty"`
}

// Attention is the scores of a layer: Heads matrices of Queries×Keys.
type Attention struct {
	Heads   int  `json:"heads"`
	Queries int  `json:"queries"`
	Keys    int  `json:"keys"`
	Dim     int  `json:"dim"` // columns of a head
	Causal  bool `json:"causal,omitempty"`
	Window  int  `json:"window,omitempty"` // keys that a query sees; 0: all
	Sinks   bool `json:"sinks,omitempty"`  // each row of scores has one more column, the sink, which has no key
	Tiled   bool `json:"tiled,omitempty"`  // it is always computed in tiles, whatever a [Run] says
}

// Head is the loss: a linear layer and the softmax cross-entropy of its output, computed
// for a chunk of rows at a time as CrossEntropy of package fused does. The zero Head is a
// loss that takes no memory.
type Head struct {
	Params  [][]int `json:"params,omitempty"` // shapes of its parameters, without a matrix that it shares with an embedding
	Tied    bool    `json:"tied,omitempty"`   // the first of the model's Params is its matrix
	Rows    int     `json:"rows"`             // rows of a sample that have a target
	Cols    int     `json:"cols"`             // columns of the matrix
	Classes int     `json:"classes"`          // rows of the matrix
	Stats   int64   `json:"stats,omitempty"`  // float32 numbers that a sample's last norm keeps during the loss
	// LogProbs says that the loss is a function of the log-probabilities of the targets, such as a preference loss.
	// BackpropLogProbs of package transformer then holds 12 bytes more for each row, and computes the product of the
	// head once more.
	LogProbs bool `json:"log_probs,omitempty"`
}

const (
	maxCount  = 1 << 40 // of any field but MACs
	maxMACs   = 1 << 60
	maxStages = 4096
	maxParams = 1 << 20
	maxName   = 100
)

// Validate reports whether m is a chain: a name of up to 100 characters that print, 1 to 4096
// layers, counts from 0 to 2^40 (multiply-adds to 2^60), positive dimensions of up to 2^20
// parameters, and less than 2^50 elements in all. The error wraps [snug.ErrShape] and names
// the layer.
func (m Model) Validate() error {
	c := checker{model: m.Name}
	if utf8.RuneCountInString(m.Name) > maxName || strings.ContainsFunc(m.Name, func(r rune) bool { return !unicode.IsPrint(r) }) {
		c.fail("a name of up to %d characters is wanted, which print", maxName)
	}
	if !(m.Stored >= 0 && m.Stored <= 64) {
		return invalid("Stored is %v bits, want 0 to 64", m.Stored)
	}
	c.part("before the chain", 1, m.Params, m.Input, int64(m.Context), int64(m.Sequences), m.Tables, m.Vectors, m.Frozen, m.Beside)
	stages := 0
	for i, l := range m.Layers {
		where := fmt.Sprintf("layer %d (%.40q)", i, l.Name)
		if l.Repeat < 0 || l.Repeat > maxStages {
			c.fail("%s: %d times, want 0 to %d", where, l.Repeat, maxStages)
		}
		stages += l.repeat()
		a := l.Attention
		c.part(where, l.repeat(), l.Params, l.Output, l.Kept, l.Forward, l.Backward, l.Stats, int64(l.Rows),
			int64(l.LayerNorm), int64(l.RMSNorm), int64(l.HeadNorm), int64(l.HeadScale), int64(l.HeadRows), int64(l.Bias), int64(l.GELU), l.ForwardStats, l.BackwardStats,
			int64(a.Heads), int64(a.Queries), int64(a.Keys), int64(a.Dim), int64(a.Window))
		for _, a := range slices.Concat(l.Adapters, l.Tiles.Adapters) {
			c.part(where, l.repeat(), nil, a.In, a.Out, a.Forward, a.Backward, a.Gradient, int64(a.Shares), int64(a.Rows))
		}
		c.part(where, l.repeat(), nil, l.Tiles.Forward, int64(l.Tiles.Whole))
		for _, k := range l.Convs {
			if min(k.In, k.Out, k.Kernel, k.Stride, k.Size) < 1 || max(k.In, k.Out) > maxDim || max(k.Kernel, k.Stride, k.Size) > maxSide || k.to() < 1 {
				c.fail("%s: a convolution %+v, want channels from 1 to 2^28, pixels from 1 to %d, and an output", where, k, maxSide)
			}
		}
		for _, f := range [...]struct {
			name string
			list []int
		}{{"Floats", l.Floats}, {"Plain", l.Plain}} {
			for n, at := range f.list {
				if at < 0 || at >= len(l.Params) || len(l.Params[at]) != 2 || n > 0 && at <= f.list[n-1] {
					c.fail("%s: %s has the index %d, want those of matrices in Params, in rising order", where, f.name, at)
				}
			}
		}
		if l.Tiles.Whole > 0 && l.Rows == 0 {
			c.fail("%s: tiles of rows, and it has no rows", where)
		}
		if l.MACs < 0 || l.MACs > maxMACs {
			c.fail("%s: %d multiply-adds, want 0 to 2^60", where, l.MACs)
		}
		if a.Heads > 0 && a.Dim < 1 {
			c.fail("%s: attention whose heads have the dimension %d, want 1 or more", where, a.Dim)
		}
		c.sample += a.scores() * float64(l.repeat())
	}
	h := m.Head
	c.part("head", 1, h.Params, int64(h.Rows), int64(h.Cols), int64(h.Classes), h.Stats)
	switch {
	case h.Tied && len(m.Params) == 0:
		c.fail("the head shares the first parameter before the chain, and there is none")
	case stages < 1 || stages > maxStages:
		c.fail("%d layers, want 1 to %d", stages, maxStages)
	case c.tensors > maxParams:
		c.fail("%d parameters, want at most %d", c.tensors, maxParams)
	case !(c.sample+c.params < 1<<50):
		c.fail("%.4g elements, want less than 2^50", c.sample+c.params)
	}
	return c.err
}

// checker finds the first error of a model.
type checker struct {
	model          string
	err            error
	sample, params float64 // counts of a sample and elements of parameters so far
	tensors        int
}

func (c *checker) fail(format string, args ...any) {
	if c.err == nil {
		c.err = shapeless("model %.40q: "+format, append([]any{c.model}, args...)...)
	}
}

// part checks one part of the model that occurs a number of times.
func (c *checker) part(where string, repeat int, shapes [][]int, counts ...int64) {
	for _, n := range counts {
		if n < 0 || n > maxCount {
			c.fail("%s: a count of %d, want 0 to 2^40", where, n)
		}
		c.sample += float64(n) * float64(repeat)
	}
	for _, shape := range shapes {
		n := 1.0
		for _, d := range shape {
			if d < 1 {
				c.fail("%s: a parameter of shape %v, want dimensions of 1 or more", where, shape)
			}
			n *= float64(d)
		}
		if n > maxCount {
			c.fail("%s: a parameter of shape %v, want at most 2^40 elements", where, shape)
		}
		c.params += n * float64(repeat)
		c.tensors += repeat
	}
}

// perSample returns an upper bound of the elements and numbers that one sample takes.
func (m Model) perSample() float64 {
	h := m.Head
	n := float64(m.Input) + float64(h.Rows) + float64(h.Stats)
	for _, l := range m.Layers {
		n += float64(l.repeat()) * (float64(l.Output+l.Kept+l.Forward+l.Backward+l.Stats+l.ForwardStats+l.BackwardStats+int64(l.Rows)) + l.Attention.scores())
		n += float64(l.repeat()) * float64(l.Tiles.Forward)
		for _, a := range slices.Concat(l.Adapters, l.Tiles.Adapters) {
			n += float64(l.repeat()) * float64(a.In+a.Out+a.Forward+a.Backward)
		}
	}
	return n
}

// rows returns the maximum number of rows of a sample that an int counts.
func (m Model) rows() float64 {
	n := float64(m.Head.Rows)
	for _, l := range m.Layers {
		n = max(n, float64(l.Rows), float64(l.Attention.Heads)*float64(l.Attention.Queries))
	}
	return n
}

func (a Attention) scores() float64 { return float64(a.Heads) * float64(a.Queries) * float64(a.Keys) }

func (l Layer) repeat() int { return max(1, l.Repeat) }

// Parameters returns the number of elements of all parameters, at most the largest int64.
func (m Model) Parameters() (n int64) {
	for p := range m.tensors() {
		n = saturate.Add(n, p.all())
	}
	return n
}

// tensor is a parameter that occurs a number of times.
type tensor struct {
	shape  []int
	linear bool // the matrix of a layer within the chain
	times  int
	float  bool // it stays in the compute type
	adapts bool // the linear takes an adapter
}

// len returns the elements of one occurrence.
func (p tensor) len() int64 {
	n := int64(1)
	for _, d := range p.shape {
		n = saturate.Mul(n, int64(d))
	}
	return n
}

// all returns the elements of all occurrences.
func (p tensor) all() int64 { return saturate.Mul(int64(p.times), p.len()) }

// tensors yields all parameters in the order of the layers. It yields the parameters of a
// repeated layer once. It yields consecutive equal shapes of a layer, such as the matrices of experts, as one tensor.
func (m Model) tensors() func(yield func(tensor) bool) {
	return func(yield func(tensor) bool) {
		for _, shape := range m.Params {
			if !yield(tensor{shape: shape, times: 1}) {
				return
			}
		}
		for _, l := range m.Layers {
			for p := range l.tensors() {
				if p.times *= l.repeat(); !yield(p) {
					return
				}
			}
		}
		for _, shape := range m.Head.Params {
			if !yield(tensor{shape: shape, times: 1}) {
				return
			}
		}
	}
}

// tensors yields the parameters of one step of a layer. Of equal shapes that follow each other, and take adapters or do not, it yields those
// that stay in floats as one, and the others as one.
func (l Layer) tensors() func(yield func(tensor) bool) {
	return func(yield func(tensor) bool) {
		floats := l.Floats
		for at := 0; at < len(l.Params); {
			p := tensor{shape: l.Params[at], linear: len(l.Params[at]) == 2, adapts: l.adapts(at)}
			n, in := 1, 0
			for most := alike(l.Params[at:]); n < most && l.adapts(at+n) == p.adapts; {
				n++
			}
			for at += n; len(floats) > 0 && floats[0] < at; floats = floats[1:] {
				in++
			}
			if p.float, p.times = true, in; in > 0 && !yield(p) {
				return
			}
			if p.float, p.times = false, n-in; n > in && !yield(p) {
				return
			}
		}
	}
}

// adapts reports whether a parameter takes an adapter.
func (l Layer) adapts(at int) bool { return len(l.Params[at]) == 2 && !slices.Contains(l.Plain, at) }

// alike returns how many shapes at the beginning of the list equal the first shape.
func alike(shapes [][]int) int {
	for i, s := range shapes {
		if !slices.Equal(s, shapes[0]) {
			return i
		}
	}
	return len(shapes)
}

// matrices returns how many parameters adapters can be put on, and how many of these stay in floats.
func (m Model) matrices() (n, floats int) {
	for p := range m.tensors() {
		if p.adapts {
			n += p.times
		}
		if p.float {
			floats += p.times
		}
	}
	return n, floats
}

// stages returns the number of layers of the chain.
func (m Model) stages() (n int) {
	for _, l := range m.Layers {
		n += l.repeat()
	}
	return n
}
