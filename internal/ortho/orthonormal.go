package ortho

import (
	"math"
	"math/rand/v2"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/gemm"
)

// panel is how many rows are made orthonormal at a time in float64.
const panel = 32

// orthonormalize makes the n rows of w orthonormal one after the other: row i becomes the part of it that is orthogonal to
// rows 0 to i-1, of length 1. Where a row depends on those before, up to rounding, a pseudo-random row takes its place.
//
// It is Gram and Schmidt's process for a panel of rows at a time, repeated until little is taken away ("twice is enough",
// Giraud, Langou, Rozložník, van den Eshof (2005)). Products with the rows before are matrix products in float32.
// It takes panel·n elements of floats and of doubles.
func orthonormalize(w []float32, n int, floats []float32, doubles []float64) {
	const most = 4
	for lo := 0; lo < n; lo += panel {
		rows := min(panel, n-lo)
		x := w[lo*n:][:rows*n]
		for range most {
			if lo > 0 {
				project(x, w[:lo*n], rows, n, lo, floats)
			}
			if !orthonormalPanel(x, lo, rows, n, doubles) {
				break
			}
		}
	}
}

// project takes from the rows of x their parts along the k rows of q.
func project(x, q []float32, rows, n, k int, floats []float32) {
	of := func(x []float32, stride int, trans bool) gemm.Matrix {
		return gemm.Matrix{Data: snug.SliceView(x), Stride: stride, Trans: trans}
	}
	along := floats[:rows*k]
	gemm.Mul(rows, k, n, 1, of(x, n, false), of(q, n, true), 0, of(along, k, false))
	gemm.Mul(rows, n, k, -1, of(along, k, false), of(q, n, false), 1, of(x, n, false))
}

// orthonormalPanel makes the rows of x orthonormal in float64, and says whether they must be projected again: rows that
// had not length 1 before, as those of the first pass.
func orthonormalPanel(x []float32, first, rows, n int, doubles []float64) (again bool) {
	d := doubles[:rows*n]
	for i, v := range x {
		d[i] = float64(v)
	}
	for i := range rows {
		row := d[i*n:][:n]
		length := math.Sqrt(dot(row, row))
		rest := 0.0
		for try := uint64(0); ; try++ {
			if rest = without(row, d[:i*n], length); rest > 1e-12 || try == 4 {
				break
			}
			random := rand.New(rand.NewPCG(uint64(first+i), try))
			for j := range row {
				row[j] = random.Float64() - 0.5
			}
			length = math.Sqrt(dot(row, row))
		}
		again = again || math.Abs(length*rest-1) > 1e-3
	}
	for i, v := range d {
		x[i] = float32(v)
	}
	return again
}

// without takes from a row its parts along other rows, twice, and brings it to length 1. It returns which part of the
// row's length was left.
func without(row, others []float64, length float64) float64 {
	if !(length >= math.SmallestNonzeroFloat32) {
		return 0
	}
	n := len(row)
	scale(row, 1/length)
	for range 2 {
		for k := 0; k < len(others); k += n {
			other := others[k:][:n]
			along := dot(row, other)
			for j, v := range other {
				row[j] -= along * v
			}
		}
	}
	rest := math.Sqrt(dot(row, row))
	if rest > 0 {
		scale(row, 1/rest)
	}
	return rest
}

func scale(x []float64, by float64) {
	for i := range x {
		x[i] *= by
	}
}

// dot returns the sum of the products, in four parts.
func dot(x, y []float64) float64 {
	var a, b, c, d float64
	y = y[:len(x)]
	i := 0
	for ; i+4 <= len(x); i += 4 {
		a += x[i] * y[i]
		b += x[i+1] * y[i+1]
		c += x[i+2] * y[i+2]
		d += x[i+3] * y[i+3]
	}
	for ; i < len(x); i++ {
		a += x[i] * y[i]
	}
	return a + b + c + d
}
