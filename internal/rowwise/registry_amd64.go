//go:build !noasm && gc

package rowwise

import (
	"unsafe"

	"github.com/snug-ml/snug/internal/cpu"
)

func init() {
	Registry.Add(cpu.AVX2, Kernels{
		Max: maximumAVX2, ExpSum: expSumAVX2, Exp2Sum: exp2SumAVX2, ScoreGrad: scoreGradAVX2,
		Softcap: softcapAVX2, SoftcapSlopes: softcapSlopesAVX2,
		Dot: dotAVX2, Finite: isZero(nonFiniteAVX2), Scale: scaleAVX2, ScaleAbove: scaleAboveAVX2,
		Axpby:        axpbyAVX2,
		CenteredSums: centeredSumsAVX2, CenteredDots: centeredDotsAVX2, Affine: affineAVX2, AffineGrad: affineGradAVX2,
		ColumnSums: columnSumsAVX2, ColumnDots: columnDotsAVX2, ColumnAffine: columnAffineAVX2, ColumnAffineGrad: columnAffineGradAVX2,
		Fence: fence, Prefetch: prefetch, CopyAround: aligned(copyAroundAVX2),
	}.tileLoops())
	Registry.Add(cpu.AVX512, Kernels{
		Max: maximumAVX512, ExpSum: expSumAVX512, Exp2Sum: exp2SumAVX512, ScoreGrad: scoreGradAVX512,
		Softcap: softcapAVX512, SoftcapSlopes: softcapSlopesAVX512,
		Dot: dotAVX512, Finite: isZero(nonFiniteAVX512), Scale: scaleAVX512, ScaleAbove: scaleAboveAVX512,
		Axpby: axpbyAVX512, MaxRows: maxRows, Exp2Rows: exp2Rows, GradRows: gradRows,
		CenteredSums: centeredSumsAVX512, CenteredDots: centeredDotsAVX512, Affine: affineAVX512, AffineGrad: affineGradAVX512,
		ColumnSums: columnSumsAVX512, ColumnDots: columnDotsAVX512, ColumnAffine: columnAffineAVX512, ColumnAffineGrad: columnAffineGradAVX512,
		Fence: fence, Prefetch: prefetch, CopyAround: aligned(copyAroundAVX512),
	})
	Pairs.Add(cpu.AVX512BF16, PairKernels{Exp2Rows: exp2PairRows, GradRows: gradPairRows})
	F32.Add(cpu.AVX2, Layers[float32]{
		Add: addAVX2, AddNext: addNextAVX2, AddScaled: addScaledAVX2,
		GELU: geluAVX2, GELUGrad: geluGradAVX2,
		GELUErf: geluErfAVX2, GELUErfGrad: geluErfGradAVX2, SiLUMul: siluMulAVX2, SiLUMulGrad: siluMulGradAVX2,
		GELUMul: geluMulAVX2, GELUMulGrad: geluMulGradAVX2, ClampedMul: clampedMulAVX2, ClampedMulGrad: clampedMulGradAVX2,
		Ramp: rampAVX2, RampMul: rampMulAVX2, Leaky: leakyAVX2, Sigmoid: sigmoidAVX2, Slopes: pieceSlopesAVX2, OutputSlopes: outputSlopesAVX2,
		LayerNorm: layerNormAVX2, LayerNormGrad: layerNormGradAVX2, RMSNorm: rmsNormAVX2, RMSNormGrad: rmsNormGradAVX2,
		Dropout: dropoutAVX2, Rotate: rotateAVX2, RotatePairs: byEight(rotatePairsAVX2),
	})
	F32.Add(cpu.AVX512, Layers[float32]{
		Add: addAVX512, AddNext: addNextAVX512, AddScaled: addScaledAVX512,
		GELU: geluAVX512, GELUGrad: geluGradAVX512,
		GELUErf: geluErfAVX512, GELUErfGrad: geluErfGradAVX512, SiLUMul: siluMulAVX512, SiLUMulGrad: siluMulGradAVX512,
		GELUMul: geluMulAVX512, GELUMulGrad: geluMulGradAVX512, ClampedMul: clampedMulAVX512, ClampedMulGrad: clampedMulGradAVX512,
		Ramp: rampAVX512, RampMul: rampMulAVX512, Leaky: leakyAVX512, Sigmoid: sigmoidAVX512, Slopes: pieceSlopesAVX512, OutputSlopes: outputSlopesAVX512,
		LayerNorm: layerNormAVX512, LayerNormGrad: layerNormGradAVX512, RMSNorm: rmsNormAVX512, RMSNormGrad: rmsNormGradAVX512,
		Dropout: dropoutAVX512, DropoutDrawn: dropoutDrawnAVX512, Rotate: rotateAVX512, RotatePairs: byEight(rotatePairsAVX512),
	})
	BF16.Add(cpu.AVX512, Layers[uint16]{
		Add: addBF16AVX512, AddNext: addNextBF16AVX512, AddScaled: addScaledBF16AVX512,
		GELU: geluBF16AVX512, GELUGrad: geluGradBF16AVX512,
		GELUErf: geluErfBF16AVX512, GELUErfGrad: geluErfGradBF16AVX512, SiLUMul: siluMulBF16AVX512, SiLUMulGrad: siluMulGradBF16AVX512,
		GELUMul: geluMulBF16AVX512, GELUMulGrad: geluMulGradBF16AVX512, ClampedMul: clampedMulBF16AVX512, ClampedMulGrad: clampedMulGradBF16AVX512,
		Ramp: rampBF16AVX512, RampMul: rampMulBF16AVX512, Leaky: leakyBF16AVX512, Sigmoid: sigmoidBF16AVX512, Slopes: pieceSlopesBF16AVX512, OutputSlopes: outputSlopesBF16AVX512,
		LayerNorm: layerNormBF16AVX512, LayerNormGrad: layerNormGradBF16AVX512,
		RMSNorm: rmsNormBF16AVX512, RMSNormGrad: rmsNormGradBF16AVX512,
		Dropout: dropoutBF16AVX512, DropoutDrawn: dropoutDrawnBF16AVX512, Rotate: rotateBF16AVX512, RotatePairs: rotatePairsBF16AVX512, Order: fromHalves,
	})
	BF16.Add(cpu.AVX512BF16, Layers[uint16]{
		Add: addBF16AVX512BF16, AddNext: addNextBF16AVX512BF16, AddScaled: addScaledBF16AVX512BF16,
		GELU: geluBF16AVX512BF16, GELUGrad: geluGradBF16AVX512BF16,
		GELUErf: geluErfBF16AVX512BF16, GELUErfGrad: geluErfGradBF16AVX512BF16, SiLUMul: siluMulBF16AVX512BF16, SiLUMulGrad: siluMulGradBF16AVX512BF16,
		GELUMul: geluMulBF16AVX512BF16, GELUMulGrad: geluMulGradBF16AVX512BF16, ClampedMul: clampedMulBF16AVX512BF16, ClampedMulGrad: clampedMulGradBF16AVX512BF16,
		Ramp: rampBF16AVX512BF16, RampMul: rampMulBF16AVX512BF16, Leaky: leakyBF16AVX512BF16, Sigmoid: sigmoidBF16AVX512BF16, Slopes: pieceSlopesBF16AVX512BF16, OutputSlopes: outputSlopesBF16AVX512BF16,
		LayerNorm: layerNormBF16AVX512BF16, LayerNormGrad: layerNormGradBF16AVX512BF16,
		RMSNorm: rmsNormBF16AVX512BF16, RMSNormGrad: rmsNormGradBF16AVX512BF16,
		Dropout: dropoutBF16AVX512BF16, DropoutDrawn: dropoutDrawnBF16AVX512BF16, Rotate: rotateBF16AVX512BF16, RotatePairs: rotatePairsBF16AVX512BF16, Order: fromHalves,
	})
}

