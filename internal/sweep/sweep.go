// Package sweep is the passes over whole gradients: multiply, sum squares, look
// for values too large, and accumulate. Each reads a vector of float32,
// binary16 or bfloat16 once, from host memory, on the calling goroutine, and
// allocates nothing. All tiers give the same bits, except the payloads of NaNs.
package sweep

import (
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
)

// Infinity is a limit for [FirstNotBelow]: the bits of the float32 infinity,
// above which the magnitudes of NaNs lie.
const Infinity = 0x7f800000

// Kernels are the passes of one tier.
type Kernels struct {
	F32  Passes[float32]
	F16  Passes[snug.Float16]
	BF16 Passes[snug.BFloat16]

	// ScaleSquares is Scale and Squares in one pass.
	ScaleSquares func(x []float32, factor float32) Sums
}

// Passes are the passes over vectors of T.
type Passes[T snug.Element] struct {
	Scale         func(x []T, factor float32)
	Clamp         func(x []T, limit float32)
	Squares       func(x []T) Sums
	FirstNotBelow func(x []T, scale float32, limit uint32) int
	Accumulate    func(acc []float32, g []T, alpha, beta float32)
	AccumulateFar func(acc []float32, g []T, alpha, beta float32) // for vectors that no cache holds
}

// far is from how many elements on vectors are taken to lie in memory.
const far = 1 << 22

func (p *Passes[T]) accumulate(acc []float32, g []T, lo int, alpha, beta float32) {
	part := g[lo:][:len(acc)]
	if len(g) >= far {
		p.AccumulateFar(acc, part, alpha, beta)
	} else {
		p.Accumulate(acc, part, alpha, beta)
	}
}

// Registry holds the passes of every tier.
var Registry cpu.Registry[Kernels]

// The order in which squares are added.
const (
	lanes    = 8
	quarters = 4
	quarter  = 2048 // elements
	block    = quarters * quarter
)

// Sums are partial sums of squares. Element i of a vector is added to lane
// i mod 8 of one of four groups of lanes: of its quarter, if it lies in a whole
// block of four quarters, otherwise of the first. Kernels then can go through
// the quarters at a time, and add several lanes at a time, in the same order.
type Sums [quarters * lanes]float64

// Total adds the lanes, pairwise.
func (s Sums) Total() float64 {
	for n := len(s) / 2; n > 0; n /= 2 {
		for l := range n {
			s[l] += s[l+n]
		}
	}
	return s[0]
}

// Scale multiplies elements lo to hi-1 of v by factor, in float32, and rounds
// the products to the type of v.
func Scale(v snug.View, lo, hi int, factor float32) {
	k := Registry.Best()
	switch v.DType() {
	case snug.F32:
		k.F32.Scale(v.Float32s()[lo:hi], factor)
	case snug.F16:
		k.F16.Scale(v.Float16s()[lo:hi], factor)
	case snug.BF16:
		k.BF16.Scale(v.BFloat16s()[lo:hi], factor)
	}
}

// Clamp cuts elements lo to hi-1 of v off above limit and below -limit, in
// float32, and rounds them to the type of v. Values that are not finite become
// NaN, so that they are found later. limit is finite, 0 or more.
func Clamp(v snug.View, lo, hi int, limit float32) {
	k := Registry.Best()
	switch v.DType() {
	case snug.F32:
		k.F32.Clamp(v.Float32s()[lo:hi], limit)
	case snug.F16:
		k.F16.Clamp(v.Float16s()[lo:hi], limit)
	case snug.BF16:
		k.BF16.Clamp(v.BFloat16s()[lo:hi], limit)
	}
}

// Squares returns the sum of the squares of elements lo to hi-1 of v, in
// float64. The largest float32 squared is far from the largest float64, so the
// sum is finite just if all elements are.
func Squares(v snug.View, lo, hi int) float64 {
	k := Registry.Best()
	switch v.DType() {
	case snug.F32:
		return k.F32.Squares(v.Float32s()[lo:hi]).Total()
	case snug.F16:
		return k.F16.Squares(v.Float16s()[lo:hi]).Total()
	case snug.BF16:
		return k.BF16.Squares(v.BFloat16s()[lo:hi]).Total()
	}
	return 0
}

// ScaleSquares is [Scale] and then [Squares], in one pass where v holds
// float32.
func ScaleSquares(v snug.View, lo, hi int, factor float32) float64 {
	if x := v.Float32s(); x != nil {
		return Registry.Best().ScaleSquares(x[lo:hi], factor).Total()
	}
	Scale(v, lo, hi, factor)
	return Squares(v, lo, hi)
}

// FirstNotBelow returns the first index i, from lo to hi-1, where the magnitude
// of v[i]·scale has bits of limit or more, which are at most [Infinity], or -1.
func FirstNotBelow(v snug.View, lo, hi int, scale float32, limit uint32) int {
	k, i := Registry.Best(), -1
	switch v.DType() {
	case snug.F32:
		i = k.F32.FirstNotBelow(v.Float32s()[lo:hi], scale, limit)
	case snug.F16:
		i = k.F16.FirstNotBelow(v.Float16s()[lo:hi], scale, limit)
	case snug.BF16:
		i = k.BF16.FirstNotBelow(v.BFloat16s()[lo:hi], scale, limit)
	}
	if i < 0 {
		return -1
	}
	return lo + i
}

// Accumulate computes acc = alpha·g + beta·acc with both products rounded, for
// the len(acc) elements of g from lo on. It does not read acc for a beta of 0.
func Accumulate(acc []float32, g snug.View, lo int, alpha, beta float32) {
	k := Registry.Best()
	switch g.DType() {
	case snug.F32:
		k.F32.accumulate(acc, g.Float32s(), lo, alpha, beta)
	case snug.F16:
		k.F16.accumulate(acc, g.Float16s(), lo, alpha, beta)
	case snug.BF16:
		k.BF16.accumulate(acc, g.BFloat16s(), lo, alpha, beta)
	}
}
