package quant8

import (
	"fmt"
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/gemm"
	"github.com/snug-ml/snug/internal/half"
	"github.com/snug-ml/snug/internal/lowrank"
	"github.com/snug-ml/snug/internal/optim"
	"github.com/snug-ml/snug/internal/philox"
	"github.com/snug-ml/snug/internal/rounding"
	"github.com/snug-ml/snug/internal/sweep"
)

// bandSize is about how many elements of GaLore's update of p exist at a time, and bandRows how many rows at least.
const (
	bandSize = 1 << 19
	bandRows = 64
)

// band returns how many rows of GaLore's update of p are made at a time.
func (s shape) band() int { return min(s.rows, max(bandRows, bandSize/s.cols)) }

// scratch returns how many elements a step of a matrix of low rank takes, of float32 and of float64.
func (s shape) scratch() (floats, sums int) {
	long, held := max(s.rows, s.cols), s.held(0)
	work := lowrank.ProjectWork(s.rows, s.cols, s.rank)
	if !s.based {
		return 1 + 2*held + max(work, long), partsOf(s).sums(s)
	}
	making, sums := lowrank.BasisWork(s.rows, s.cols, s.rank)
	return s.factorFloats() + max(2*held+max(work, s.band()*s.cols), making), sums
}

// factorFloats is the size of the factors, in elements.
func (s shape) factorFloats() int { return int(s.factorBytes() / 4) }

// lowRankStep is a step of a matrix of Apollo or GaLore.
type lowRankStep struct {
	a       *Optimizer
	q       *param
	dev     *snug.Device
	j       stepJob
	h       optim.Hyper
	factors []float32 // a copy: the norm before; or the step of the directions, as bits, and the directions
	rest    []float32 // the workspace behind it: x, u and then what else a step needs, or all for making directions
	x, u    []float32 // the projection, and the step of its moments, with a row for each channel
	work    []float32
}

// stepLowRank makes a step of a matrix of Apollo or GaLore.
func (a *Optimizer) stepLowRank(dev *snug.Device, q *param, h optim.Hyper, j stepJob) error {
	floats, held := a.work.near, q.held(q.n)
	s := lowRankStep{a: a, q: q, dev: dev, h: h, j: j, factors: floats[:q.factorFloats()], rest: floats[q.factorFloats():]}
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
	if q.based {
		return s.applyGaLore()
	}
	return s.applyApollo()
}

// period returns the number of the period of a step, from 0.
func (s *lowRankStep) period(step int) int { return (step - 1) / s.a.o.low.gap }

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

// direct makes the directions of GaLore if there are none of this period, and says whether it did. It is not ready
// if the gradient of the first step cannot be used.
func (s *lowRankStep) direct() (changed, ready bool) {
	if !s.q.based {
		return false, true
	}
	made := int(math.Float32bits(s.factors[0]))
	if made > 0 && s.period(made) == s.period(s.a.t) {
		return false, true
	}
	if s.j.skip { // the next gradient may be finite
		return false, made > 0
	}
	s.factors[0] = math.Float32frombits(uint32(s.a.t))
	if s.a.directions != nil {
		copy(s.factors[1:], s.a.directions(s.q.name, s.period(s.a.t)))
		return true, true
	}
	lowrank.Basis(s.factors[1:], s.matrix(), s.q.rank, s.stream(), s.rest, s.a.work.nearSums)
	return true, true
}

