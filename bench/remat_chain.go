package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/snug-ml/snug/remat"
)

// tensorPool hands out tensors, uses freed ones again, and counts the bytes of
// those that are in use.
type tensorPool struct {
	free       map[int][][]float32 // by length
	freeSaved  []*saved
	held, peak int64
}

func (p *tensorPool) get(n int) (t []float32) {
	p.held += int64(4 * n)
	p.peak = max(p.peak, p.held)
	list := p.free[n]
	if len(list) == 0 {
		return make([]float32, n)
	}
	p.free[n] = list[:len(list)-1]
	return list[len(list)-1]
}

func (p *tensorPool) put(t []float32) {
	p.held -= int64(4 * len(t))
	p.free[len(t)] = append(p.free[len(t)], t)
}

// getSaved returns tensors of the given lengths.
func (p *tensorPool) getSaved(lens []int) (s *saved) {
	if last := len(p.freeSaved) - 1; last >= 0 {
		s, p.freeSaved = p.freeSaved[last], p.freeSaved[:last]
	} else {
		s = new(saved)
	}
	for i, n := range lens {
		s[i] = p.get(n)
	}
	return s
}

func (p *tensorPool) putSaved(s *saved) {
	for i, t := range s {
		if t != nil {
			p.put(t)
			s[i] = nil
		}
	}
	p.freeSaved = append(p.freeSaved, s)
}

// stage is a sublayer whose values come from the pool. What passes within it lies
// in memory of its own.
type stage struct {
	sublayer
	pool    *tensorPool
	shape   []int
	scratch *saved    // for what a forward pass does not keep, and the output while it runs
	dy      []float32 // a copy of the output's gradient where that of the input is larger
}

func (s *stage) Forward(_ context.Context, x []float32) ([]float32, error) {
	y := s.pool.get(s.shape[0])
	s.scratch[0] = y
	if err := s.forward(x, s.scratch, true); err != nil {
		s.pool.put(y)
		return nil, err
	}
	return y, nil
}

func (s *stage) ForwardSave(_ context.Context, x []float32) ([]float32, *saved, error) {
	kept := s.pool.getSaved(s.shape)
	if err := s.forward(x, kept, true); err != nil {
		s.pool.putSaved(kept)
		return nil, nil, err
	}
	return kept[0], kept, nil
}

// Resave leaves out the last product.
func (s *stage) Resave(_ context.Context, x []float32) (*saved, error) {
	kept := s.pool.getSaved(s.shape)
	if err := s.forward(x, kept, false); err != nil {
		s.pool.putSaved(kept)
		return nil, err
	}
	return kept, nil
}

// Backward puts dx where dy is, or, where it is larger, in its place.
func (s *stage) Backward(_ context.Context, x []float32, kept *saved, dy []float32) ([]float32, error) {
	dx := dy
	if len(x) != len(dy) {
		copy(s.dy, dy)
		s.pool.put(dy)
		dx, dy = s.pool.get(len(x)), s.dy
	}
	if err := s.backward(dx, dy, x, kept); err != nil {
		s.pool.put(dx)
		return nil, err
	}
	return dx, nil
}

// trainable is a chain of stages with an input and the loss ½Σy².
type trainable struct {
	remat.Chain[[]float32, *saved]
	pool     *tensorPool
	layers   []sublayer
	x        []float32
	dx       []float32 // of the last pass
	lossGrad []float32 // for the gradient of the loss, reserved for a pass
	loss     func(y []float32) (dy []float32, err error)
}

// newTrainable returns a chain for an input of n random elements.
func newTrainable(n int, layers []sublayer) *trainable {
	t := &trainable{pool: &tensorPool{free: map[int][][]float32{}}, layers: layers, dx: make([]float32, n)}
	t.Bytes = func(a []float32) int64 { return int64(4 * len(a)) }
	t.SavedBytes = func(s *saved) (sum int64) {
		for _, tensor := range s {
			sum += int64(4 * len(tensor))
		}
		return sum
	}
	t.Release, t.ReleaseSaved = t.pool.put, t.pool.putSaved
	scratches := map[string]*saved{}
	for _, l := range layers {
		s := &stage{sublayer: l, pool: t.pool, shape: l.sizes(), scratch: scratches[l.String()]}
		if s.scratch == nil {
			s.scratch = new(saved)
			for i, n := range s.shape[1:] {
				s.scratch[i+1] = make([]float32, n)
			}
			scratches[l.String()] = s.scratch
		}
		if s.shape[0] != n {
			s.dy = make([]float32, s.shape[0])
		}
		n = s.shape[0]
		t.Stages = append(t.Stages, s)
	}
	t.loss = t.gradient
	r := rand.New(rand.NewPCG(3, uint64(len(layers))))
	t.x = t.pool.get(len(t.dx))
	for i := range t.x {
		t.x[i] = float32(r.NormFloat64())
	}
	return t
}

