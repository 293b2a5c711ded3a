package remat

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/snug-ml/snug"
)

// maxRuns limits the runs of MeasureCosts, whose times take memory.
const maxRuns = 1 << 16

// MeasureCosts runs forward and backward passes of the chain for x, one to warm up
// and then as many as runs says, and returns the costs of the stages.
//
// Sizes come from c.Bytes and c.SavedBytes. Times are in seconds, medians over the runs: BackwardTime of Backward,
// ForwardTime the mean of Forward and ForwardSave, or for the last stage the time of ForwardSave, because plans run it
// no other way. Work that a stage leaves to a device in the background is not in its time: a stage that is measured
// waits for it. With a Monitor transient bytes are measured, the most of all runs. Without one they are taken from
// c.Costs, which is filled before where stages have them, and are at least those of [Tiles]. Rates and the sizes and
// times of packing are taken from c.Costs too, and 0 if that is nil. So is a name, unless the stage has a String method.
//
// It holds one saved set at a time and few outputs: the plan is [Revolve] with the
// smallest number of slots, about √(2n), with which no stage runs forward more than
// three times. Beside that it takes 8 bytes for every step of a stage.
//
// As in [Chain.Run], the caller keeps x, and everything else is released exactly
// once, the gradient with respect to x too. loss is called once in every pass. What
// the passes add to gradients of parameters is for the caller to clear: where stages add to
// a window of package accum, call its Begin, then MeasureCosts, then its Reset.
//
// The errors are the errors of [Chain.Run]. The error also wraps [snug.ErrConfig]
// when runs is below 1 or above 65,536, the chain is too long for a plan of 2^22 operations or the
// sizes do not describe a chain (see [Costs.Validate]), and [snug.ErrShape] when a
// size is not the same in all runs, or a gradient is
// larger than its activation. A smaller gradient counts like its activation.
func (c *Chain[A, S]) MeasureCosts(ctx context.Context, x A, loss func(y A) (dy A, err error), runs int) (Costs, error) {
	return c.measureCosts(ctx, x, loss, runs, time.Now)
}

func (c *Chain[A, S]) measureCosts(ctx context.Context, x A, loss func(A) (A, error), runs int, now func() time.Time) (Costs, error) {
	if err := c.checkStages(); err != nil {
		return Costs{}, err
	}
	n := len(c.Stages)
	plan, err := Revolve(Costs{Stages: make([]Cost, n)}, twoSweeps(n))
	if err != nil {
		return Costs{}, err
	}
	if _, err := c.check(plan); err != nil {
		return Costs{}, err
	}
	if runs < 1 || runs > maxRuns {
		return Costs{}, fmt.Errorf("remat: %d runs to measure: want 1 to %d: %w", runs, maxRuns, snug.ErrConfig)
	}

	m := newMeter(c, now)
	sizes, err := m.pass(ctx, plan, x, loss) // all but those that are 0
	if err != nil {
		return Costs{}, err
	}
	for _, s := range sizes {
		m.setSize(s)
	}
	clear(m.times)
	for range runs {
		differ, err := m.pass(ctx, plan, x, loss)
		if err != nil {
			return Costs{}, err
		}
		for _, s := range differ {
			if s.Value.transient() {
				m.setSize(s)
			} else if err := checkSize(s); err != nil {
				return Costs{}, err
			}
		}
	}
	m.setTimes()
	return m.costs, nil
}

// twoSweeps returns the smallest number of slots for which Revolve runs no stage
// forward more than three times: twice to move on and once to save.
func twoSweeps(n int) int {
	slots := 1
	for int64(slots+2)*int64(slots+1)/2 < int64(n) {
		slots++
	}
	return slots
}

// meter is a chain whose stages take their time.
type meter[A, S any] struct {
	chain Chain[A, S]
	times []stageTimes
	costs Costs // of the chain, as far as known
}

// stageTimes are the times in seconds of the steps of one stage.
type stageTimes struct{ forward, forwardSave, backward []float64 }

