package main

import (
	"errors"
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/plan"
	"github.com/snug-ml/snug/quant8"
	"github.com/snug-ml/snug/remat"
)

// This file predicts what a run will take from its shapes alone, before
// anything is allocated. The run then measures how far off it was.

// network describes the model for package plan.
func (c config) network() plan.Model {
	m, err := plan.GPT{Name: c.name, Vocab: c.vocab, Dim: c.dim, Layers: c.layers, Heads: c.heads, Context: c.context}.Model()
	if err != nil {
		panic(err) // a preset is wrong
	}
	return m
}

// task describes the training. Everything counts as one memory, whose times are those of
// operations alone.
func (c config) task() plan.Task {
	const rate, fast = 1e12, 1e18
	return plan.Task{
		Model: c.network(), Batch: c.batch().Global, LossRows: c.lossRows, Chunk: c.chunk,
		Device: plan.Device{Name: "any", Unified: true, F32: rate, F16: rate, Bandwidth: fast, HostF32: rate, HostBandwidth: fast, Link: fast, DiskRate: fast},
	}
}

// way describes the techniques, but for what is computed again and what is paged.
func (c config) way() plan.Run {
	b := c.batch()
	r := plan.Run{Micro: b.Micro, Window: b.Window, Compute: c.policy.Compute, Masters: amp.FullMaster, StateBits: 32, Tiled: c.on[useAttention]}
	if c.on[useQuant8] {
		r.StateBits = 8
	}
	return r
}

// take returns the peak bytes of every component of a run.
func (c config) take(r plan.Run) plan.Bytes {
	p, err := c.task().Predict(r)
	if err != nil {
		panic(err) // a preset is wrong
	}
	return p.Peak[plan.OnDevice]
}

// parameters returns the number of parameters.
func (c config) parameters() int64 { return c.network().Parameters() }

// rule is the optimizer's.
var rule = quant8.AdamW{Beta2: 0.95, WeightDecay: 0.01}

// optimizerOptions are the same with and without 8-bit state but for the bits.
func (c config) optimizerOptions() quant8.Options {
	o := quant8.Options{Bits: 32, Chunk: c.chunk}
	if c.on[useQuant8] {
		o.Bits = 8
	}
	return o
}

// paged returns the bytes of master weights and of the optimizer's state, wherever
// they are.
func (c config) paged() int64 {
	b := c.take(c.way())
	return b[plan.Masters] + b[plan.State]
}

// hostLimit returns how many bytes of paged state stay in host memory: those that the
// user allows, or a share of all, and at least a few pages.
func (c config) hostLimit() int64 {
	if c.host > 0 {
		return c.host
	}
	return max(c.paged()/int64(c.hostShare), c.minHost())
}

// minHost is the bytes of a few pages.
func (c config) minHost() int64 { return 8 * 8 * int64(c.chunk) }

// costs returns what the halves of the layers take, see block.go.
func (c config) costs() *remat.Costs {
	costs, err := c.task().Costs(c.way())
	if err != nil {
		panic(err) // a preset is wrong
	}
	return &costs
}

// plan returns when each half of a layer is computed: under a limit as often as that
// wants, otherwise, with rematerialization, with the least memory for which none is
// computed more than twice.
func (c config) plan() (remat.Plan, error) {
	switch costs := *c.costs(); {
	case !c.on[useRemat]:
		return remat.KeepAll(costs)
	case c.limit > 0:
		return c.planUnder(c.limit-c.fixed()-c.lossBytes(), costs)
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
		return plan, &shortError{"activations are more than what is left", c.limit + short.Minimum - budget}
	}
	if err == nil && rep.Extra > plan.Stages && c.batch().Micro > 1 {
		err = fmt.Errorf("activations fit with %d more forward steps only: %w", rep.Extra, snug.ErrNoMemory)
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
func (c config) lossBytes() int64 { return 2 * 4 * int64(c.batch().Micro*c.context) }

// held is the run with what is paged where it is.
func (c config) held() plan.Run {
	r := c.way()
	if c.on[useOffload] {
		r.StateOn, r.Cache = plan.OnDisk, c.hostLimit()
	}
	return r
}

// fixed returns the peak bytes of all components but activations.
func (c config) fixed() int64 {
	b := c.take(c.held())
	return b.Total() - b[plan.Activations]
}

// predict returns the peak bytes of every component.
func (c config) predict() (b plan.Bytes, err error) {
	r := c.held()
	if r.Remat, err = c.plan(); err != nil {
		return b, err
	}
	return c.take(r), nil
}