// gradient returns the gradient of the loss, which is y.
func (t *trainable) gradient(y []float32) ([]float32, error) {
	dy := t.lossGrad
	t.lossGrad = nil
	if dy == nil {
		dy = t.pool.get(len(y))
	}
	copy(dy, y)
	return dy, nil
}

// measureCosts measures chains in turn, as often as runs says, and returns the costs of
// their stages. Equal stages of a chain have equal costs: the medians over them and over
// the runs. The totals of two chains have the median of their ratios in the runs, so that
// a machine whose speed changes in between favours neither.
func measureCosts(ctx context.Context, runs int, chains ...*trainable) ([]remat.Costs, error) {
	costs, times, ratios := make([]remat.Costs, len(chains)), make([]stepTimes, len(chains)), make([][]float64, len(chains))
	for range runs {
		first := 0.0
		for i, t := range chains {
			c, err := t.MeasureCosts(ctx, t.x, t.loss, 1)
			if err != nil {
				return nil, err
			}
			if i == 0 {
				first = totalTime(c)
			}
			costs[i], ratios[i] = c, append(ratios[i], totalTime(c)/first)
			times[i].add(c)
		}
	}
	for i, c := range costs {
		times[i].set(c, 1)
		times[i].set(c, median(ratios[i])*totalTime(costs[0])/totalTime(c))
	}
	return costs, nil
}

// totalTime returns the time of a pass that keeps everything.
func totalTime(c remat.Costs) (sum float64) {
	for _, s := range c.Stages {
		sum += s.ForwardTime + s.BackwardTime
	}
	return sum
}

// stepTimes are those of the stages of a chain, by name.
type stepTimes struct{ forward, backward map[string][]float64 }

func (t *stepTimes) add(c remat.Costs) {
	if t.forward == nil {
		t.forward, t.backward = map[string][]float64{}, map[string][]float64{}
	}
	for _, s := range c.Stages {
		t.forward[s.Name] = append(t.forward[s.Name], s.ForwardTime)
		t.backward[s.Name] = append(t.backward[s.Name], s.BackwardTime)
	}
}

// set makes the times of c the medians, scaled.
func (t *stepTimes) set(c remat.Costs, scale float64) {
	for i := range c.Stages {
		s := &c.Stages[i]
		s.ForwardTime, s.BackwardTime = scale*median(t.forward[s.Name]), scale*median(t.backward[s.Name])
	}
}

// runner runs one plan of a chain.
type runner = remat.Runner[[]float32, *saved]

// pass is a forward and a backward pass by the plan of a runner. The bytes are the most
// that the pool handed out at one time.
func (t *trainable) pass(ctx context.Context, r *runner) (rep remat.Report, bytes int64, err error) {
	t.pool.peak = t.pool.held
	last := t.Stages[len(t.Stages)-1].(*stage)
	t.lossGrad = t.pool.get(last.shape[0])
	dx, rep, err := r.Run(ctx, t.x, t.loss)
	if err != nil {
		if t.lossGrad != nil {
			t.pool.put(t.lossGrad)
			t.lossGrad = nil
		}
		return rep, 0, err
	}
	copy(t.dx, dx)
	t.pool.put(dx)
	return rep, t.pool.peak, nil
}

// bits returns those of all gradients of the last pass.
func (t *trainable) bits() (bits []uint32) {
	all := [][]float32{t.dx}
	for _, l := range t.layers {
		all = append(all, l.gradients()...)
	}
	for _, g := range all {
		for _, v := range g {
			bits = append(bits, math.Float32bits(v))
		}
	}
	return bits
}

// verify runs a plan once and returns the measured peak. It is an error when that is not
// what was simulated, or the gradients are not those of want, unless that is nil.
func (t *trainable) verify(ctx context.Context, r *runner, simulated int64, want []uint32) (int64, error) {
	rep, bytes, err := t.pass(ctx, r)
	switch {
	case err != nil:
		return 0, err
	case rep.Peak != simulated || bytes != simulated || len(rep.Mismatches) > 0:
		return 0, fmt.Errorf("peak of %d bytes simulated, %d measured, %d of tensors in use; other sizes than measured before: %v",
			simulated, rep.Peak, bytes, rep.Mismatches)
	case want != nil && !slices.Equal(want, t.bits()):
		return 0, errors.New("gradients differ from those with everything kept")
	}
	return rep.Peak, nil
}
