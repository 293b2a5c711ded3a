package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/accum"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/fused"
	"github.com/snug-ml/snug/internal/console"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/plan"
	"github.com/snug-ml/snug/remat"
)

// This file predicts what a run will take from its shapes alone, before
// anything is allocated. The run then measures how far off it was.

// task describes the training to package plan. Everything counts as one memory, whose times are
// those of operations alone.
func (c config) task() plan.Task {
	m, err := c.architecture().Plan(c.context)
	must(err)
	m.Name = c.name
	for i := range m.Layers {
		m.Layers[i].Attention.Tiled = c.on[useAttention]
	}
	const rate, fast = 1e12, 1e18
	return plan.Task{
		Ranks: max(1, c.ranks), Bucket: bucket, Model: m, Batch: c.rankBatch(), LossRows: c.lossRows, Chunk: c.chunk, Optimizer: c.rule, OptimizerRank: c.lowRank(),
		Device: plan.Device{Name: "any", Unified: true, F32: rate, F16: rate, Bandwidth: fast, HostF32: rate, HostBandwidth: fast, Link: fast, DiskRate: fast, Network: fast},
	}
}

// rankBatch returns the sequences of a step of a rank.
func (c config) rankBatch() int {
	b := c.batch()
	if c.ranks > 1 {
		return b.Micro * b.Window
	}
	return b.Global
}

// must panics on an error: a preset is wrong.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

// techniqueRun returns the run of the techniques, without recomputation and paging.
func (c config) techniqueRun() plan.Run {
	b := c.batch()
	return plan.Run{Micro: b.Micro, Window: b.Window, Compute: c.policy.Compute, Masters: amp.FullMaster, StateBits: c.stateBits(), Shard: c.shard}
}

// pagedRun returns that run with its paged state on the disk.
func (c config) pagedRun() plan.Run {
	r := c.techniqueRun()
	if c.on[useOffload] {
		r.StateOn, r.Cache = meter.OnDisk, c.hostLimit()
	}
	return r
}

// peakOf returns the peak bytes of every component of a run.
func (c config) peakOf(r plan.Run) meter.Bytes {
	p, err := c.task().Predict(r)
	must(err)
	return p.Peak[meter.OnDevice]
}

// predict returns the run that is made, and the peak bytes of every component.
func (c config) predict() (r plan.Run, b meter.Bytes, err error) {
	r = c.pagedRun()
	if r.Remat, err = c.plan(); err != nil {
		return r, b, err
	}
	return r, c.peakOf(r), nil
}

