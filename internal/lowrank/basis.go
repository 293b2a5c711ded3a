package lowrank

import (
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/gemm"
	"github.com/snug-ml/snug/internal/half"
	"github.com/snug-ml/snug/internal/philox"
	"github.com/snug-ml/snug/internal/sweep"
)

// A basis of few directions of a large matrix comes from a few more directions than are wanted, multiplied a few times
// by the matrix and its transpose. Small matrices have as many directions as their short side.
const (
	extra      = 16
	iterations = 3
	exactSide  = 128
)

// width returns how many directions [Basis] works with.
func width(short, rank int) int {
	if w := rank + extra; short > exactSide && w < short {
		return w
	}
	return short
}

// BasisWork returns how many elements of scratch [Basis] takes, of float32 and of float64.
func BasisWork(rows, cols, rank int) (floats, doubles int) {
	long, short := max(rows, cols), min(rows, cols)
	w := width(short, rank)
	if w == short {
		return short * short, short * short
	}
	return w * (long + short + w), w * w
}

// Basis sets dst, with a row of the short side for each of rank directions, to the leading singular vectors of m on
// that side, in descending order. A direction whose singular value is below 1e-7 of the largest is 0. The signs are
// arbitrary.
//
// A short side of up to 128 is solved exactly: the vectors are the eigenvectors of M·Mᵀ, with M's rows on the short side,
// in float64. A longer one is approximated: three subspace iterations from random vectors of the stream s (Halko,
// Martinsson and Tropp 2011, "Finding Structure with Randomness", algorithms 4.4 and 5.1). The result does not depend on
// the number of workers. All elements of m are read. work and doubles have [BasisWork] elements.
func Basis(dst []float32, m Matrix, rank int, s philox.Stream, work []float32, doubles []float64) {
	short := m.Short()
	w := width(short, rank)
	gram := doubles[:w*w]
	if w == short {
		m.gram(gram)
		top := work[:w*w]
		leading(top, gram, w, rank)
		copy(dst, top[:rank*w])
		complete(dst, rank, short, s)
		return
	}
	scale := 1 / math.Sqrt(sweep.Squares(m.Data, 0, m.Rows*m.Cols)) // products neither overflow nor vanish
	alpha := float32(min(scale, 0x1p126))
	v, y, top := work[:w*short], work[w*short:][:m.Long()*w], work[w*(short+m.Long()):][:w*w]
	Normal(v, s, 0)
	for range iterations {
		multiply(y, alpha, m, v, w)
		channels := m.operand(0, short)
		gemm.Mul(w, short, m.Long(), alpha, gemm.Matrix{Data: snug.SliceView(y), Stride: w, Trans: true}, channels, 0,
			gemm.Matrix{Data: snug.SliceView(v), Stride: short})
		orthonormalize(v, w, short)
	}
	multiply(y, alpha, m, v, w)
	products := Matrix{Data: snug.SliceView(y), Rows: m.Long(), Cols: w}
	products.gram(gram)
	leading(top, gram, w, rank)
	gemm.Mul(rank, short, w, 1, gemm.Matrix{Data: snug.SliceView(top), Stride: w}, gemm.Matrix{Data: snug.SliceView(v), Stride: short}, 0,
		gemm.Matrix{Data: snug.SliceView(dst[:rank*short]), Stride: short})
	complete(dst, rank, short, s)
}

// complete replaces the last directions by random ones if they are 0: later matrices may have what this one lacks.
// Their normal numbers are not those that iterations start with.
func complete(v []float32, rank, short int, s philox.Stream) {
	v = v[:rank*short]
	found := rank
	for found > 0 && dot(v[(found-1)*short:found*short], v[(found-1)*short:found*short]) == 0 {
		found--
	}
	if found < rank {
		Normal(v[found*short:], s, uint64(rank+extra)*uint64(short))
		orthonormalize(v, rank, short)
	}
}

// multiply sets y to alpha times the products of the channels of m with w directions.
func multiply(y []float32, alpha float32, m Matrix, v []float32, w int) {
	short := m.Short()
	gemm.Mul(m.Long(), w, short, alpha, m.operand(0, short), gemm.Matrix{Data: snug.SliceView(v), Stride: short, Trans: true}, 0,
		gemm.Matrix{Data: snug.SliceView(y), Stride: w})
}

// gram sets g to the sum of the products of each channel with itself, a matrix of the short side.
func (m *Matrix) gram(g []float64) {
	clear(g)
	n := m.Short()
	gramTask.Run(cpu.Chunks(n, gramLines), gramArgs{*m, g})
	for i := range n {
		for j := range i {
			g[i*n+j] = g[j*n+i]
		}
	}
}

type gramArgs struct {
	Matrix
	g []float64
}

// gramLines is how many lines of the result a worker computes at a time.
const gramLines = 16

var (
	gramTask = cpu.NewTask(func(a *gramArgs, item int) { a.lines(item) })
	tiles    cpu.Scratch
)

func (a *gramArgs) lines(item int) {
	n := a.Short()
	lo, hi := cpu.Chunk(n, gramLines, item)
	tile := tiles.Get(2 * a.Cols)
	defer tiles.Put(tile)
	if a.Tall() {
		for r := range a.Rows {
			x := half.Floats(a.Data, r*a.Cols, (*tile)[:a.Cols])
			for i := lo; i < hi; i++ {
				f, to := float64(x[i]), a.g[i*n:][i:n]
				for j, v := range x[i:] {
					to[j] += f * float64(v)
				}
			}
		}
		return
	}
	for i := lo; i < hi; i++ {
		x := half.Floats(a.Data, i*a.Cols, (*tile)[:a.Cols])
		for j := i; j < n; j++ {
			a.g[i*n+j] = dot(x, half.Floats(a.Data, j*a.Cols, (*tile)[a.Cols:]))
		}
	}
}

