package plan

import (
	"cmp"
	"errors"
	"math"
	"slices"

	"github.com/snug-ml/snug/attention"
	"github.com/snug-ml/snug/fused"
	"github.com/snug-ml/snug/internal/saturate"
	"github.com/snug-ml/snug/remat"
)

// This file computes the activations, the workspace and the time of the chain.

// Costs returns the sizes and times of the layers of the chain for a micro-batch of r,
// for the planners of package remat: sizes in bytes, times in seconds. It uses Micro,
// Compute, Tiled and Tiles of r. Errors are the same as for [Task.Predict].
func (t Task) Costs(r Run) (remat.Costs, error) {
	t, err := t.checkWith(r)
	if err != nil {
		return remat.Costs{}, err
	}
	return t.costs(r, int64(r.Micro)), nil
}

// costs returns the Costs of a number of samples.
func (t Task) costs(r Run, samples int64) remat.Costs {
	elem := r.elem()
	c := remat.Costs{Input: samples * t.Model.Input * elem, Disk: remat.Rates{Write: t.Device.DiskRate, Read: t.Device.DiskRate}}
	for _, l := range t.Model.Layers {
		out := l.Output * elem
		kept := (l.Kept+t.adapted(l))*elem + 4*l.Stats + l.Attention.kept(r)
		forward, backward := t.seconds(l, r)
		inForward, inBackward := t.transients(l)
		cost := remat.Cost{
			Name:          l.Name,
			Output:        samples * out,
			Saved:         samples * (out + kept),
			ForwardExtra:  samples * (inForward*elem + 4*l.ForwardStats),
			BackwardExtra: samples * (inBackward*elem + 4*l.BackwardStats),
			ForwardTime:   float64(samples) * forward,
			BackwardTime:  float64(samples) * backward,
		}
		if tile := l.tileRows(r, samples); tile > 0 {
			inTile := l
			inTile.Forward, inTile.Adapters = l.Tiles.Forward, l.Tiles.Adapters
			inForward, _ = t.transients(inTile)
			cost.Saved = cost.Output
			cost.ForwardExtra = share(inForward*elem+4*l.ForwardStats, tile, l.Rows)
			cost.BackwardExtra = share(kept+inBackward*elem+4*l.BackwardStats, tile, l.Rows)
			cost.BackwardTime += cost.ForwardTime
		}
		for range l.repeat() {
			c.Stages = append(c.Stages, cost)
		}
	}
	return c
}

// tileRows returns the rows of the largest tile of a layer, 0 if it does not run in tiles.
func (l Layer) tileRows(r Run, samples int64) int64 {
	if r.Tiles <= 1 || l.Tiles.Whole == 0 || samples == 0 {
		return 0
	}
	rows := samples * int64(l.Rows)
	n := min(int64(r.Tiles), (rows-1)/int64(l.Tiles.Whole)+1)
	return (rows-1)/n + 1
}

// share returns what some rows take of the bytes of all rows of a sample.
func share(bytes, some int64, rows int) int64 {
	all := int64(rows)
	return saturate.Mul(bytes/all, some) + (bytes%all*some+all-1)/all
}

// transients returns the elements that a forward and a backward step of a layer hold for a sample.
func (t Task) transients(l Layer) (forward, backward int64) {
	forward, backward = l.Forward, l.Backward
	if t.Rank == 0 {
		return forward, backward
	}
	input := int64(0)
	for _, a := range l.Adapters {
		inner := int64(cmp.Or(a.Rows, l.Rows)) * int64(t.Rank)
		inForward, inBackward := a.Forward+inner, a.Backward+2*inner
		if t.frozenFirst() {
			inBackward = a.Backward - a.Gradient + int64(max(1, a.Shares)+1)*inner
		}
		if t.Dropout {
			inForward, inBackward = inForward+a.In, inBackward+a.In
		}
		if t.DoRA {
			inBackward += a.Out
			if a.Adds {
				inForward += a.Out
			}
		}
		forward, backward = max(forward, inForward), max(backward, inBackward)
	}
	if t.Dropout && len(l.Adapters) == 0 {
		for i, shape := range l.Params {
			if l.adapts(i) {
				input = max(input, int64(l.Rows)*int64(shape[1]))
			}
		}
	}
	return forward + input, backward + input
}

