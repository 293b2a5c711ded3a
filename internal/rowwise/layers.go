package rowwise

import "github.com/snug-ml/snug/internal/cpu"

// Layers are the layers of one tier over rows of T, float32 or the bits of
// bfloat16. With stream they write results around the caches where they can. A
// goroutine then calls [Kernels].Fence before it synchronizes with the goroutines
// that read the results. A row has at least one element where a mean is taken.
//
// Arithmetic is float32 also for bfloat16, whose results are rounded to nearest
// even. A stated bound for bfloat16 holds before that rounding.
//
// Sums over rows (dgamma, dbeta and sums) have their elements in another order, which
// Order undoes. All other operands are in order.
type Layers[T float32 | uint16] struct {
	// Add sets dst[i] to a[i] + b[i].
	Add func(dst, a, b []T, stream bool)

	// AddNext is Add for rows that lie anywhere: nextA and nextB are likely to be next, and need not have the length
	// of a.
	AddNext func(dst, a, b, nextA, nextB []T, stream bool)

	// AddScaled adds alpha·x[i] to acc[i]. Both are in order. nextAcc and nextX
	// are likely to be next, and need not have the length of acc.
	AddScaled func(acc []float32, x []T, alpha float32, nextAcc []float32, nextX []T)

	// GELU sets dst[i] to gelu(x[i] + bias[i]), the tanh approximation. With z
	// the rounded sum, the error is at most 1.2e-7·max(1, |z|), for bfloat16
	// 1.2e-5·max(1, |z|). −Inf gives −0.
	GELU func(dst, x, bias []T, stream bool)

	// GELUGrad sets dx[i] to dy[i]·gelu′(x[i] + bias[i]) and adds it to sums[i].
	// The derivative is within 2e-7, for bfloat16 5e-6.
	GELUGrad func(dx []T, sums []float32, dy, x, bias []T, stream bool)

	// GELUErf sets dst[i] to z·Φ(z), z = x[i] + bias[i], the exact GELU. With z the
	// rounded sum, the error is at most 1.2e-7·max(1, |z|) for any T. −Inf gives −0.
	GELUErf func(dst, x, bias []T, stream bool)

	// GELUErfGrad sets dx[i] to dy[i]·(Φ(z) + z·φ(z)) and adds it to sums[i]. The
	// derivative is within 2e-7.
	GELUErfGrad func(dx []T, sums []float32, dy, x, bias []T, stream bool)

	// SiLUMul sets dst[i] to silu(gate[i])·up[i], with silu(x) = x·σ(x). silu
	// has the error bound of GELU's float32, for bfloat16 a relative one of
	// 2⁻¹³ and one of 2e-36. −Inf gives −0.
	SiLUMul func(dst, gate, up []T, stream bool)

	// SiLUMulGrad sets dup[i] to dy[i]·silu(gate[i]), and dgate[i] to
	// dy[i]·up[i]·silu′(gate[i]). silu has the bounds of SiLUMul; the derivative
	// is within 2e-7, for bfloat16 5e-6.
	SiLUMulGrad func(dgate, dup, dy, gate, up []T, stream bool)

	// GELUMul sets dst[i] to gelu(gate[i])·up[i], the tanh approximation, with the error
	// bound of GELU's float32 for any T. −Inf gives −0.
	GELUMul func(dst, gate, up []T, stream bool)

	// GELUMulGrad sets dup[i] to dy[i]·gelu(gate[i]), and dgate[i] to
	// dy[i]·up[i]·gelu′(gate[i]). The derivative is within 2e-7 for any T.
	GELUMulGrad func(dgate, dup, dy, gate, up []T, stream bool)

	// ClampedMul sets dst[i] to (u + 1)·silu(t)/alpha, t = alpha·min(gate[i], limit), with u = up[i] clamped to
	// ±limit. alpha and limit are from 1e-9 to 1e9. silu has the bounds of SiLUMul; a gate of −Inf gives −0·(u + 1).
	ClampedMul func(dst, gate, up []T, alpha, limit float32, stream bool)

	// ClampedMulGrad sets dup[i] to dy[i]·silu(t)/alpha and dgate[i] to dy[i]·(u + 1)·silu′(t), and to 0 where up[i]
	// or gate[i] is at its limit or beyond. It has the bounds of SiLUMulGrad.
	ClampedMulGrad func(dgate, dup, dy, gate, up []T, alpha, limit float32, stream bool)

	// Ramp sets dst[i] to scale·min(max(x[i] + shift, 0), high).
	Ramp func(dst, x []T, shift, high, scale float32, stream bool)

	// RampMul sets dst[i] to max(x[i], floor) times Ramp's result, which it rounds to float32.
	RampMul func(dst, x []T, floor, shift, high, scale float32, stream bool)

	// Leaky sets dst[i] to x[i] where that is positive, else to slope·x[i].
	Leaky func(dst, x []T, slope float32, stream bool)

	// Sigmoid sets dst[i] to σ(x[i]) = 1/(1 + exp(−x[i])), within (4 + |x[i]|)·2⁻²⁴ of itself and 2e-38, for bfloat16
	// 2⁻¹³ of itself and 2e-38.
	Sigmoid func(dst, x []T, stream bool)

	// Slopes sets dx[i] to dy[i] times the slope at v = x[i]: above for v > last, else below for v ≤ low, else a·v + b.
	Slopes func(dx, dy, x []T, low, last, below, a, b, above float32, stream bool)

	// OutputSlopes sets dx[i] to dy[i]·(a + y[i]·(b − y[i])).
	OutputSlopes func(dx, dy, y []T, a, b float32, stream bool)

	// LayerNorm sets mean to Σ x[i]/n, rstd to 1/√(Σ (x[i] − mean)²/n + eps) and
	// dst[i] to (x[i] − mean)·rstd·gamma[i] + beta[i].
	LayerNorm func(dst, x, gamma, beta []T, eps float32, stream bool) (mean, rstd float32)

	// LayerNormGrad adds a row's part to the gradients of gamma and beta and
	// computes the gradient of x. With x̂[i] = (x[i] − mean)·rstd and g[i] = dy[i]·gamma[i]:
	//
	//	dgamma[i] += dy[i]·x̂[i]
	//	dbeta[i] += dy[i]
	//	dx[i] = beta·dx[i] + alpha·rstd·(g[i] − Σ g/n − x̂[i]·Σ g·x̂/n)
	//
	// With beta 0 it does not read dx, which may be dy then.
	LayerNormGrad func(dx []T, dgamma, dbeta []float32, dy, x, gamma []T, mean, rstd, alpha, beta float32, stream bool)

	// RMSNorm and RMSNormGrad are the same without mean and beta.
	RMSNorm     func(dst, x, gamma []T, eps float32, stream bool) (rstd float32)
	RMSNormGrad func(dx []T, dgamma []float32, dy, x, gamma []T, rstd, alpha, beta float32, stream bool)

	// Dropout sets dst[i] to scale·src[i] where words[i] is at least
	// threshold, and to 0 elsewhere.
	Dropout func(dst, src []T, words []uint32, threshold uint32, scale float32, stream bool)

	// DropoutDrawn, unless nil, is Dropout with the words of the stream named by seed and tensor, from block number
	// first on, for a multiple of DrawnLen elements.
	DropoutDrawn func(dst, src []T, seed, tensor, first uint64, threshold uint32, scale float32, stream bool)

	// Rotate turns the pairs (a[i], b[i]) by the angle of cos[i] and sin[i],
	// forward with turn 1 and back with −1, in each of several heads, which begin stride elements after one another.
	Rotate func(a, b []T, cos, sin []float32, turn float32, heads, stride int)

	// RotatePairs turns the pairs (x[2i], x[2i+1]) so. x is twice as long as
	// cos and sin.
	RotatePairs func(cos, sin []float32, x []T, turn float32)

	// Order puts sums in order. dst and src do not overlap and have the sums of
	// a row, or of a part of it that begins at a multiple of 32. It is nil when
	// they are in order.
	Order func(dst, src []float32)
}

