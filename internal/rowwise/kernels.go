// Package rowwise has the loops over rows of package fused and package attention.
// [Kernels] are exponentials, softcaps, sums and scaled additions of float32. [Layers] are
// the layers between the matmuls, for one type of elements: norms, activations, dropout,
// rotary embedding.
//
// All slices of a call have the length of the first unless its doc says
// otherwise; the caller checks that, for the assembly does not. A destination
// may be the same slice as any source, or not overlap it at all.
//
// # Accuracy
//
// Elementwise arithmetic (Scale, ScaleAbove, Add, Axpby, AddScaled, Dropout,
// Rotate, RotatePairs, ScoreGrad, SoftcapSlopes, Ramp, RampMul, Leaky, Slopes,
// OutputSlopes, Affine, AffineGrad and all of columns) has the same bits on every tier. Exponentials,
// results computed from them, sums and norms keep the bounds that their docs
// state on every tier.
//
// Sums run on L lanes, element i on lane i modulo L until fewer than L are
// left, which begin again with lane 0 on a smaller number of lanes; the lanes
// are then added in pairs. L is 4 in Go and at most 64. The order is fixed for a
// tier and a length. With u = 2⁻²⁴ the error of n terms is at most
// (n/4+4)·u·Σ|term|.
package rowwise

import "github.com/snug-ml/snug/internal/cpu"

// Kernels are the loops of one tier.
type Kernels struct {
	// Max returns the greatest of most and scale·x[i]. NaNs do not count. When
	// that is zero, its sign is either.
	Max func(x []float32, scale, most float32) float32

	// ExpSum sets dst[i] to exp(src[i] − max) and returns their sum. The
	// exponential is off by less than 1 unit in the last place, also where it
	// is subnormal; it is 0 below −104, +Inf above 88.73 and NaN for NaN.
	ExpSum func(dst, src []float32, max float32) (sum float32)

	// Exp2Sum replaces row[i] by 2^y, y = scale·row[i] − base, and returns
	// their sum. The product is rounded before the subtraction, as in Max, so
	// that an element which gave the base has the power 1. The power is within
	// 2 units in the last place; it is 0 for y < −100, +Inf from y = 128 on and
	// NaN for NaN. Beside a power of 1 such a power is nothing, and its products
	// are subnormal numbers, with which processors are many times slower.
	Exp2Sum func(row []float32, scale, base float32) (sum float32)

	// ScoreGrad sets ds[i] to p[i]·(ds[i] − delta)·scale.
	ScoreGrad func(ds, p []float32, delta, scale float32)

	// MaxRows sets most[i] to Max of what counts of row i.
	MaxRows func(most []float32, t Tile, scale float32)

	// Exp2Rows is Exp2Sum with base[i] for what counts of row i, whose sum it sets. The rest of a
	// row becomes 0, also beyond Cols up to a multiple of TileCols. No y is +Inf.
	Exp2Rows func(sums []float32, t Tile, scale float32, base []float32)

	// GradRows is Exp2Rows without sums, and then ScoreGrad with delta[i] and scaleGrad for row i of
	// ds, which lies like t.X. What does not count of ds becomes 0 too.
	GradRows func(ds []float32, t Tile, scale float32, base, delta []float32, scaleGrad float32)

	// Softcap replaces x[i] by limit·tanh(slope·x[i]). The tanh is within 2 units in
	// the last place, ±1 at ±Inf and NaN for NaN. That of −0 is a 0 of either sign.
	Softcap func(x []float32, slope, limit float32)

	// SoftcapSlopes sets dst[i] to scale·(1 − t²), t = inverse·x[i]: the derivatives of
	// softcaps x with the limit 1/inverse.
	SoftcapSlopes func(dst, x []float32, inverse, scale float32)

	// CenteredSums returns the sums of d = x[i] − center and of d².
	CenteredSums func(x []float32, center float32) (sum, squares float32)

	// CenteredDots returns the sums of dy[i] and of dy[i]·(x[i] − center).
	CenteredDots func(dy, x []float32, center float32) (sum, dot float32)

	// Affine sets dst[i] to (x[i] − center)·scale + shift. With stream it writes around the caches where it can, as
	// Layers do.
	Affine func(dst, x []float32, center, scale, shift float32, stream bool)

	// AffineGrad sets dx[i] to beta·dx[i] + a·dy[i] + b·(x[i] − center) + c. With beta 0 it does not read dx.
	AffineGrad func(dx, dy, x []float32, center, a, b, c, beta float32, stream bool)

	// ColumnSums adds d = x[i] − center[i] to sum[i] and d² to squares[i].
	ColumnSums func(sum, squares, x, center []float32)

	// ColumnDots adds dy[i] to sum[i] and dy[i]·(x[i] − center[i]) to dot[i].
	ColumnDots func(sum, dot, dy, x, center []float32)

	// ColumnAffine and ColumnAffineGrad are Affine and AffineGrad with factors for each element.
	ColumnAffine     func(dst, x, center, scale, shift []float32, stream bool)
	ColumnAffineGrad func(dx, dy, x, center, a, b, c []float32, beta float32, stream bool)

	// Dot returns Σ x[i]·y[i].
	Dot func(x, y []float32) float32

	// Finite reports whether x has neither NaN nor infinity.
	Finite func(x []float32) bool

	// Scale sets dst[i] to a·src[i].
	Scale func(dst, src []float32, a float32)

	// ScaleAbove replaces x[i] by a·x[i] where it is at least the positive
	// least, or NaN, and by 0 elsewhere.
	ScaleAbove func(x []float32, a, threshold float32)

	// Fence makes what Rows wrote around the caches visible to the goroutines that
	// the caller synchronizes with next.
	Fence func()

	// Prefetch begins to fetch x into the caches where it can.
	Prefetch func(x []byte)

	// CopyAround copies src to dst, as long, around the caches where it can, as Layers do with stream. next is likely to
	// be copied next.
	CopyAround func(dst, src, next []byte)

	// Axpby sets acc[i] to beta·acc[i] + alpha·x[i].
	Axpby func(acc, x []float32, alpha, beta float32)
}

// Registry holds the loops of every tier.
var Registry cpu.Registry[Kernels]

func copyPlain(dst, src, _ []byte) { copy(dst, src) }

func init() {
	Registry.Add(cpu.Go, Kernels{
		Max: maximum, ExpSum: expSum, Exp2Sum: exp2Sum, ScoreGrad: scoreGrad,
		Softcap: softcap, SoftcapSlopes: softcapSlopes,
		Dot: dot, Finite: finite, Scale: scale, ScaleAbove: scaleAbove, Axpby: axpby,
		CenteredSums: centeredSums, CenteredDots: centeredDots, Affine: affine, AffineGrad: affineGrad,
		ColumnSums: columnSums, ColumnDots: columnDots, ColumnAffine: columnAffine, ColumnAffineGrad: columnAffineGrad,
		Fence: func() {}, Prefetch: func([]byte) {}, CopyAround: copyPlain,
	}.tileLoops())
}