// adapted returns the elements that the adapters of a layer keep for a sample, unless they are
// computed again: for each adapter the product of its input with its first matrix, and with
// magnitudes the output before them.
func (t Task) adapted(l Layer) (n int64) {
	if len(l.Adapters) > 0 {
		return 0
	}
	for i, shape := range l.Params {
		if l.adapts(i) {
			n += int64(l.Rows) * (int64(t.Rank) + t.magnitudes(shape))
		}
	}
	return n
}

func (a Attention) tiled(r Run) bool { return a.Tiled || r.Tiled }

// kept returns the bytes that attention keeps for a sample: all probabilities in the
// compute type, or with tiles the logarithm of the sum of exponentials of each row, in
// float32 (Dao et al. 2022, "FlashAttention", arXiv:2205.14135).
func (a Attention) kept(r Run) int64 {
	rows := int64(a.Heads) * int64(a.Queries)
	if a.tiled(r) {
		return 4 * rows
	}
	return r.elem() * rows * a.columns()
}

// columns returns the number of scores in a row.
func (a Attention) columns() int64 {
	if a.Sinks {
		return int64(a.Keys) + 1
	}
	return int64(a.Keys)
}

// loss returns the loss as package transformer computes it.
func (t Task) loss() fused.CrossEntropy {
	h := t.Model.Head
	c := fused.CrossEntropy{Vocab: h.Classes, Cols: h.Cols, Chunk: t.LossRows, Tile: t.LossClasses}
	if c.Tile == 0 && !t.Device.Unified {
		c.Tile = h.Classes
	}
	return c
}

// fewestLossRows is the default of LossRows on a processor, and the fewest that Fit takes elsewhere.
const fewestLossRows = 128

// lossRows returns the default of LossRows, as package transformer has it on the CPU and on other devices.
func (t Task) lossRows() int {
	if t.Device.Unified {
		return fewestLossRows
	}
	return max(fewestLossRows, t.loss().DeviceChunk())
}

// workspaceBytes returns the float32 scratch of the layers and the loss. Only one of them
// works at a time. Attention with tiles takes a number for each row; without tiles it
// takes the scores of a head and their gradient.
func (t Task) workspaceBytes(r Run) int64 {
	h := t.Model.Head
	floats := int64(t.loss().WorkspaceLen(r.Micro * h.Rows))
	for _, l := range t.Model.Layers {
		rows, a := r.Micro*l.Rows, l.Attention
		floats = max(floats, int64(fused.LayerNormWorkspaceLen(rows, l.LayerNorm)), int64(fused.RMSNormWorkspaceLen(rows, l.RMSNorm)),
			int64(fused.BiasAddWorkspaceLen(rows, l.Bias)), int64(fused.BiasGELUWorkspaceLen(rows, l.GELU)),
			int64(fused.RMSNormWorkspaceLen(r.Micro*max(a.Heads*a.Queries, l.HeadRows), l.HeadNorm)))
		if n := l.HeadScale; n > 0 {
			floats = max(floats, 4*int64(n)+int64(fused.BatchNormWorkspaceLen(fused.Image{Batch: rows, Channels: n, Positions: 1})))
		}
		for _, c := range l.Convs {
			floats = max(floats, int64(c.workspaceLen(r.Micro*max(1, t.Model.Sequences))))
		}
		switch {
		case a.Heads == 0:
		case a.tiled(r):
			c := attention.Options{Batch: r.Micro, Heads: a.Heads, SeqQ: a.Queries, SeqK: a.Keys, Dim: a.Dim}
			floats = max(floats, int64(c.WorkspaceLen()))
		default:
			floats = max(floats, int64(a.Queries)*(int64(a.Keys)+a.columns()))
		}
	}
	own, distill := t.Teacher.workspaceBytes(t, r)
	if floats = max(floats, distill/4); h.LogProbs {
		floats += 3 * int64(r.Micro) * int64(h.Rows)
	}
	return 4*floats + own
}

