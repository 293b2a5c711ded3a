package quant8

import (
	"fmt"
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/gemm"
	"github.com/snug-ml/snug/internal/half"
	"github.com/snug-ml/snug/internal/optim"
	"github.com/snug-ml/snug/internal/ortho"
)

// side is a preconditioner of SOAP with its basis, both of n×n elements. n is 0 where there is none.
type side struct {
	n              int
	average, basis []float32
	order          []int64 // for each column of the new basis, its index in the last one
}

// soapStep is a step of a matrix of SOAP.
type soapStep struct {
	a           *Optimizer
	q           *param
	dev         *snug.Device
	j           stepJob
	h           optim.Hyper
	factors     []float32 // a copy: the number of steps, as bits, and the sides
	left, right side
	g, x, u, t  []float32 // the gradient, its rotated form, the update, and room for a product
	floats      []float32 // scratch of package ortho
	doubles     []float64
}

// stepSOAP makes a step of a matrix of SOAP.
func (a *Optimizer) stepSOAP(dev *snug.Device, q *param, h optim.Hyper, j stepJob) error {
	rest := a.work.near
	take := func(n int) (x []float32) {
		x, rest = rest[:n], rest[n:]
		return x
	}
	s := soapStep{a: a, q: q, dev: dev, j: j, h: h, factors: take(1 + int(q.squares())), doubles: a.work.nearSums}
	s.g, s.x, s.u, s.t, s.floats = take(q.n), take(q.n), take(q.n), take(q.n), rest
	s.left, s.right = s.sideOf(1, q.left), s.sideOf(1+2*q.left*q.left, q.right)
	s.left.order, s.right.order = a.work.order[:q.left], a.work.order[q.left:][:q.right]
	if err := a.copyFactors(dev, q, s.factors, false); err != nil {
		return err
	}
	made := math.Float32bits(s.factors[0]) // steps made, with the first
	if int64(made) > int64(a.t) {
		return fmt.Errorf("%d steps of the preconditioners after step %d: %w", made, a.t, snug.ErrCorrupt)
	}
	if fits, err := s.load(); !fits || err != nil {
		return err
	}
	s.factors[0] = math.Float32frombits(made + 1)
	if made == 0 {
		return s.begin()
	}
	s.h.Step = int(made)
	return s.update(int(made)%a.o.soap.frequency == 0)
}

// sideOf returns the side whose elements begin at a place among the factors.
func (s *soapStep) sideOf(at, n int) side {
	return side{n: n, average: s.factors[at:][:n*n], basis: s.factors[at+n*n:][:n*n]}
}

// begin is the first step, which makes the bases. With the eigenvectors V of gᵀ·g, the columns of g·V are those of g·gᵀ
// but for their lengths, so that only the eigenvectors of the shorter side are searched.
func (s *soapStep) begin() error {
	s.average()
	rows, cols := s.q.rows, s.q.cols
	short, long := &s.left, &s.right
	if short.n == 0 || long.n > 0 && long.n < short.n {
		short, long = long, short
	}
	if !ortho.Eigenvectors(short.basis, short.average, short.n, s.doubles) {
		return fmt.Errorf("no eigenvectors of %d×%d products of the gradient: %w", short.n, short.n, snug.ErrNonFinite)
	}
	if long.n > 0 {
		side := matrix(long.basis, long.n, false)
		if long == &s.left {
			gemm.Mul(rows, cols, cols, 1, matrix(s.g, cols, false), matrix(short.basis, cols, false), 0, side)
		} else {
			gemm.Mul(cols, rows, rows, 1, matrix(s.g, cols, true), matrix(short.basis, rows, false), 0, side)
		}
		ortho.Complete(long.basis, long.n, short.n, s.floats, s.doubles)
	}
	return s.a.copyFactors(s.dev, s.q, s.factors, true)
}

// update is a step after the first. refresh says whether it ends with a refresh of the bases.
func (s *soapStep) update(refresh bool) error {
	s.turn(s.x, s.g, true)
	if err := s.a.moments(s.dev, s.q, s.h, s.j, s.u, s.x, false); err != nil {
		return err
	}
	s.turn(s.x, s.u, false)
	s.apply(s.x)
	s.average()
	if refresh {
		if err := s.refresh(); err != nil {
			return err
		}
	}
	return s.a.copyFactors(s.dev, s.q, s.factors, true)
}

// loadGrain is how many elements of the gradient a worker converts at a time.
const loadGrain = 1 << 14

type loadArgs struct {
	dst   []float32
	src   snug.View
	scale float32
	skip  bool
}

