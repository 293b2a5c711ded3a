package ortho

import (
	"cmp"
	"math"
	"slices"

	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/lapack/gonum"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/gemm"
)

// blocked is how many times the side of a matrix LAPACK has as scratch, for its blocks of 32 columns, beside the diagonal.
const blocked = 34

// EigenWork returns how many elements of scratch [Eigenvectors], [Complete] and [Refresh] take for a matrix of n×n.
// Eigenvectors takes none of float32.
func EigenWork(n int) (floats, doubles int) { return n * n, n*n + (1+blocked)*n }

// Eigenvectors sets the columns of q, of n×n elements, to the eigenvectors of a symmetric matrix a of the same size,
// by descending eigenvalues, and says whether it found them. Signs are arbitrary. It works in float64, and reads the
// elements of a on its diagonal and above. The result does not depend on the number of workers. It takes about
// 9·n³ floating-point operations, and allocates if n is above 64.
//
// Householder reflections bring the matrix to tridiagonal form, and the QL algorithm with implicit shifts to a diagonal
// (Bowdler, Martin, Reinsch, Wilkinson, "The QR and QL algorithms for symmetric matrices" (1968)). Its rotations are
// collected, and applied to a few columns of the vectors at a time, which stay in the cache.
func Eigenvectors(q, a []float32, n int, doubles []float64) bool {
	if n == 0 {
		return true
	}
	s, rest := doubles[:n*n], doubles[n*n:]
	for i, v := range a[:n*n] {
		s[i] = float64(v)
	}
	diagonal, beside, tau, work := rest[:n], rest[n:][:n], rest[2*n:][:n], rest[3*n:][:(blocked-2)*n]
	lapack := gonum.Implementation{}
	lapack.Dsytrd(blas.Upper, n, s, n, diagonal, beside[:n-1], tau[:n-1], work, len(work))
	lapack.Dorgtr(blas.Upper, n, s, n, tau[:n-1], work, len(work))
	transpose(s, n)
	beside[n-1] = 0
	r := rotations{vectors: s, n: n, factors: work}
	if !r.diagonalize(diagonal, beside) {
		return false
	}
	order := make([]int, n)
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int { return cmp.Compare(diagonal[j], diagonal[i]) })
	for j, from := range order {
		for i, v := range s[from*n:][:n] {
			q[i*n+j] = float32(v)
		}
	}
	return true
}

// transpose replaces a square matrix by its transposed form.
func transpose[T float32 | float64](x []T, n int) {
	const tile = 16
	for i0 := 0; i0 < n; i0 += tile {
		for j0 := i0; j0 < n; j0 += tile {
			for i := i0; i < min(i0+tile, n); i++ {
				for j := max(j0, i+1); j < min(j0+tile, n); j++ {
					x[i*n+j], x[j*n+i] = x[j*n+i], x[i*n+j]
				}
			}
		}
	}
}

// chain is a sequence of rotations of the rows i and i+1, for i from top-1 down to top-count.
type chain struct{ top, count, at int }

// maxSweeps is how many sweeps are applied to the vectors at once.
const maxSweeps = 64

// rotations are sweeps that are not yet applied to the vectors, which are rows. factors are pairs of sine and cosine.
type rotations struct {
	vectors []float64
	n       int
	factors []float64
	used    int
	sweeps  [maxSweeps]chain
	many    int
}

