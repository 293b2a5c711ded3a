package quant8

import (
	"cmp"
	"fmt"
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/lowrank"
	"github.com/snug-ml/snug/internal/optim"
	"github.com/snug-ml/snug/internal/philox"
	"github.com/snug-ml/snug/internal/rounding"
	"github.com/snug-ml/snug/internal/sweep"
)

// projecting is the method of rules that project the gradients of matrices onto few directions. Other parameters take Adam's
// step, and so do the moments of the projection.
type projecting struct {
	plain
	rank, gap       int
	factor          float64
	based           bool // directions are kept, see applyBasis; otherwise each step generates them, see applyChannels
	tensor, limited bool // see applyChannels
}

// equation returns the equation with this method, which begins with so many directions that stay for gap steps; 0 stands
// for 200.
func (m *projecting) equation(rank, gap int, beta1, beta2, eps, decay float32) equation {
	e := equation{
		Traits: Traits{Unit: Matrix, Shaped: true, Rank: rank},
		hyper:  optim.Hyper{Rule: optim.Adam, PlainEps: true, WeightDecay: float64(decay)},
		method: m,
	}
	e.moments(beta1, beta2)
	e.number("Eps", &e.hyper.Eps, eps, 1e-6, math.MaxFloat32)
	if m.rank, m.gap = rank, cmp.Or(gap, 200); m.rank < 1 {
		e.refuse("Rank is %d, want 1 or more", m.rank)
	}
	if m.gap < 1 {
		e.refuse("Gap is %d, want 1 or more", m.gap)
	}
	return e
}

func (m *projecting) engine(o *options, p added) (engine, error) {
	if m.rank >= min(p.rows, p.cols) || p.n < o.MinSize {
		return new(elements), nil
	}
	e := &lowRank{of: m}
	e.shape, e.alone, e.whole = shape{p.rows, p.cols}, true, true
	e.kept, e.factors = m.rank*max(p.rows, p.cols), 4
	if m.based {
		e.factors = 4 * (1 + int64(m.rank)*int64(min(p.rows, p.cols)))
	}
	e.workspace = m.scratch(&e.form)
	return e, nil
}

// scratch returns what a step of a matrix takes.
func (m *projecting) scratch(f *form) (s scratch) {
	work := lowrank.ProjectWork(f.rows, f.cols, m.rank)
	if !m.based {
		return scratch{nFloats: 1 + 2*f.kept + max(work, f.rows, f.cols), nSums: partsOf(f.shape).sums(f.shape)}
	}
	making, sums := lowrank.BasisWork(f.rows, f.cols, m.rank)
	return scratch{nFloats: int(f.factors/4) + max(2*f.kept+max(work, bandOf(f.shape)*f.cols), making), nSums: sums}
}

// lowRank is the engine of a matrix whose gradient is projected.
type lowRank struct {
	elements
	of *projecting
}

func (e *lowRank) option() string { return fmt.Sprintf("a Rank of %d", e.of.rank) }

// lowRankStep is a step of such a matrix.
type lowRankStep struct {
	a       *Optimizer
	of      *projecting
	q       *param
	dev     *snug.Device
	j       stepJob
	h       optim.Hyper
	factors []float32 // a copy: the norm before; or the step of the directions, as bits, and the directions
	rest    []float32 // the workspace behind it: x, u and then what else a step needs, or all for making directions
	x, u    []float32 // the projection, and the step of its moments, with a row for each channel
	work    []float32
}

