package quant8

import (
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/optim"
)

// factorsJob makes the factors of a matrix after a step, and their roots, from the factors before it and the
// sums of squareSumsJob.
type factorsJob struct {
	both, roots, old snug.View // float32: of rows, and behind them of columns
	sums             snug.View
	shape
	parts
	h optim.Hyper
}

func (j *factorsJob) Kernel() string { return "quant8.factors" }

func (j *factorsJob) Operands(yield func(*driver.Mem)) {
	device.Each(yield, &j.both, &j.roots, &j.old, &j.sums)
}

func (j *factorsJob) Run() {
	both, all := j.both.Float32s(), doubles(j.sums)
	copy(both, j.old.Float32s())
	j.h.Average(both[:j.rows], all[:j.rows], j.cols)
	j.h.Average(both[j.rows:], all[j.behind(j.rows):][:j.cols], j.rows)
	j.h.Roots(j.roots.Float32s(), both, j.rows)
}

// behind returns the number of sums before those of columns.
func (p parts) behind(rows int) int { return p.strips * rows }

// stepFactoredThere is stepFactored on a device whose kernels have float64: they make the factors, and nothing waits for
// sums.
func (a *Optimizer) stepFactoredThere(dev *snug.Device, q *param, h optim.Hyper, j stepJob) error {
	w, sides := &a.work, q.rows+q.cols
	state, err := a.stateOn(dev, q)
	if err != nil {
		return err
	}
	factors, err := state.View().Slice(0, 4*sides)
	if err != nil {
		return err
	}
	both, err := w.floats.View().Slice(0, sides)
	if err != nil {
		return err
	}
	if j.roots, err = w.floats.View().Slice(sides, 2*sides); err != nil {
		return err
	}
	j.shape, j.rootLimit = q.shape, h.RootLimit()
	sums := w.sumsOf(q, h, &j)
	if err := device.Queue(dev, sums); err != nil {
		return err
	}
	old := device.As(factors, snug.F32)
	err = device.Queue(dev, factorsJob{both: both, roots: j.roots, old: old, sums: sums.all, shape: q.shape, parts: sums.parts, h: h})
	if err != nil {
		return err
	}
	if h, err = a.limit(dev, q, h, j); err != nil {
		return err
	}
	a.note(a.claimOf(q, 0, q.n), optim.Begun)
	if err := snug.Copy(old, both); err != nil {
		return err
	}
	j.prepare(h)
	return a.run(dev, q, 0, j)
}