// diagonalize finds the eigenvalues of a symmetric tridiagonal matrix with a diagonal d and e beside it, whose last element
// is 0, and applies its rotations to the vectors. d becomes the eigenvalues. It returns false if it does not converge.
func (r *rotations) diagonalize(d, e []float64) bool {
	const epsilon, rounds = 0x1p-52, 60
	norm := 0.0
	for i, x := range d {
		norm = max(norm, math.Abs(x)+math.Abs(e[i]))
	}
	small := func(m int) bool { // an element that does not change its neighbours, or is far below the rounding of the vectors
		return math.Abs(e[m]) <= epsilon*max(math.Abs(d[m])+math.Abs(d[m+1]), norm/16)
	}
	for l := range d {
		for round := 0; ; round++ {
			m := l
			for m < len(d)-1 && !small(m) {
				m++
			}
			if m == l {
				break
			}
			if round == rounds || math.IsNaN(norm) {
				return false
			}
			if len(r.factors)-r.used < 2*(m-l) || r.many == maxSweeps {
				r.apply()
			}
			shift := (d[l+1] - d[l]) / (2 * e[l])
			g := d[m] - d[l] + e[l]/(shift+math.Copysign(math.Hypot(shift, 1), shift))
			sin, cos, p, at, i := 1.0, 1.0, 0.0, r.used, m-1
			for ; i >= l; i-- {
				f, b := sin*e[i], cos*e[i]
				length := math.Hypot(f, g)
				e[i+1] = length
				if length == 0 { // the matrix falls into two
					d[i+1] -= p
					e[m] = 0
					break
				}
				sin, cos = f/length, g/length
				g = d[i+1] - p
				x := (d[i]-g)*sin + 2*cos*b
				p = sin * x
				d[i+1] = g + p
				g = cos*x - b
				r.factors[r.used], r.factors[r.used+1] = sin, cos
				r.used += 2
			}
			r.sweeps[r.many] = chain{m, (r.used - at) / 2, at}
			r.many++
			if i >= l {
				continue
			}
			d[l] -= p
			e[l], e[m] = g, 0
		}
	}
	r.apply()
	return true
}

// rotated is how many columns of the vectors a worker rotates at a time: of 2048 rows they have 512 KiB.
const rotated = 32

var rotateTask = cpu.NewTask(func(a **rotations, item int) {
	r := *a
	lo, hi := cpu.Chunk(r.n, rotated, item)
	for _, s := range r.sweeps[:r.many] {
		factors := r.factors[s.at:][:2*s.count]
		for k := range s.count {
			i := s.top - 1 - k
			sin, cos := factors[2*k], factors[2*k+1]
			x, y := r.vectors[i*r.n+lo:i*r.n+hi], r.vectors[(i+1)*r.n+lo:(i+1)*r.n+hi]
			for j, v := range x {
				w := y[j]
				y[j] = sin*v + cos*w
				x[j] = cos*v - sin*w
			}
		}
	}
})

// apply applies the sweeps.
func (r *rotations) apply() {
	rotateTask.Run(cpu.Chunks(r.n, rotated), r)
	r.used, r.many = 0, 0
}

// Complete makes the first k columns of q, of n×n elements, orthonormal one after the other, and adds n-k orthonormal
// columns. Columns that depend on those before are replaced by others. It takes scratch as [Refresh] does.
func Complete(q []float32, n, k int, floats []float32, doubles []float64) {
	transpose(q[:n*n], n)
	clear(q[k*n : n*n])
	orthonormalize(q[:n*n], n, floats, doubles)
	transpose(q[:n*n], n)
}

// Refresh replaces the columns of q, which are nearly eigenvectors of a symmetric matrix a of n×n elements, by better
// ones: the orthonormal factor of a·q, whose columns are sorted before by descending qᵀ·a·q. This is one step of the
// power iteration. It sets order, of n elements, to which column of q was each of the new ones. It takes about 10·n³
// floating-point operations, in float32 except for sums within 32 columns. The columns are orthonormal up to 1e-5. The
// result does not depend on the number of workers.
func Refresh(q, a []float32, n int, order []int64, floats []float32, doubles []float64) {
	y := floats[:n*n]
	gemm.Mul(n, n, n, 1, square(a, n), square(q, n), 0, square(y, n))
	values := doubles[n*n:][:n]
	clear(values)
	for i := range n {
		for j := range n {
			values[j] += float64(q[i*n+j]) * float64(y[i*n+j])
		}
	}
	for i := range order[:n] {
		order[i] = int64(i)
	}
	slices.SortStableFunc(order[:n], func(i, j int64) int { return cmp.Compare(values[j], values[i]) })
	for i := range n {
		for j, from := range order[:n] {
			q[i*n+j] = y[i*n+int(from)]
		}
	}
	transpose(q[:n*n], n)
	orthonormalize(q[:n*n], n, floats, doubles)
	transpose(q[:n*n], n)
}

// square is an operand of n×n elements.
func square(x []float32, n int) gemm.Matrix {
	return gemm.Matrix{Data: snug.SliceView(x[:n*n]), Stride: n}
}