func (e *lowRank) step(a *Optimizer, dev *snug.Device, q *param, _ int, h optim.Hyper, j stepJob, _ float32) error {
	if err := a.work.lock(dev); err != nil {
		return err
	}
	defer a.work.mu.Unlock()
	floats, held, own := a.work.near, q.kept, int(q.factors/4)
	s := lowRankStep{a: a, of: e.of, q: q, dev: dev, h: h, j: j, factors: floats[:own], rest: floats[own:]}
	s.x, s.u, s.work = s.rest[:held], s.rest[held:2*held], s.rest[2*held:]
	if err := a.copyFactors(dev, q, s.factors, false); err != nil {
		return err
	}
	changed, ready := s.direct()
	if !ready {
		return nil
	}
	s.project()
	skip, leave, err := s.checkProjection()
	if err != nil || leave {
		return err
	}
	if changed {
		if err := a.copyFactors(dev, q, s.factors, true); err != nil {
			return err
		}
	}
	if err := a.moments(dev, q, h, j, s.u, s.x, skip); err != nil {
		return err
	}
	if e.of.based {
		return s.applyBasis()
	}
	return s.applyChannels()
}

// period returns the number of the period of a step, from 0.
func (s *lowRankStep) period(step int) int { return (step - 1) / s.of.gap }

// stream names the normal numbers of the directions. Its seed is none of those that steps have.
func (s *lowRankStep) stream() philox.Stream {
	seed := rounding.Seed(s.a.o.Seed, math.MaxUint64)
	return philox.Stream{Seed: rounding.Seed(seed, uint64(s.period(s.a.t))), Tensor: s.q.tensor}
}

// matrix returns the gradient. Elements that are skipped count as 0.
func (s *lowRankStep) matrix() lowrank.Matrix {
	m := lowrank.Matrix{Data: s.j.g, Rows: s.q.rows, Cols: s.q.cols}
	if s.j.skip {
		scale := s.h.GradScale
		m.Skip = func(x []float32) { optim.Leave(x, scale, tooLarge) }
	}
	return m
}

// project sets x.
func (s *lowRankStep) project() {
	d, alpha := lowrank.Directions{Rank: s.of.rank, Stream: s.stream()}, s.h.GradScale
	switch {
	case s.of.based:
		d.Values = s.factors[1:]
	case s.a.directions != nil:
		d.Values = s.a.directions(s.q.name, s.period(s.a.t))
	}
	if !s.of.based {
		alpha = float32(float64(alpha) / math.Sqrt(float64(s.of.rank)))
	}
	lowrank.Project(s.x, alpha, s.matrix(), d, s.work)
}

// checkProjection looks for elements of x that must not reach the state. It says whether to skip them, or to leave
// the matrix as it is.
func (s *lowRankStep) checkProjection() (skip, leave bool, err error) {
	a, q := s.a, s.q
	i := sweep.First(snug.SliceView(s.x), 1, tooLarge)
	if i < 0 {
		return false, false, nil
	}
	at := i / s.of.rank // the first element of its channel
	if q.rows >= q.cols {
		at *= q.cols
	}
	if a.o.NonFinite == Fail {
		return false, false, fmt.Errorf("the projection of the gradient with element %d is NaN, infinite or not below 2^63: %w", at, snug.ErrNonFinite)
	}
	leave = a.o.NonFinite == SkipStep
	a.mu.Lock()
	defer a.mu.Unlock()
	a.skipped = append(a.skipped, snug.NonFinite{Name: q.name, Index: at, Micro: -1, Count: 1, Value: s.x[i]})
	return true, leave, nil
}

// moments updates the state of q by x and sets u to -c2/c1·m/(√v + ε). Elements of x that skip leaves out become 0.
func (a *Optimizer) moments(dev *snug.Device, q *param, h optim.Hyper, j stepJob, u, x []float32, skip bool) error {
	clear(u)
	j.p, j.g, j.random, j.skip, j.first = snug.SliceView(u), snug.SliceView(x), false, skip, 0
	h.LR, h.WeightDecay, h.GradScale, h.Skip = 1, 0, 1, 0
	if skip {
		h.Skip = tooLarge
	}
	j.prepare(h)
	if err := a.run(dev, q, 0, j); err != nil {
		return err
	}
	if skip {
		optim.Leave(x, 1, tooLarge)
	}
	return nil
}

// decayed is by how much a step multiplies p. What it adds to p is multiplied by it too, where p decays at the end.
func decayed(h optim.Hyper) float64 { return 1 - float64(h.LR*h.WeightDecay) }