// project sets x.
func (s *lowRankStep) project() {
	d, alpha := lowrank.Directions{Rank: s.q.rank, Stream: s.stream()}, s.h.GradScale
	switch {
	case s.q.based:
		d.Values = s.factors[1:]
	case s.a.directions != nil:
		d.Values = s.a.directions(s.q.name, s.period(s.a.t))
	}
	if !s.q.based {
		alpha = float32(float64(alpha) / math.Sqrt(float64(s.q.rank)))
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
	at := i / q.rank // the first element of its channel
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

// applyApollo subtracts from p the gradient times the factors of its channels, limits the norm of all, and keeps it.
func (s *lowRankStep) applyApollo() error {
	q, low := s.q, s.a.o.low
	factors := s.work[:max(q.rows, q.cols)]
	if low.tensor {
		f := float32(ratio(sumSquares(snug.SliceView(s.u), 1), sumSquares(snug.SliceView(s.x), 1)))
		for i := range factors {
			factors[i] = f
		}
	} else {
		ratioTask.Run(cpu.Chunks(len(factors), s.ratios()), ratios{factors, s.x, s.u, q.rank, s.ratios()})
	}
	size := s.h.LR * math.Sqrt(low.scale) * decayed(s.h) * float64(s.h.GradScale)
	if !low.unlimited {
		limit, err := s.limit(factors)
		if err != nil {
			return err
		}
		size /= limit
	}
	for i, f := range factors {
		factors[i] = float32(size * float64(f))
	}
	h := s.h
	h.DecayFirst = true
	channels := channelsJob{s.j, optim.Channels{Factors: factors, Rows: q.rows >= q.cols, Cols: q.cols}}
	channels.rule = h.Coef()
	channelsTask.Run(cpu.Chunks(q.n, grain), channels)
	return nil
}

// ratio is the quotient of two norms, given their squares.
func ratio(u, x float64) float64 { return math.Sqrt(u) / (math.Sqrt(x) + 1e-8) }

// ratios are the factors of channels, before the learning rate.
type ratios struct {
	factors, x, u []float32
	rank, each    int
}

// ratios returns how many channels a worker takes at a time.
func (s *lowRankStep) ratios() int { return max(1, grain/s.q.rank) }

var ratioTask = cpu.NewTask(func(r *ratios, item int) {
	lo, hi := cpu.Chunk(len(r.factors), r.each, item)
	x, u := snug.SliceView(r.x), snug.SliceView(r.u)
	for c := lo; c < hi; c++ {
		at, end := c*r.rank, (c+1)*r.rank
		r.factors[c] = float32(ratio(sweep.Squares(u, at, end), sweep.Squares(x, at, end)))
	}
})

// maxGrowth is by how much the norm of an update may exceed the one before.
const maxGrowth = 1.01

// limit returns the divisor that limits the norm of the update, and keeps the limited norm.
func (s *lowRankStep) limit(factors []float32) (float64, error) {
	squares := 0.0
	if s.a.o.low.tensor {
		squares = float64(factors[0]) * float64(factors[0]) * sumSquares(s.j.g, s.h.GradScale) * float64(s.h.GradScale) * float64(s.h.GradScale)
	} else {
		sums, err := s.channelSquares()
		if err != nil {
			return 0, err
		}
		for i, f := range factors {
			squares += float64(f) * float64(f) * sums[i]
		}
	}
	norm, limit := math.Sqrt(squares)/s.h.Corrected(), 1.0
	if before := float64(s.factors[0]); before > 0 {
		limit = max(norm/(before+1e-8), maxGrowth) / maxGrowth
	}
	s.factors[0] = float32(norm / limit)
	return limit, s.a.copyFactors(s.dev, s.q, s.factors, true)
}

// channelSquares returns the sums of the squares of the scaled gradient over the channels.
func (s *lowRankStep) channelSquares() ([]float64, error) {
	q, w := s.q, &s.a.work
	if q.rows >= q.cols && !s.j.skip {
		sums := w.nearSums[:q.rows]
		rowTask.Run(cpu.Chunks(q.rows, max(1, grain/q.cols)), rowSquares{s.j.g, sums, q.cols, max(1, grain/q.cols), float64(s.h.GradScale)})
		return sums, nil
	}
	all := squareSumsJob{g: s.j.g, all: w.sums.View(), shape: q.shape, parts: partsOf(q.shape), scale: s.h.GradScale, skip: s.h.Skip}
	rows, cols, err := all.on(s.dev, w)
	if q.rows >= q.cols {
		return rows, err
	}
	return cols, err
}

// rowSquares are the sums of the squares of g·scale over the rows of a matrix.
type rowSquares struct {
	g          snug.View
	sums       []float64
	cols, each int
	scale      float64
}

var rowTask = cpu.NewTask(func(r *rowSquares, item int) {
	lo, hi := cpu.Chunk(len(r.sums), r.each, item)
	for i := lo; i < hi; i++ {
		r.sums[i] = r.scale * r.scale * sweep.Squares(r.g, i*r.cols, (i+1)*r.cols)
	}
})

// channelsJob subtracts from p the gradient times the factors of its channels.
type channelsJob struct {
	stepJob
	channels optim.Channels
}

var channelsTask = cpu.NewTask(func(j *channelsJob, item int) {
	lo, hi := cpu.Chunk(j.p.Len(), grain, item)
	tile := tiles.Get(2 * half.Chunk)
	defer tiles.Put(tile)
	j.rule.ApplyChannels(j.operands(), lo, hi, j.channels, *tile)
})

// applyGaLore adds Pᵀ·u to p, a band of rows at a time.
func (s *lowRankStep) applyGaLore() error {
	q, p := s.q, s.factors[1:]
	h := s.h
	h.Rule, h.DecayFirst, h.Size = optim.Muon, true, -s.h.LR*s.a.o.low.scale*decayed(s.h) // as Muon's orthogonal matrix
	band := applyJob{stepJob: s.j}
	band.rule = h.Coef()
	for lo := 0; lo < q.rows; lo += q.band() {
		n := min(q.band(), q.rows-lo)
		x := s.work[:n*q.cols]
		to := gemm.Matrix{Data: snug.SliceView(x), Stride: q.cols}
		if q.rows >= q.cols {
			u := gemm.Matrix{Data: snug.SliceView(s.u[lo*q.rank:]), Stride: q.rank}
			gemm.Mul(n, q.cols, q.rank, 1, u, gemm.Matrix{Data: snug.SliceView(p), Stride: q.cols}, 0, to)
		} else {
			directions := gemm.Matrix{Data: snug.SliceView(p[lo:]), Stride: q.rows, Trans: true}
			gemm.Mul(n, q.cols, q.rank, 1, directions, gemm.Matrix{Data: snug.SliceView(s.u), Stride: q.rank, Trans: true}, 0, to)
		}
		var err error
		if band.p, err = s.j.p.Slice(lo*q.cols, (lo+n)*q.cols); err != nil {
			return err
		}
		if band.g, err = s.j.g.Slice(lo*q.cols, (lo+n)*q.cols); err != nil {
			return err
		}
		band.first, band.x = s.j.first+uint64(lo*q.cols), snug.SliceView(x)
		band.Run()
	}
	return nil
}