// dot adds in four sums.
func dot(x, y []float32) float64 {
	var s [4]float64
	y = y[:len(x)]
	i := 0
	for ; i+4 <= len(x); i += 4 {
		a, b := (*[4]float32)(x[i:]), (*[4]float32)(y[i:])
		s[0] += float64(a[0]) * float64(b[0])
		s[1] += float64(a[1]) * float64(b[1])
		s[2] += float64(a[2]) * float64(b[2])
		s[3] += float64(a[3]) * float64(b[3])
	}
	for ; i < len(x); i++ {
		s[0] += float64(x[i]) * float64(y[i])
	}
	return s[0] + s[1] + s[2] + s[3]
}

// panel is how many directions are made orthogonal to one another at a time.
const panel = 32

// lost is the share of a vector below which what is left of it is only rounding.
const lost = 1e-5

// orthonormalize makes the rows of v orthonormal, by the Gram-Schmidt process, twice. A row that depends on those
// before it becomes 0.
func orthonormalize(v []float32, rows, cols int) {
	buf := tiles.Get(panel * rows)
	defer tiles.Put(buf)
	var before [panel]float64
	for lo := 0; lo < rows; lo += panel {
		hi := min(lo+panel, rows)
		p := v[lo*cols : hi*cols]
		for i := range hi - lo {
			before[i] = math.Sqrt(dot(p[i*cols:][:cols], p[i*cols:][:cols]))
		}
		for range 2 {
			if lo > 0 {
				all := gemm.Matrix{Data: snug.SliceView(v[:lo*cols]), Stride: cols}
				c := gemm.Matrix{Data: snug.SliceView((*buf)[:(hi-lo)*lo]), Stride: lo}
				these := gemm.Matrix{Data: snug.SliceView(p), Stride: cols}
				along := all
				along.Trans = true
				gemm.Mul(hi-lo, lo, cols, 1, these, along, 0, c)
				gemm.Mul(hi-lo, cols, lo, -1, c, all, 1, these)
			}
			for i := range hi - lo {
				x := p[i*cols:][:cols]
				for j := range i {
					y := p[j*cols:][:cols]
					f := float32(dot(x, y))
					for k, v := range y {
						x[k] -= f * v
					}
				}
				norm := math.Sqrt(dot(x, x))
				if !(norm > lost*before[i]) {
					clear(x)
					before[i] = 0
					continue
				}
				f := float32(1 / norm)
				for k := range x {
					x[k] *= f
				}
				before[i] = 1
			}
		}
	}
}

// nothing is the share of the largest eigenvalue below which one is only rounding.
const nothing = 1e-14

// leading sets top, of n columns, to the rank leading eigenvectors of a symmetric matrix without negative eigenvalues,
// as rows, and destroys the matrix. Those of eigenvalues that are nothing are 0. Rotations make the rows of the matrix
// orthogonal (Hestenes 1958, "Inversion of Matrices by Biorthogonalization and Related Results"): then each is an
// eigenvector times its eigenvalue.
func leading(top []float32, g []float64, n, rank int) {
	const sweeps, small = 40, 1e-15
	for range sweeps {
		largest := 0.0
		for i := range n {
			for j := i + 1; j < n; j++ {
				largest = max(largest, rotate(g[i*n:][:n], g[j*n:][:n]))
			}
		}
		if largest < small {
			break
		}
	}
	first := 0.0
	for k := range rank {
		best, most := 0, -1.0
		for i := range n {
			if s := dots(g[i*n:][:n], g[i*n:][:n]); s > most {
				best, most = i, s
			}
		}
		x, f := g[best*n:][:n], 0.0
		if first = max(first, most); most > nothing*nothing*first {
			f = 1 / math.Sqrt(most)
		}
		for i, v := range x {
			top[k*n+i] = float32(v * f)
		}
		clear(x)
	}
}

// rotate makes two vectors orthogonal, and returns the square of the cosine of the angle between them.
func rotate(x, y []float64) float64 {
	a, b, c := dots(x, x), dots(y, y), dots(x, y)
	if c == 0 {
		return 0
	}
	zeta := (b - a) / (2 * c)
	t := 1 / (math.Abs(zeta) + math.Sqrt(1+zeta*zeta))
	if zeta < 0 {
		t = -t
	}
	cos := 1 / math.Sqrt(1+t*t)
	sin := cos * t
	y = y[:len(x)]
	for i, v := range x {
		w := y[i]
		x[i], y[i] = cos*v-sin*w, sin*v+cos*w
	}
	return c / a * (c / b)
}

func dots(x, y []float64) float64 {
	var s [4]float64
	y = y[:len(x)]
	i := 0
	for ; i+4 <= len(x); i += 4 {
		a, b := (*[4]float64)(x[i:]), (*[4]float64)(y[i:])
		s[0] += a[0] * b[0]
		s[1] += a[1] * b[1]
		s[2] += a[2] * b[2]
		s[3] += a[3] * b[3]
	}
	for ; i < len(x); i++ {
		s[0] += x[i] * y[i]
	}
	return s[0] + s[1] + s[2] + s[3]
}