// chainUse is what a plan takes: bytes of activations on the device and of checkpoints on disk, and the seconds of its
// forward and backward steps.
type chainUse struct {
	bytes, disk int64
	seconds     float64
}

// peak returns what a plan takes on costs. While the loss works it holds the statistics of the last
// norm in addition to the gradient that it makes.
func (t Task) peak(c remat.Costs, plan remat.Plan, samples int64) (u chainUse, err error) {
	if t.forwardOnly() {
		return forwardUse(c), nil
	}
	if plan, err = plan.For(len(c.Stages)); err != nil {
		return u, err
	}
	report, err := plan.Simulate(c)
	if err != nil {
		return u, err
	}
	u = chainUse{report.Peak, report.Disk, report.Time}
	for i, op := range plan.Ops {
		if op.Stage == plan.Stages-1 {
			u.bytes = max(u.bytes, report.Timeline[i].Held+t.lossBytes(c, samples))
			break
		}
	}
	return u, nil
}

// forwardUse returns the memory and the time of a step that consists of two forward passes. A stage holds its input,
// its output and its transient bytes.
func forwardUse(c remat.Costs) (u chainUse) {
	input := c.Input
	for _, s := range c.Stages {
		u.bytes = max(u.bytes, input+s.Output+s.ForwardExtra)
		u.seconds += 2 * s.ForwardTime
		input = s.Output
	}
	return u
}

// CheckpointBytes, 32 MiB, is the host memory for checkpoints on their way to the disk and back: the HostLimit, in
// bytes, of the Store of package offload that holds them.
const CheckpointBytes = 32 << 20

// CheckpointPinned, 16 MiB, is the pinned host memory, in bytes, through which a device that is not unified copies
// checkpoints in parallel with its kernels.
const CheckpointPinned = 16 << 20

// way is a plan of recomputation, with its bytes for some samples and its work for one.
type way struct {
	plan        remat.Plan
	bytes, disk int64
	work
}

// unit returns the samples for which chains are planned. All sizes of a chain are proportional to the samples, unless
// there are tiles, whose rows are not.
func (r Run) unit() int64 {
	if r.Tiles > 1 {
		return int64(r.Micro)
	}
	return 1
}

// ways returns plans for the chain, from the fastest, which computes nothing again, to
// the plan with the smallest peak. Each plan has a smaller peak than all faster plans.
// The plans do not depend on a limit. Bytes are those of r.unit() samples.
func (t Task) ways(r Run, plans []remat.Plan) ([]way, error) {
	n := r.unit()
	c := t.costs(r, n)
	all := make([]way, 0, len(plans))
	for _, p := range plans {
		u, err := t.peak(c, p, n)
		if err != nil {
			return nil, err
		}
		all = append(all, way{p, u.bytes, u.disk, work{u.seconds/float64(n) + t.lossSeconds(r), forwardsAgain(p)}})
	}
	slices.SortStableFunc(all, func(a, b way) int {
		return cmp.Or(cmp.Compare(a.seconds, b.seconds), cmp.Compare(a.disk, b.disk), cmp.Compare(a.bytes, b.bytes))
	})
	best, smallest, onDevice := all[:0], int64(math.MaxInt64), int64(math.MaxInt64)
	for _, w := range all {
		if w.bytes < smallest || w.disk == 0 && w.bytes < onDevice {
			best = append(best, w)
		}
		smallest = min(smallest, w.bytes)
		if w.disk == 0 {
			onDevice = min(onDevice, w.bytes)
		}
	}
	return best, nil
}

