package optim

import (
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/half"
)

// power returns t^τ, for τ from -1 to 0.
func (h Hyper) power() float64 {
	if h.Step == 1 {
		return 1
	}
	return exp(float64(h.Tau * ln(float64(h.Step))))
}

// size returns α/max(1, rms(u)/d).
func (h Hyper) size(parameter, update float64, n int) float64 {
	rho := min(h.LR, 1/math.Sqrt(float64(h.Step)))
	alpha := max(h.Eps2, math.Sqrt(parameter/float64(n))) * rho
	return alpha / max(1, math.Sqrt(update/float64(n))/h.Clip)
}

// scaled returns the new second moment of an element and its u.
func (c *Coef) scaled(g, v float32) (vi, u float32) {
	g = float32(g * c.gradScale)
	vi = float32(c.beta2*v) + float32(float32(c.rest2*g)*g)
	return vi, g / max(sqrt(vi), c.eps)
}

// factored has no m without momentum. It has no v with Factors, and g is u.
func (c *Coef) factored(p, g, m, v []float32) {
	g = g[:len(p)]
	for i, pi := range p {
		u := g[i]
		if v != nil {
			v[i], u = c.scaled(u, v[i])
		}
		step := float32(c.size * u)
		if m != nil {
			step = float32(c.beta1*m[i]) + float32(c.rest1*step)
			m[i] = step
		}
		p[i] = float32(pi*c.pre) - step
	}
}

// factoredUpdate sets u to the update for g. With Factors g is the update already.
func (c *Coef) factoredUpdate(u, g, v []float32) {
	copy(u, g)
	if c.factors == nil {
		for i, x := range g {
			_, u[i] = c.scaled(x, v[i])
		}
	}
}

// Factors stand for the second moment of a matrix: v of row i and column j is
// R[i]·C[j]/mean(R), where R and C are the means of the squares in every row and
// column, averaged over the steps.
type Factors struct {
	rows, cols []float32 // √(max(mean(R), ε)/R) and 1/√C
	limit      float32   // 1/ε
}

// Roots sets roots to √(max(mean(R), ε)/R) and, behind it, 1/√C, for the means R, and C
// behind it, of a matrix of so many rows. R is added by [Lanes] partial sums, as a row is.
func (h Hyper) Roots(roots, both []float32, rows int) {
	var lanes [Lanes]float64
	for i, r := range both[:rows] {
		lanes[i%Lanes] += float64(r)
	}
	for d := Lanes / 2; d > 0; d /= 2 {
		for i := range d {
			lanes[i] += lanes[i+d]
		}
	}
	mean := max(lanes[0]/float64(rows), h.Eps)
	for i, x := range both {
		if i < rows {
			roots[i] = float32(math.Sqrt(mean / float64(x)))
		} else {
			roots[i] = float32(1 / math.Sqrt(float64(x)))
		}
	}
}

// RootLimit returns 1/ε, the most that the product of two roots counts.
func (h Hyper) RootLimit() float32 { return float32(min(1/h.Eps, math.MaxFloat32)) }

// NewFactors returns the factors that have these [Hyper.Roots], which are theirs from now
// on, and this [Hyper.RootLimit].
func NewFactors(roots []float32, rows int, limit float32) Factors {
	return Factors{rows: roots[:rows], cols: roots[rows:], limit: limit}
}

// SetFactors replaces [Hyper.Factors].
func (c *Coef) SetFactors(f *Factors) { c.factors = f }

// apply writes the elements of u = g·scale/max(√v, ε) from lo on, for as many of g,
// which u may be. Where v is 0 the product of the roots is infinite, never NaN, as no
// gradient is so large that one could be 0.
func (f *Factors) apply(u, g []float32, lo int, scale float32) {
	i, j := lo/len(f.cols), lo%len(f.cols)
	for len(g) > 0 {
		row, cols := f.rows[i], f.cols[j:]
		n := min(len(g), len(cols))
		for k, c := range cols[:n] {
			root := float32(row * c)
			if root > f.limit {
				root = f.limit
			}
			u[k] = float32(float32(g[k]*scale) * root)
		}
		u, g = u[n:], g[n:]
		i, j = i+1, 0
	}
}

// Average updates R or C, moving averages of mean squares, from this step's sums of n
// squares: x ← β·x + (1-β)·sum/n.
func (h Hyper) Average(x []float32, sums []float64, n int) {
	keep, add := h.MeanFactors(n)
	for i, s := range sums {
		x[i] = float32(keep*x[i]) + float32(add*s)
	}
}

// MeanFactors returns β and (1-β)/n of [Hyper.Average].
func (h Hyper) MeanFactors(n int) (keep float32, add float64) {
	rest := h.power()
	return float32(1 - rest), rest / float64(n)
}

// Lanes is the number of partial sums of a row. The element in column j of a part enters
// partial sum j mod Lanes. The sums are added pairwise, the first half to the second, so
// that devices can add them in the same order.
const Lanes = 32

// RowsAndColumns sums the squares of g·scale over a part of a matrix of cols columns that
// begins at element number at of g. It sets rowSums, and adds to the column sums row by row.
// Elements that [Hyper.Skip] skips, by skip, count as 0. scratch has a tile of elements, a
// multiple of [Lanes].
func RowsAndColumns(g snug.View, at, cols int, scale float32, skip uint32, rowSums, colSums []float64, scratch []float32) {
	for i := range rowSums {
		var lanes [Lanes]float64
		for j := 0; j < len(colSums); j += len(scratch) {
			to := colSums[j:min(j+len(scratch), len(colSums))]
			x := half.Floats(g, at+i*cols+j, scratch[:len(to)])
			if skip != 0 {
				copy(scratch, x)
				x = scratch[:len(x)]
				leave(x, scale, skip, 0)
			}
			for ; len(x) >= Lanes; x, to = x[Lanes:], to[Lanes:] {
				addSquares(&lanes, (*[Lanes]float64)(to), (*[Lanes]float32)(x), scale)
			}
			for k, x := range x {
				square := squareOf(float32(x * scale))
				lanes[k] += square
				to[k] += square
			}
		}
		for n := Lanes / 2; n > 0; n /= 2 {
			for l := range n {
				lanes[l] += lanes[l+n]
			}
		}
		rowSums[i] = lanes[0]
	}
}

// leave makes the elements of g that are skipped by.
func leave(g []float32, scale float32, skip uint32, by float32) {
	for i, x := range g {
		if skipped(float32(x*scale), skip) {
			g[i] = by
		}
	}
}

// skipped says whether an element with the gradient g is left alone.
func skipped(g float32, skip uint32) bool { return math.Float32bits(g)&(1<<31-1) >= skip }

// squareOf is exact.
func squareOf(x float32) float64 { return float64(x) * float64(x) }

// addSquares adds the squares of x·scale to both.
func addSquares(lanes, to *[Lanes]float64, x *[Lanes]float32, scale float32) {
	for k := 0; k < Lanes; k += 4 {
		a, b := squareOf(float32(x[k]*scale)), squareOf(float32(x[k+1]*scale))
		c, d := squareOf(float32(x[k+2]*scale)), squareOf(float32(x[k+3]*scale))
		lanes[k], lanes[k+1], lanes[k+2], lanes[k+3] = lanes[k]+a, lanes[k+1]+b, lanes[k+2]+c, lanes[k+3]+d
		to[k], to[k+1], to[k+2], to[k+3] = to[k]+a, to[k+1]+b, to[k+2]+c, to[k+3]+d
	}
}