// newMeter returns the meter, with the costs that are not measured.
func newMeter[A, S any](c *Chain[A, S], now func() time.Time) *meter[A, S] {
	n := len(c.Stages)
	m := &meter[A, S]{chain: *c, times: make([]stageTimes, n), costs: Costs{Stages: make([]Cost, n)}}
	m.chain.Stages = make([]Stage[A, S], n)
	m.chain.Costs = &m.costs
	if c.Costs != nil {
		m.costs.Host, m.costs.Disk = c.Costs.Host, c.Costs.Disk
	}
	for i, stage := range c.Stages {
		m.chain.Stages[i] = timedStage[A, S]{stage, &m.times[i], now}
		s := &m.costs.Stages[i]
		if c.Costs != nil {
			*s = c.Costs.Stages[i]
			s.Output, s.Saved, s.ForwardTime, s.BackwardTime = 0, 0, 0, 0
			if c.Monitor != nil {
				s.ForwardExtra, s.BackwardExtra = 0, 0
			}
		}
		if name := stageName(stage); name != "" {
			s.Name = name
		}
	}
	return m
}

// pass runs the plan and returns the values whose sizes differ from the costs.
func (m *meter[A, S]) pass(ctx context.Context, plan Plan, x A, loss func(A) (A, error)) ([]Mismatch, error) {
	dx, rep, err := m.chain.Run(ctx, plan, x, loss)
	if err != nil {
		return nil, err
	}
	m.chain.release(dx)
	return rep.Mismatches, nil
}

// setSize sets the measured size of a value in the costs, if they have one.
func (m *meter[A, S]) setSize(s Mismatch) {
	switch {
	case s.Value == SavedSet:
		m.costs.Stages[s.Index].Saved = s.Measured
	case s.Value == ForwardTransient:
		m.costs.Stages[s.Index].ForwardExtra = s.Measured
	case s.Value == BackwardTransient:
		m.costs.Stages[s.Index].BackwardExtra = s.Measured
	case s.Value == Activation && s.Index == 0:
		m.costs.Input = s.Measured
	case s.Value == Activation:
		m.costs.Stages[s.Index-1].Output = s.Measured
	}
}

// checkSize returns an error unless the value whose size differs from the costs is a gradient of smaller size.
func checkSize(s Mismatch) error {
	switch {
	case s.Value != Gradient:
		return fmt.Errorf("remat: %v%d has %d bytes, and in a run before %d: want one size to measure: %w", s.Value, s.Index, s.Measured, s.Declared, snug.ErrShape)
	case s.Measured > s.Declared:
		return fmt.Errorf("remat: gradient d%d has %d bytes, its activation %d: want no more than that: %w", s.Index, s.Measured, s.Declared, snug.ErrShape)
	}
	return nil
}

func (m *meter[A, S]) setTimes() {
	for i := range m.times {
		t, s := &m.times[i], &m.costs.Stages[i]
		s.ForwardTime = median(t.forwardSave)
		if len(t.forward) > 0 {
			s.ForwardTime = (s.ForwardTime + median(t.forward)) / 2
		}
		s.BackwardTime = median(t.backward)
	}
}

// stageName returns the String of a stage or of the stage that a loop repeats.
func stageName[A, S any](s Stage[A, S]) string {
	switch s := s.(type) {
	case iterated[A, S]:
		return stageName(s.Stage)
	case fmt.Stringer:
		return s.String()
	}
	return ""
}

// median sorts times, at least one.
func median(times []float64) float64 {
	slices.Sort(times)
	half := len(times) / 2
	if len(times)%2 == 1 {
		return times[half]
	}
	return (times[half-1] + times[half]) / 2
}

// timedStage writes down how long the steps of a stage take.
type timedStage[A, S any] struct {
	stage Stage[A, S]
	times *stageTimes
	now   func() time.Time
}

func (t timedStage[A, S]) Forward(ctx context.Context, x A) (A, error) {
	begin := t.now()
	y, err := t.stage.Forward(ctx, x)
	t.times.forward = append(t.times.forward, t.now().Sub(begin).Seconds())
	return y, err
}

func (t timedStage[A, S]) ForwardSave(ctx context.Context, x A) (A, S, error) {
	begin := t.now()
	y, s, err := t.stage.ForwardSave(ctx, x)
	t.times.forwardSave = append(t.times.forwardSave, t.now().Sub(begin).Seconds())
	return y, s, err
}

func (t timedStage[A, S]) Backward(ctx context.Context, x A, s S, dy A) (A, error) {
	begin := t.now()
	dx, err := t.stage.Backward(ctx, x, s, dy)
	t.times.backward = append(t.times.backward, t.now().Sub(begin).Seconds())
	return dx, err
}
