package main

import (
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/fused"
	"github.com/snug-ml/snug/quant8"
	"github.com/snug-ml/snug/remat"
)

// This file predicts what a run will take from its shapes alone, before
// anything is allocated. The run then measures how far off it was.

// sizes are the counts that the prediction is made of.
type sizes struct {
	elem  int64 // bytes of an element of weights and activations
	rows  int64 // tokens of a micro-batch
	width int64 // bytes of one activation: rows × dim
}

func (c config) sizes() sizes {
	s := sizes{elem: int64(c.dtype.Size()), rows: int64(c.batch().Micro * c.context)}
	s.width = s.rows * int64(c.dim) * s.elem
	return s
}

// tensorLens returns the number of elements of every parameter.
func (c config) tensorLens() []int {
	d := c.dim
	lens := []int{c.vocab * d, c.context * d}
	for range c.layers {
		lens = append(lens, d, d, 3*d*d, d*d, d, d, 4*d*d, 4*d, 4*d*d)
	}
	return append(lens, d, d)
}

// parameters returns the number of parameters.
func (c config) parameters() (n int64) {
	for _, k := range c.tensorLens() {
		n += int64(k)
	}
	return n
}

// optimizerOptions are the same with and without 8-bit state but for the bits.
func (c config) optimizerOptions() quant8.AdamWOptions {
	o := quant8.AdamWOptions{LR: c.lr, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, WeightDecay: 0.01, Bits: 32, Chunk: c.chunk}
	if c.on[useQuant8] {
		o.Bits = 8
	}
	return o
}

// stateBytes returns the bytes of master weights and of the optimizer's state,
// wherever they are.
func (c config) stateBytes() (master, state int64) {
	for _, n := range c.tensorLens() {
		state += quant8.StateBytes(n, c.optimizerOptions())
	}
	if c.on[useAMP] {
		master = 4 * c.parameters()
	}
	return master, state
}

// hostLimit returns how many bytes of paged state stay in host memory: a share
// of all, and at least a few pages.
func (c config) hostLimit() int64 {
	master, state := c.stateBytes()
	return max((master+state)/int64(c.hostShare), 8*8*int64(c.chunk))
}

// costs returns what a block takes, see block.go.
func (c config) costs() *remat.Costs {
	s := c.sizes()
	attend := 4 * s.rows * int64(c.heads)
	if !c.on[useAttention] {
		attend = s.elem * s.rows * int64(c.context) * int64(c.heads)
	}
	block := remat.Cost{
		Output:        s.width,
		Saved:         10*s.width + 4*4*s.rows + attend,
		ForwardExtra:  5 * s.width,
		BackwardExtra: 5 * s.width,
		ForwardTime:   1,
		BackwardTime:  2,
	}
	costs := &remat.Costs{Input: s.width}
	for range c.layers {
		costs.Stages = append(costs.Stages, block)
	}
	return costs
}

// plan returns when each block is computed: with rematerialization only the
// inputs of blocks are kept, and each block's inner values are computed again.
func (c config) plan() (remat.Plan, error) {
	if c.on[useRemat] {
		return remat.Revolve(*c.costs(), c.layers)
	}
	return remat.KeepAll(*c.costs())
}

// predict returns the peak bytes of every component.
func (c config) predict() (bytesBy, error) {
	var b bytesBy
	s := c.sizes()
	n := c.parameters()
	b[weights] = n * s.elem
	b[gradients] = 4 * n
	b[masters], b[optimizer] = c.stateBytes()
	if c.on[useOffload] { // both are pages of one store
		b[masters], b[optimizer] = 0, min(c.hostLimit(), b[masters]+b[optimizer])
	}
	plan, err := c.plan()
	if err != nil {
		return b, err
	}
	rep, err := plan.Simulate(*c.costs())
	if err != nil {
		return b, err
	}
	b[activation] = rep.Peak
	rows := int(s.rows)
	loss := fused.CrossEntropy{Vocab: c.vocab, Cols: c.dim, Chunk: c.lossRows}
	floats := max(loss.WorkspaceLen(rows),
		fused.LayerNormWorkspaceLen(rows, c.dim),
		fused.BiasGELUWorkspaceLen(rows, 4*c.dim))
	if c.on[useAttention] {
		floats = max(floats, rows*c.heads)
	} else {
		floats = max(floats, 2*c.context*c.context)
	}
	b[workspace] = 4 * int64(floats)
	return b, nil
}

// computeType returns the type of weights and activations.
func computeType(on techniques, low snug.DType) snug.DType {
	if on[useAMP] {
		return low
	}
	return snug.F32
}
