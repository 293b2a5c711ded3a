// Package vexp holds the loops over rows of float32 that package fused and
// package attention are made of: exponentials and what is built on them,
// sums, and the arithmetic of norms.
//
// All slices of a call have the length of the first unless its doc says
// otherwise; the caller checks that, for the assembly does not. A destination
// may be the same slice as any source, or not overlap it at all.
//
// # Accuracy
//
// Elementwise arithmetic (Scale, Add, Axpby, LayerNorm, LayerNormGrad, RMSNorm,
// RMSNormGrad, Dropout, Rotate, RotatePairs, ScoreGrad) has the same bits on
// every tier. Exponentials, what is computed from them, and sums keep the bounds
// that their docs state on every tier.
//
// Sums run on L lanes, element i on lane i modulo L until fewer than L are
// left, which begin again with lane 0 on a smaller number of lanes; the lanes
// are then added in pairs. L is 4 in Go and at most 64. The order is fixed for a
// tier and a length. With u = 2⁻²⁴ the error of n terms is at most
// (n/4+4)·u·Σ|term|.
package vexp

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
	// 2 units in the last place; it is 0 for y < −126, where it would be
	// subnormal, +Inf from y = 128 on and NaN for NaN.
	Exp2Sum func(row []float32, scale, base float32) (sum float32)

	// ScoreGrad sets ds[i] to p[i]·(ds[i] − delta)·scale.
	ScoreGrad func(ds, p []float32, delta, scale float32)

	// GELU sets dst[i] to gelu(x[i] + bias[i]), the tanh approximation. With z
	// the rounded sum, the error is at most 1.2e-7·max(1, |z|). −Inf gives −0.
	GELU func(dst, x, bias []float32)

	// GELUGrad sets dx[i] to dy[i]·gelu′(x[i] + bias[i]) and adds it to sums[i].
	// The derivative is within 2e-7.
	GELUGrad func(dx, sums, dy, x, bias []float32)

	// SiLUMul sets dst[i] to silu(gate[i])·up[i], with silu(x) = x·σ(x). silu
	// has the error bound of GELU, and −Inf gives −0.
	SiLUMul func(dst, gate, up []float32)

	// SiLUMulGrad sets dup[i] to dy[i]·silu(gate[i]), and dgate[i] to
	// dy[i]·up[i]·silu′(gate[i]). The derivative is within 2e-7.
	SiLUMulGrad func(dgate, dup, dy, gate, up []float32)

	// Sum returns Σ x[i].
	Sum func(x []float32) float32

	// Dot returns Σ x[i]·y[i].
	Dot func(x, y []float32) float32

	// SumSquares returns Σ (x[i] − center)².
	SumSquares func(x []float32, center float32) float32

	// Finite reports whether x has neither NaN nor infinity.
	Finite func(x []float32) bool

	// LayerNorm sets dst[i] to (x[i] − mean)·rstd·gamma[i] + beta[i].
	LayerNorm func(dst, x, gamma, beta []float32, mean, rstd float32)

	// LayerNormSums adds a row's part to the gradients of gamma and beta and
	// returns what LayerNormGrad needs of it. With x̂[i] = (x[i] − mean)·rstd:
	//
	//	dgamma[i] += dy[i]·x̂[i]
	//	dbeta[i] += dy[i]
	//	sum, sumX = Σ dy[i]·gamma[i], Σ dy[i]·gamma[i]·x̂[i]
	LayerNormSums func(dgamma, dbeta, dy, x, gamma []float32, mean, rstd float32) (sum, sumX float32)

	// LayerNormGrad sets dst[i] to rstd·(dy[i]·gamma[i] − avg − x̂[i]·avgX).
	LayerNormGrad func(dst, dy, x, gamma []float32, mean, rstd, avg, avgX float32)

	// RMSNorm, RMSNormSums and RMSNormGrad are the same without mean and beta.
	RMSNorm     func(dst, x, gamma []float32, rstd float32)
	RMSNormSums func(dgamma, dy, x, gamma []float32, rstd float32) (sumX float32)
	RMSNormGrad func(dst, dy, x, gamma []float32, rstd, avgX float32)

	// Add sets dst[i] to a[i] + b[i].
	Add func(dst, a, b []float32)

	// Scale sets dst[i] to a·src[i].
	Scale func(dst, src []float32, a float32)

	// Stream copies src to dst around the caches where it can. They do not
	// overlap. A goroutine that streams calls Fence before it synchronizes with
	// those that read the results.
	Stream func(dst, src []float32)
	Fence  func()

	// Prefetch begins to fetch x into the caches where it can.
	Prefetch func(x []byte)

	// Axpby sets acc[i] to beta·acc[i] + alpha·x[i].
	Axpby func(acc, x []float32, alpha, beta float32)

	// Dropout sets dst[i] to scale·src[i] where words[i] is at least
	// threshold, and to 0 elsewhere.
	Dropout func(dst, src []float32, words []uint32, threshold uint32, scale float32)

	// Rotate turns the pairs (a[i], b[i]) by the angle of cos[i] and sin[i],
	// forward with turn 1 and back with −1.
	Rotate func(a, b, cos, sin []float32, turn float32)

	// RotatePairs turns the pairs (x[2i], x[2i+1]) so. x is twice as long as
	// cos and sin.
	RotatePairs func(cos, sin, x []float32, turn float32)
}

// Registry holds the loops of every tier.
var Registry cpu.Registry[Kernels]

func init() {
	Registry.Add(cpu.Go, Kernels{
		Max: maximum, ExpSum: expSum, Exp2Sum: exp2Sum, ScoreGrad: scoreGrad,
		GELU: gelu, GELUGrad: geluGrad, SiLUMul: siluMul, SiLUMulGrad: siluMulGrad,
		Sum: sum, Dot: dot, SumSquares: sumSquares, Finite: finite,
		LayerNorm: layerNorm, LayerNormSums: layerNormSums, LayerNormGrad: layerNormGrad,
		RMSNorm: rmsNorm, RMSNormSums: rmsNormSums, RMSNormGrad: rmsNormGrad,
		Add: add, Scale: scale, Stream: stream, Fence: func() {}, Prefetch: func([]byte) {}, Axpby: axpby, Dropout: dropout, Rotate: rotate, RotatePairs: rotatePairs,
	})
}