// plans returns plans for a chain: keep all first, then the plans of package remat's
// planners, and if it pages, plans with checkpoints on the disk.
func plans(c remat.Costs, pages bool) ([]remat.Plan, error) {
	var all []remat.Plan
	add := func(p remat.Plan, err error) error {
		all = append(all, p)
		return err
	}
	n := len(c.Stages)
	for k := 1; k <= n; k += max(1, k/4) {
		if err := add(remat.Every(c, k)); err != nil {
			return nil, err
		}
		if p, err := remat.Revolve(c, k); err == nil { // with few slots there can be too many operations
			all = append(all, p)
		}
	}
	if err := add(remat.Chen(c)); err != nil {
		return nil, err
	}
	if n <= rotorStages {
		if err := rotors(c, add); err != nil {
			return nil, err
		}
	}
	if !pages {
		return all, nil
	}
	for _, slots := range []int{0, 1, 2, 4, 8} {
		if slots <= n {
			if p, err := remat.HRevolve(c, slots, n, remat.Disk); err == nil { // as for Revolve
				all = append(all, p)
			}
		}
	}
	return all, nil
}

// lossSeconds returns the time of the loss for a sample: a product, two for its gradients, and the
// first product once more where the vocabulary is cut into tiles, and for log-probabilities.
func (t Task) lossSeconds(r Run) float64 {
	h, flops := t.Model.Head, 6.0
	if t.loss().Tiles() > 1 || h.LogProbs {
		flops = 8
	}
	return t.Teacher.seconds(t, r) + flops*float64(h.Rows)*float64(h.Cols)*float64(h.Classes)/t.Device.rate(r.Compute)
}

// seconds returns the time of a forward and of a backward step for a sample. Products
// take two operations for each multiply-add, and twice as many in the backward step; half
// of the scores are masked in causal attention, and more by a window; attention with tiles computes them again
// in its backward step. Attention without tiles writes and reads float32 scores, and
// probabilities in the compute type.
func (t Task) seconds(l Layer, r Run) (forward, backward float64) {
	a := l.Attention
	scores := a.scores()
	dots := 2 * scores * float64(a.Dim)
	if a.Causal {
		dots /= 2
	}
	if a.Window > 0 {
		dots = min(dots, 2*float64(a.Heads)*float64(a.Queries)*float64(a.Window)*float64(a.Dim))
	}
	rate := t.Device.rate(r.Compute)
	macs := float64(l.MACs)
	again := 2.0
	if t.Rank > 0 {
		again = 1 // no gradients of frozen weights
	}
	forward = 2 * (macs + dots) / rate
	backward = 2 * (again*macs + 2*dots) / rate
	if a.tiled(r) {
		return forward, backward + dots/rate
	}
	moved := scores * float64(2*4+2*r.elem()) / t.Device.Bandwidth
	return forward + moved, backward + 2*moved
}

const (
	rotorStages  = 128 // stages of the longest chain that Rotor plans here
	rotorBudgets = 8
)

// rotors adds the plans of Rotor for budgets in geometric progression, from the smallest
// budget that has a plan to the peak of keeping all. Sizes are rounded, so that few
// amounts of memory occur and Rotor is quick.
func rotors(c remat.Costs, add func(remat.Plan, error) error) error {
	c = rounded(c)
	_, err := remat.Rotor(c, 0)
	var short *remat.BudgetError
	if !errors.As(err, &short) {
		return err
	}
	all, err := remat.KeepAll(c)
	if err != nil {
		return err
	}
	report, err := all.Simulate(c)
	if err != nil {
		return err
	}
	low, high := float64(max(1, short.Minimum)), float64(report.Peak)
	for i := range rotorBudgets {
		budget := max(short.Minimum, int64(low*math.Pow(high/low, float64(i)/rotorBudgets)))
		if err := add(remat.Rotor(c, budget)); err != nil {
			return err
		}
	}
	return nil
}

// rounded returns c with sizes in halves of the largest output.
func rounded(c remat.Costs) remat.Costs {
	unit := int64(2)
	for _, s := range c.Stages {
		unit = max(unit, s.Output)
	}
	unit /= 2
	nearest := func(n int64) int64 { return (n + unit/2) / unit }
	r := remat.Costs{Input: nearest(c.Input)}
	for _, s := range c.Stages {
		out := nearest(s.Output)
		s.Output, s.Saved = out, max(out, nearest(s.Saved))
		s.ForwardExtra, s.BackwardExtra = nearest(s.ForwardExtra), nearest(s.BackwardExtra)
		r.Stages = append(r.Stages, s)
	}
	return r
}
