package quant8

import (
	"cmp"
	"math"

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
// 8·rows² and 8·cols², and 4 for the number of steps. A matrix of 1024×1024 takes 25 MB, AdamW 8.4 MB with 32 bits. The
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

// turning says how SOAP rotates the gradients of matrices. frequency is 0 for other rules.
type turning struct {
	beta              float64
	frequency, maxDim int
}

func (r SOAP) equation() equation {
	e := equation{name: "SOAP", hyper: optim.Hyper{Rule: optim.Adam, PlainEps: true, WeightDecay: float64(r.WeightDecay)}}
	beta2 := cmp.Or(r.Beta2, 0.95)
	e.moments(cmp.Or(r.Beta1, 0.95), beta2)
	e.number("PreconditionerBeta", &e.soap.beta, r.PreconditionerBeta, beta2, 1)
	e.number("Eps", &e.hyper.Eps, r.Eps, 1e-8, math.MaxFloat32)
	if e.soap.frequency = cmp.Or(r.Frequency, 10); e.soap.frequency < 1 {
		e.refuse("Frequency is %d, want 1 or more", r.Frequency)
	}
	if e.soap.maxDim = cmp.Or(r.MaxDim, 10_000); e.soap.maxDim < 1 || e.soap.maxDim > mostDim {
		e.refuse("MaxDim is %d, want 1 to %d", r.MaxDim, mostDim)
	}
	return e
}

// turned returns the shape of a matrix with the sides that have a preconditioner, or a zero shape without such sides.
func (t *turning) turned(rows, cols int) shape {
	s := shape{rows: rows, cols: cols}
	if rows <= t.maxDim {
		s.left = rows
	}
	if cols <= t.maxDim {
		s.right = cols
	}
	if rows == 0 || cols == 0 || !s.turns() {
		return shape{}
	}
	return s
}

// turns reports whether a matrix has a preconditioner of SOAP.
func (s shape) turns() bool { return s.left|s.right > 0 }

// squares returns how many elements the preconditioners and their bases have.
func (s shape) squares() int64 {
	return 2 * (int64(s.left)*int64(s.left) + int64(s.right)*int64(s.right))
}

// turnOperations returns the floating-point operations of a step of a matrix of SOAP, and those of a refresh besides.
func (s shape) turnOperations() (step, refresh float64) {
	n := float64(s.rows) * float64(s.cols)
	for _, side := range [2]int{s.left, s.right} {
		k := float64(side)
		step, refresh = step+6*n*k, refresh+4*n*k+10*k*k*k
	}
	return step, refresh
}

// turnScratch returns how many elements of float32 and of float64 a step of a matrix of SOAP needs.
func (s shape) turnScratch() (floats, doubles int64) {
	k := int64(max(s.left, s.right))
	square, more := ortho.EigenWork(int(k))
	return 1 + s.squares() + 4*int64(s.rows)*int64(s.cols) + int64(square), int64(more)
}
