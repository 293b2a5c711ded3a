package quant8

import (
	"cmp"
	"fmt"
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/gemm"
	"github.com/snug-ml/snug/internal/half"
	"github.com/snug-ml/snug/internal/optim"
	"github.com/snug-ml/snug/internal/ortho"
)

// SOAP is the rule of Vyas et al. 2024, "SOAP: Improving and Stabilizing Shampoo using Adam", arXiv:2409.11321, as the
// authors' code computes it: Adam in the eigenbasis of Shampoo's preconditioner.
//
// It is for matrices, see [Optimizer.AddMatrix]. L and R are averages of the gradients' products, and the columns of Ql
// and Qr are nearly their eigenvectors. The first step of a matrix sets L = (1-β)·g·gᵀ, R = (1-β)·gᵀ·g, and Ql and Qr
// to their eigenvectors, and leaves p as it is. With c1 = 1-β1^t and c2 = √(1-β2^t), step t after the first computes
//
//	x = Qlᵀ·g·Qr
//	m ← β1·m + (1-β1)·x
//	v ← β2·v + (1-β2)·x²
//	p ← p - lr·c2/c1·Ql·(m/(√v + ε))·Qrᵀ
//	p ← p·(1 - lr·wd)
//	L ← β·L + (1-β)·g·gᵀ
//	R ← β·R + (1-β)·gᵀ·g
//
// where β is PreconditionerBeta. After every Frequency such steps it sorts the columns of Ql by the descending diagonal
// of Qlᵀ·L·Ql, replaces Ql by the orthonormal factor of L·Ql, and does the same for Qr. The rows and columns of v follow
// the new order, and m is rotated into the new basis.
//
// Where L or R lacks rank, its eigenvectors are not all determined: the basis of its null space is arbitrary. That is so
// for the longer side of a matrix that is not square, if both sides are turned, and for gradients of a low rank. Two
// implementations then take different steps, and so does the authors' code in float32 and in float64.
//
// A side longer than MaxDim has no preconditioner: its Q is the identity. Vectors, and matrices with two such sides,
// take Adam's step: the one above with Ql and Qr the identity. For them, t counts the steps of the optimizer from its
// second on; the first leaves them as they are. The usual rate is 3e-3.
//
// The states of a matrix are m and v, of 32 bits whatever Options.Bits is, and L, Ql, R and Qr: 8·n bytes for n elements,
// 8·rows² and 8·cols², and 4 for the number of steps. A matrix of 1024×1024 takes 25 MB, with [Default] 8.4 MB with 32 bits. The
// states of vectors have Options.Bits.
//
// The workspace, see [Optimizer.WorkspaceBytes], has a copy of L, Ql, R and Qr; 16·n bytes for the gradient, its
// rotated form, the update and a product; 12·k² + 280·k bytes for the longer side k with a preconditioner; and 8 bytes
// for each row and column of such sides. A step takes 6·n·(rows+cols) floating-point operations, see
// [Optimizer.Operations], and for each side a step that replaces Ql and Qr about 10·k³ more. The first step takes about
// 9·k³ more for the shorter side, in float64 and partly on one core: for k of 512 a tenth of a second or more, for k of 2048
// tens of seconds. It finds the eigenvectors of the shorter side; the columns of g·Qr, or of gᵀ·Ql, made orthonormal one
// after the other, are those of the longer side. These steps allocate if k is above 64; others do not.
//
// A step updates a whole matrix, on the CPU only. Each process must hold whole parameters: [Optimizer.AddShard] of a
// part is an error, and so is [Optimizer.StepRange] of a part of a matrix. [Optimizer.FoldInBackward] is an error. The
// last bits of the products, and so of the states and p, depend on the instructions of the CPU, not on the number of
// workers. A gradient of a matrix whose norm is not below 2^63 counts as not finite; with [SkipElement] it leaves the
// whole matrix as it is. Otherwise, with SkipElement, elements that are not finite count as 0 in g. After an error of
// the [Storage] in the middle of a matrix the optimizer cannot be used until a state is restored.
type SOAP struct {
	Beta1              float32 // decay of the first moment, in (0,1), default 0.95
	Beta2              float32 // decay of the second moment, in (0,1), default 0.95
	PreconditionerBeta float32 // decay of L and R, in (0,1), default Beta2
	Eps                float32 // added to the root of the second moment, default 1e-8
	Frequency          int     // steps with the same Ql and Qr, default 10
	MaxDim             int     // longest side with a preconditioner, up to 32768, default 10000
	WeightDecay        float32 // a step multiplies p by 1-lr·WeightDecay; default 0
}

// mostDim is the largest MaxDim: sizes of four squares are far below 2^63.
const mostDim = 1 << 15

// turning is the method of SOAP: the gradients of matrices are rotated.
type turning struct {
	plain
	beta              float64
	frequency, maxDim int
}

func (r SOAP) equation() equation {
	m := new(turning)
	e := equation{
		Traits: Traits{Name: "soap", Title: "SOAP", About: "its state is larger and its steps take longer, the first one as long as several", Unit: Matrix, Shaped: true, Full: Setting{SOAP{WeightDecay: 0.01}, 1e-5, 1e-6}},
		hyper:  optim.Hyper{Rule: optim.Adam, PlainEps: true, WeightDecay: float64(r.WeightDecay)},
		method: m,
	}
	beta2 := cmp.Or(r.Beta2, 0.95)
	e.moments(cmp.Or(r.Beta1, 0.95), beta2)
	e.number("PreconditionerBeta", &m.beta, r.PreconditionerBeta, beta2, 1)
	e.number("Eps", &e.hyper.Eps, r.Eps, 1e-8, math.MaxFloat32)
	if m.frequency = cmp.Or(r.Frequency, 10); m.frequency < 1 {
		e.refuse("Frequency is %d, want 1 or more", r.Frequency)
	}
	if m.maxDim = cmp.Or(r.MaxDim, 10_000); m.maxDim < 1 || m.maxDim > mostDim {
		e.refuse("MaxDim is %d, want 1 to %d", r.MaxDim, mostDim)
	}
	return e
}