var loadTask = cpu.NewTask(func(a *loadArgs, item int) {
	lo, hi := cpu.Chunk(len(a.dst), loadGrain, item)
	x := a.dst[lo:hi]
	half.Load(x, a.src, lo)
	if a.skip {
		optim.Leave(x, a.scale, tooLarge)
	}
	for i := range x {
		x[i] *= a.scale
	}
})

// load sets g to the scaled gradient, with 0 for elements that are skipped. fits is false if the norm is so large that
// products of elements could overflow.
func (s *soapStep) load() (fits bool, err error) {
	loadTask.Run(cpu.Chunks(s.q.n, loadGrain), loadArgs{s.g, s.j.g, s.h.GradScale, s.j.skip})
	norm := math.Sqrt(sumSquares(snug.SliceView(s.g), 1))
	if norm < 0x1p63 {
		return true, nil
	}
	a := s.a
	if a.o.NonFinite == Fail {
		return false, fmt.Errorf("the norm of the gradient is %g, not below 2^63: %w", norm, snug.ErrNonFinite)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.skipped = append(a.skipped, snug.NonFinite{Name: s.q.name, Micro: -1, Count: s.q.n, Value: s.g[0]})
	return false, nil
}

// matrix is a row-major operand of a product.
func matrix(x []float32, cols int, trans bool) gemm.Matrix {
	return gemm.Matrix{Data: snug.SliceView(x), Stride: cols, Trans: trans}
}

// turn sets dst to src rotated into the eigenbases, or with into false back into the parameter's basis. It overwrites t.
func (s *soapStep) turn(dst, src []float32, into bool) {
	rows, cols := s.q.rows, s.q.cols
	if s.left.n > 0 {
		to := s.t
		if s.right.n == 0 {
			to = dst
		}
		gemm.Mul(rows, cols, rows, 1, matrix(s.left.basis, rows, into), matrix(src, cols, false), 0, matrix(to, cols, false))
		src = to
	}
	if s.right.n > 0 {
		gemm.Mul(rows, cols, cols, 1, matrix(src, cols, false), matrix(s.right.basis, cols, !into), 0, matrix(dst, cols, false))
	}
}

// average adds the products of the gradient to the preconditioners.
func (s *soapStep) average() {
	rows, cols, beta := s.q.rows, s.q.cols, float32(s.a.o.soap.beta)
	if s.left.n > 0 {
		gemm.Mul(rows, rows, cols, 1-beta, matrix(s.g, cols, false), matrix(s.g, cols, true), beta, matrix(s.left.average, rows, false))
	}
	if s.right.n > 0 {
		gemm.Mul(cols, cols, rows, 1-beta, matrix(s.g, cols, true), matrix(s.g, cols, false), beta, matrix(s.right.average, cols, false))
	}
}

// apply adds x to p, which then decays.
func (s *soapStep) apply(x []float32) {
	h := s.h
	h.Rule, h.DecayFirst, h.Size = optim.Muon, true, -h.LR*decayed(h) // as Muon's orthogonal matrix
	job := applyJob{stepJob: s.j, x: snug.SliceView(x)}
	job.rule = h.Coef()
	job.Run()
}

// refresh improves the bases, and brings the states to the new ones.
func (s *soapStep) refresh() error {
	m, v := s.x, s.u
	err := s.eachState(false, func(lo int, x state32) {
		copy(m[lo:], x[0])
		copy(v[lo:], x[1])
	})
	if err != nil {
		return err
	}
	s.turn(s.g, m, false)
	for _, side := range [2]*side{&s.left, &s.right} {
		if side.n > 0 {
			ortho.Refresh(side.basis, side.average, side.n, side.order, s.floats, s.doubles)
		}
	}
	s.turn(m, s.g, true)
	sorted := s.t
	for i := range s.q.rows {
		from, to := v[s.left.was(i)*s.q.cols:][:s.q.cols], sorted[i*s.q.cols:][:s.q.cols]
		for k := range to {
			to[k] = from[s.right.was(k)]
		}
	}
	return s.eachState(true, func(lo int, x state32) {
		copy(x[0], m[lo:])
		copy(x[1], sorted[lo:])
	})
}

// was returns the index in the last basis of column i of the new basis.
func (s *side) was(i int) int {
	if s.n == 0 {
		return i
	}
	return int(s.order[i])
}

// eachState calls use for each chunk with its states, of which the first is element lo. use may change them if dirty.
func (s *soapStep) eachState(dirty bool, use func(lo int, x state32)) error {
	for chunk := range s.q.chunks(s.a.o.Chunk) {
		lo, hi := cpu.Chunk(s.q.n, s.a.o.Chunk, chunk)
		err := s.a.withBlob(s.q, chunk, dirty, func(blob []byte) error {
			use(lo, s.q.split32(blob, hi-lo))
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}
