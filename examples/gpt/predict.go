package main

import (
	"errors"
	"fmt"

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

// hostLimit returns how many bytes of paged state stay in host memory: those that the
// user allows, or a share of all, and at least a few pages.
func (c config) hostLimit() int64 {
	if c.host > 0 {
		return c.host
	}
	master, state := c.stateBytes()
	return max((master+state)/int64(c.hostShare), c.leastHost())
}

// leastHost is the bytes of a few pages.
func (c config) leastHost() int64 { return 8 * 8 * int64(c.chunk) }

// costs returns what the halves of the layers take, see block.go.
func (c config) costs() *remat.Costs {
	costs := &remat.Costs{Input: c.sizes().width}
	for range c.layers {
		costs.Stages = append(costs.Stages, attentionHalf{}.costs(c), perceptronHalf{}.costs(c))
	}
	return costs
}

// plan returns when each half of a layer is computed: under a limit as often as that
// wants, otherwise, with rematerialization, with the least memory for which none is
// computed more than twice.
func (c config) plan() (remat.Plan, error) {
	switch costs := *c.costs(); {
	case !c.on[useRemat]:
		return remat.KeepAll(costs)
	case c.limit > 0:
		return c.planUnder(c.limit-c.fixed().total()-c.lossBytes(), costs)
	default:
		return planTwice(costs)
	}
}

// planUnder returns the fastest plan for activations under a budget. Unless a
// micro-batch is one sequence, a plan with more than one extra forward step for a
// stage counts as none: smaller micro-batches are faster.
func (c config) planUnder(budget int64, costs remat.Costs) (remat.Plan, error) {
	plan, rep, err := remat.Planner{}.Plan(costs, max(0, budget))
	var short *remat.BudgetError
	if errors.As(err, &short) {
		return plan, fmt.Errorf("it takes at least %d bytes: %w", c.limit+short.Smallest-budget, err)
	}
	if err == nil && rep.Extra > plan.Stages && c.batch().Micro > 1 {
		err = fmt.Errorf("activations fit in %d bytes with %d more forward steps: %w", budget, rep.Extra, snug.ErrNoMemory)
	}
	return plan, err
}

// planTwice returns the plan with the least memory in which as many forward steps
// are extra as there are stages at most.
func planTwice(costs remat.Costs) (remat.Plan, error) {
	planner := remat.Planner{Method: remat.MethodRotor}
	best, err := remat.KeepAll(costs)
	if err != nil {
		return best, err
	}
	all, err := best.Simulate(costs)
	if err != nil {
		return best, err
	}
	low, high := int64(0), all.Peak // budgets: too small, enough
	for high-low > 1 {
		budget := low + (high-low)/2
		plan, rep, err := planner.Plan(costs, budget)
		switch {
		case errors.Is(err, snug.ErrNoMemory) || err == nil && rep.Extra > plan.Stages:
			low = budget
		case err != nil:
			return best, err
		default:
			best, high = plan, rep.Peak
		}
	}
	return best, nil
}

// lossBytes returns what the loss holds beside the gradient that it returns: the
// statistics of the last norm.
func (c config) lossBytes() int64 { return 2 * 4 * c.sizes().rows }

// fixed returns the peak bytes of all components but activations.
func (c config) fixed() bytesBy {
	var b bytesBy
	s := c.sizes()
	n := c.parameters()
	b[weights] = n * s.elem
	b[gradients] = 4 * n
	b[masters], b[optimizer] = c.stateBytes()
	if c.on[useOffload] { // both are pages of one store
		b[masters], b[optimizer] = 0, min(c.hostLimit(), b[masters]+b[optimizer])
	}
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
	return b
}

// predict returns the peak bytes of every component.
func (c config) predict() (bytesBy, error) {
	b := c.fixed()
	plan, err := c.plan()
	if err != nil {
		return b, err
	}
	rep, err := plan.Simulate(*c.costs())
	b[activation] = rep.Peak
	return b, err
}

// computeType returns the type of weights and activations.
func computeType(on techniques, low snug.DType) snug.DType {
	if on[useAMP] {
		return low
	}
	return snug.F32
}
