//go:build !noasm && gc

package vexp

import (
	"unsafe"

	"github.com/snug-ml/snug/internal/cpu"
)

func init() {
	Registry.Add(cpu.AVX2, Kernels{
		Max: maximumAVX2, ExpSum: expSumAVX2, Exp2Sum: exp2SumAVX2, ScoreGrad: scoreGradAVX2,
		GELU: geluAVX2, GELUGrad: geluGradAVX2, SiLUMul: siluMulAVX2, SiLUMulGrad: siluMulGradAVX2,
		Sum: sumAVX2, Dot: dotAVX2, SumSquares: sumSquaresAVX2, Finite: isZero(nonFiniteAVX2),
		LayerNorm: layerNormAVX2, LayerNormSums: layerNormSumsAVX2, LayerNormGrad: layerNormGradAVX2,
		RMSNorm: rmsNormAVX2, RMSNormSums: rmsNormSumsAVX2, RMSNormGrad: rmsNormGradAVX2,
		Add: addAVX2, Scale: scaleAVX2, Stream: aligned(streamAVX2), Fence: fence, Prefetch: prefetch, Axpby: axpbyAVX2,
		Dropout: dropoutAVX2, Rotate: rotateAVX2, RotatePairs: byEight(rotatePairsAVX2),
	})
	Registry.Add(cpu.AVX512, Kernels{
		Max: maximumAVX512, ExpSum: expSumAVX512, Exp2Sum: exp2SumAVX512, ScoreGrad: scoreGradAVX512,
		GELU: geluAVX512, GELUGrad: geluGradAVX512, SiLUMul: siluMulAVX512, SiLUMulGrad: siluMulGradAVX512,
		Sum: sumAVX512, Dot: dotAVX512, SumSquares: sumSquaresAVX512, Finite: isZero(nonFiniteAVX512),
		LayerNorm: layerNormAVX512, LayerNormSums: layerNormSumsAVX512, LayerNormGrad: layerNormGradAVX512,
		RMSNorm: rmsNormAVX512, RMSNormSums: rmsNormSumsAVX512, RMSNormGrad: rmsNormGradAVX512,
		Add: addAVX512, Scale: scaleAVX512, Stream: aligned(streamAVX512), Fence: fence, Prefetch: prefetch, Axpby: axpbyAVX512,
		Dropout: dropoutAVX512, Rotate: rotateAVX512, RotatePairs: byEight(rotatePairsAVX512),
	})
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

// aligned makes Stream of an assembly loop over aligned blocks of 16 and copy for
// what lies around them.
func aligned(fast func(dst, src []float32)) func(dst, src []float32) {
	return func(dst, src []float32) {
		lead := int(-uintptr(unsafe.Pointer(unsafe.SliceData(dst)))%64) / 4
		n := copy(dst[:min(lead, len(dst))], src)
		dst, src = dst[n:], src[n:]
		n = len(dst) / 16 * 16
		fast(dst[:n], src[:n])
		copy(dst[n:], src[n:])
	}
}

func prefetch(x []byte) { prefetchLines(unsafe.SliceData(x), len(x)) }