// paged returns the bytes of master weights and of the optimizer's state, wherever
// they are.
func (c config) paged() int64 {
	b := c.peakOf(c.techniqueRun())
	return b[meter.Masters] + b[meter.State]
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

// plan returns when each half of a layer is computed: under a limit as often as that
// wants, otherwise, with rematerialization, with the least memory for which none is
// computed more than twice.
func (c config) plan() (p remat.Plan, err error) {
	costs, err := c.task().Costs(c.techniqueRun())
	must(err)
	switch {
	case !c.on[useRemat]:
		return remat.KeepAll(costs)
	case c.limit == 0:
		p, _, err = remat.Planner{Method: remat.MethodRotor}.Smallest(costs, len(costs.Stages))
		return p, err
	}
	// The loss holds the statistics of the last norm while its gradient is there.
	b := c.peakOf(c.pagedRun())
	budget := c.limit - (b.Total() - b[meter.Activations]) - 2*4*int64(c.batch().Micro*c.context)
	p, rep, err := remat.Planner{}.Plan(costs, max(0, budget))
	var short *remat.BudgetError
	if errors.As(err, &short) {
		return p, &remat.BudgetError{Budget: c.limit, Minimum: c.limit + short.Minimum - budget}
	}
	if err == nil && rep.Extra > p.Stages && c.batch().Micro > 1 { // smaller micro-batches are faster
		err = fmt.Errorf("activations fit with %d more forward steps only: %w", rep.Extra, snug.ErrNoMemory)
	}
	return p, err
}

// fitMemory sets the largest micro-batch whose prediction stays under the limit. The batch of a step
// stays what it is.
func (o *options) fitMemory() error {
	c, all, least := o.config, o.batch().Global, int64(0)
	c.limit = o.memory
	fits := func(b accum.Batch) error {
		c.fit = b
		_, bytes, err := c.predict()
		if least = bytes.Total(); err == nil && least > c.limit {
			err = snug.ErrNoMemory
		}
		if short := new(remat.BudgetError); errors.As(err, &short) {
			least = short.Minimum
		}
		return err
	}
	found, err := accum.FindMicroBatch(all, 1, all, fits)
	if err != nil {
		if err := fits(accum.Batch{Global: all, Micro: 1, Window: all, Ranks: 1}); !errors.Is(err, snug.ErrNoMemory) {
			return err
		}
		return fmt.Errorf("-memory %s: a micro-batch of one sequence takes at least %s", meter.FormatBytes(o.memory), meter.FormatBytesUp(least))
	}
	o.fit, o.limit = found, o.memory
	return nil
}

// fitLossRows sets the rows of logits that exist at a time on a device other than the CPU: as many as suit it, or under a
// limit as many as fit beside the micro-batch and the recomputation that fewer rows leave room for.
func (o *options) fitLossRows() error {
	c := o.config
	most := fused.CrossEntropy{Vocab: c.vocab, Cols: c.dim}.DeviceChunk()
	fewest, _, err := c.predict()
	if err != nil {
		return err
	}
	for c.lossRows = most; c.lossRows > o.lossRows; c.lossRows /= 2 {
		r, bytes, err := c.predict()
		if c.limit == 0 || err == nil && bytes.Total() <= c.limit && len(r.Remat.Ops) == len(fewest.Remat.Ops) {
			o.lossRows = c.lossRows
			return err
		}
	}
	return nil
}

// printPrediction prints what the run will take, with its techniques and
// without any.
func printPrediction(w io.Writer, c config) error {
	_, with, err := c.predict()
	if err != nil {
		return err
	}
	plain := c
	plain.on = techniques{}
	plain.policy = policyOf(plain.on, snug.F32)
	_, without, err := plain.predict()
	if err != nil {
		return err
	}
	b := c.batch()
	fmt.Fprintf(w, "%s: %d parameters, %d layers of width %d, %s of %d tokens a step, in %s of at most %d\n",
		c.name, c.task().Model.Parameters(), c.layers, c.dim, console.Count(b.Global, "sequence"), c.context, console.Count(b.Window, "micro-batch"), b.Micro)
	if c.ranks > 1 {
		fmt.Fprintf(w, "on each of %d ranks; the prediction is of one\n", c.ranks)
	}
	fmt.Fprintf(w, "techniques: %v\n\npredicted peak memory\n", c.on)
	t := console.Table(w)
	row := func(name string, without, with int64) {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t\n", name, console.MiB(without), console.MiB(with), console.Percent(with, without))
	}
	fmt.Fprintf(t, "\twithout\twith\tshare\t\n")
	for c := range components {
		row(c.String(), without[c], with[c])
	}
	row("total", without.Total(), with.Total())
	if c.on[useOffload] {
		defer fmt.Fprintf(w, "master weights and optimizer state are %s, paged to disk: %s stay in host memory\n\n",
			console.MiB(c.paged()), console.MiB(min(c.hostLimit(), c.paged())))
	}
	return t.Flush()
}

const (
	components  = meter.Allowance // what this program has: a pool loses nothing
	gcPercent   = 25              // growth of the heap before the next collection
	mappedBytes = 64 << 10        // of a page that package offload has outside of Go's heap
)

// residence is the process before there is a model, the peak of its resident memory until then, and
// the bytes of what is allocated.
type residence struct {
	process    plan.Process
	peak, heap int64
}

// resident predicts the peak of the process. Small pages of two sizes, of master weights and of
// state, take turns in Go's heap, and wait for a collection.
func (c config) resident(base residence) (int64, error) {
	r, counted, err := c.predict()
	if err != nil {
		return 0, err
	}
	task := c.task()
	task.Process = &base.process
	n, err := task.Resident(r)
	if c.on[useOffload] && c.on[useAMP] && 4*c.chunk < mappedBytes {
		n += (base.heap + counted.Total()) * gcPercent / 100
	}
	return max(base.peak, n), err
}