// DrawnLen divides the lengths that [Layers].DropoutDrawn takes.
const DrawnLen = 128

// F32 holds the layers of every tier. BF16 holds the layers of tiers that read and
// write bfloat16 directly; on other tiers BF16.Best is nil, and rows are converted
// for F32.
var (
	F32  cpu.Registry[Layers[float32]]
	BF16 cpu.Registry[Layers[uint16]]
)

func init() {
	F32.Add(cpu.Go, Layers[float32]{
		Add: add, AddNext: addNext, AddScaled: addScaled,
		GELU: gelu, GELUGrad: geluGrad, GELUErf: geluErf, GELUErfGrad: geluErfGrad, SiLUMul: siluMul, SiLUMulGrad: siluMulGrad,
		GELUMul: geluMul, GELUMulGrad: geluMulGrad, ClampedMul: clampedMul, ClampedMulGrad: clampedMulGrad,
		Ramp: ramps, RampMul: rampMul, Leaky: leaky, Sigmoid: sigmoid, Slopes: pieceSlopes, OutputSlopes: outputSlopes,
		LayerNorm: layerNorm, LayerNormGrad: layerNormGrad, RMSNorm: rmsNorm, RMSNormGrad: rmsNormGrad,
		Dropout: dropout, Rotate: rotate, RotatePairs: rotatePairs,
	})
}