func maxRows(most []float32, t Tile, scale float32) {
	if n := len(t.Sees); n > 0 {
		maxRowsAVX512(&most[0], &t.X[0], &t.Sees[0].Lo, n, 4*t.Stride, t.At, scale)
	}
}

func exp2Rows(sums []float32, t Tile, scale float32, base []float32) {
	if n := len(t.Sees); n > 0 {
		exp2RowsAVX512(&sums[0], &t.X[0], &t.Sees[0].Lo, &base[0], n, t.Cols, 4*t.Stride, t.At, scale)
	}
}

func gradRows(ds []float32, t Tile, scale float32, base, delta []float32, scaleGrad float32) {
	if n := len(t.Sees); n > 0 {
		gradRowsAVX512(&ds[0], &t.X[0], &t.Sees[0].Lo, &base[0], &delta[0], n, t.Cols, 4*t.Stride, t.At, scale, scaleGrad)
	}
}

func exp2PairRows(sums []float32, dst []uint16, next int, t Tile, scale float32, base []float32) {
	if n := len(t.Sees); n > 0 {
		exp2Pairs(&sums[0], &dst[0], &t.X[0], &t.Sees[0].Lo, &base[0], n, t.Cols, 4*t.Stride, t.At, 2*next, scale)
	}
}

func gradPairRows(g PairGrads, x, dp []float32, rows, cols, stride int, scale float32, base, delta []float32, scaleGrad float32) {
	gradPairs(&g.P[0], &g.Across[0], &g.DS[0], &x[0], &dp[0], &g.Masks[0], &base[0], &delta[0],
		rows, cols, 4*stride, 4*g.MaskRow, 2*g.NextAcross, 2*g.Next, scale, scaleGrad)
}

// fromHalves puts every 32 elements in order, and the fewer at the end: the even
// ones come before the odd ones.
func fromHalves(dst, src []float32) {
	for len(dst) > 0 {
		n := min(32, len(dst))
		even := (n + 1) / 2
		for i, x := range src[:even] {
			dst[2*i] = x
		}
		for i, x := range src[even:n] {
			dst[2*i+1] = x
		}
		dst, src = dst[n:], src[n:]
	}
}

func isZero(f func(x []float32) float32) func(x []float32) bool {
	return func(x []float32) bool { return f(x) == 0 }
}

// byEight makes RotatePairs of an assembly loop and a Go loop for the rest.
func byEight(fast func(cos, sin, x []float32, turn float32)) func(cos, sin, x []float32, turn float32) {
	return func(cos, sin, x []float32, turn float32) {
		n := len(cos) / 8 * 8
		fast(cos[:n], sin[:n], x[:2*n], turn)
		rotatePairs(cos[n:], sin[n:], x[2*n:], turn)
	}
}

// aligned makes CopyAround of an assembly loop, and of Go's copy for the rest.
func aligned(loop func(dst, src, next *byte, n int)) func(dst, src, next []byte) {
	return func(dst, src, next []byte) {
		n := 0
		if to := unsafe.SliceData(dst); uintptr(unsafe.Pointer(to))%64 == 0 {
			n = len(src) &^ 63
			loop(to, unsafe.SliceData(src), unsafe.SliceData(next), n)
		}
		copy(dst[n:], src[n:])
	}
}

func prefetch(x []byte) { prefetchLines(unsafe.SliceData(x), len(x)) }