func (m *turning) engine(_ *options, p added) (engine, error) {
	e := &turned{of: m}
	if p.rows <= m.maxDim {
		e.left = p.rows
	}
	if p.cols <= m.maxDim {
		e.right = p.cols
	}
	if p.rows == 0 || p.cols == 0 || e.left|e.right == 0 {
		return new(unturned), nil
	}
	k := max(e.left, e.right)
	square, doubles := ortho.EigenWork(k)
	floats := 1 + e.squares() + 4*int64(p.n) + int64(square)
	e.shape, e.wide, e.alone, e.whole, e.factors = shape{p.rows, p.cols}, true, true, true, 4*(1+e.squares())
	if bytes := e.factors + 8*int64(p.n); max(bytes, 4*floats, 8*int64(doubles)) > math.MaxInt {
		return nil, fmt.Errorf("of %d×%d elements takes %d bytes: %w", p.rows, p.cols, bytes, snug.ErrShape)
	}
	e.workspace = scratch{nFloats: int(floats), nSums: doubles, nOrder: e.left + e.right, operations: e.operations()}
	return e, nil
}

// unturned is the engine of other parameters: Adam's step. The first step leaves them alone, as matrices, whose first step
// makes their bases.
type unturned struct{ elements }

func (*unturned) step(a *Optimizer, dev *snug.Device, q *param, lo int, h optim.Hyper, j stepJob, _ float32) error {
	if a.t == 1 {
		return nil
	}
	h.Step--
	return a.stepVector(dev, q, lo, h, j)
}

// turned is the engine of a matrix with a preconditioner.
type turned struct {
	elements
	of          *turning
	left, right int // sides of the preconditioners of the rows and of the columns; 0: none
}

func (e *turned) option() string { return fmt.Sprintf("a MaxDim of %d", e.of.maxDim) }

// squares returns how many elements the preconditioners and their bases have.
func (e *turned) squares() int64 {
	return 2 * (int64(e.left)*int64(e.left) + int64(e.right)*int64(e.right))
}

// operations returns the floating-point operations of a step, in the mean with those that replace the bases.
func (e *turned) operations() float64 {
	step, refresh, n := 0.0, 0.0, float64(e.rows)*float64(e.cols)
	for _, side := range [2]int{e.left, e.right} {
		k := float64(side)
		step, refresh = step+6*n*k, refresh+4*n*k+10*k*k*k
	}
	return step + refresh/float64(e.of.frequency)
}

// side is a preconditioner of SOAP with its basis, both of n×n elements. n is 0 where there is none.
type side struct {
	n              int
	average, basis []float32
	order          []int64 // for each column of the new basis, its index in the last one
}

// soapStep is a step of a matrix of SOAP.
type soapStep struct {
	a           *Optimizer
	of          *turning
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

func (e *turned) step(a *Optimizer, dev *snug.Device, q *param, _ int, h optim.Hyper, j stepJob, _ float32) error {
	if err := a.work.lock(dev); err != nil {
		return err
	}
	defer a.work.mu.Unlock()
	rest := a.work.near
	take := func(n int) (x []float32) {
		x, rest = rest[:n], rest[n:]
		return x
	}
	s := soapStep{a: a, of: e.of, q: q, dev: dev, j: j, h: h, factors: take(1 + int(e.squares())), doubles: a.work.nearSums}
	s.g, s.x, s.u, s.t, s.floats = take(q.n), take(q.n), take(q.n), take(q.n), rest
	s.left, s.right = s.sideOf(1, e.left), s.sideOf(1+2*e.left*e.left, e.right)
	s.left.order, s.right.order = a.work.order[:e.left], a.work.order[e.left:][:e.right]
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
	return s.update(int(made)%e.of.frequency == 0)
}

// sideOf returns the side whose elements begin at a place among the factors.
func (s *soapStep) sideOf(at, n int) side {
	return side{n: n, average: s.factors[at:][:n*n], basis: s.factors[at+n*n:][:n*n]}
}

// begin is the first step, which makes the bases. With the eigenvectors V of gᵀ·g, the columns of g·V are those of g·gᵀ
// except for their lengths, so that only the eigenvectors of the shorter side are searched.
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
	rows, cols, beta := s.q.rows, s.q.cols, float32(s.of.beta)
	if s.left.n > 0 {
		gemm.Mul(rows, rows, cols, 1-beta, matrix(s.g, cols, false), matrix(s.g, cols, true), beta, matrix(s.left.average, rows, false))
	}
	if s.right.n > 0 {
		gemm.Mul(cols, cols, rows, 1-beta, matrix(s.g, cols, true), matrix(s.g, cols, false), beta, matrix(s.right.average, cols, false))
	}
}

// apply adds x to p, which then decays.
func (s *soapStep) apply(x []float32) {
	job := applyJob{stepJob: s.j, x: snug.SliceView(x)}
	job.rule = s.h.Subtracting(-s.h.LR * decayed(s.h))
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

// eachState calls use for each chunk with its states, from element lo on. use may change them if dirty.
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
