//go:build !noasm && gc

package rowwise

import (
	"math"

	"github.com/snug-ml/snug/internal/cpu"
)

func init() {
	Registry.Add(cpu.NEON, Kernels{
		Max: maximumNEON, ExpSum: expSumNEON, Exp2Sum: exp2SumNEON, ScoreGrad: scoreGradNEON,
		Softcap: softcapNEON, SoftcapSlopes: softcapSlopesNEON,
		Dot: dotNEON, Finite: func(x []float32) bool { return nonFiniteNEON(x) == 0 },
		Scale: scaleNEON, ScaleAbove: scaleAboveNEON, Axpby: axpbyNEON,
		CenteredSums: centeredSumsNEON, CenteredDots: centeredDotsNEON, Affine: affineNEON, AffineGrad: affineGradVectors,
		ColumnSums: columnSumsNEON, ColumnDots: columnDotsNEON, ColumnAffine: columnAffineNEON, ColumnAffineGrad: columnAffineGradVectors,
		Fence: func() {}, Prefetch: func([]byte) {}, CopyAround: copyPlain,
	}.tileLoops())
	F32.Add(cpu.NEON, Layers[float32]{
		Add: addNEON, AddNext: addNextVectors, AddScaled: addScaledNEON,
		GELU: geluNEON, GELUGrad: geluGradNEON,
		GELUErf: geluErfNEON, GELUErfGrad: geluErfGradNEON, SiLUMul: siluMulNEON, SiLUMulGrad: siluMulGradNEON,
		GELUMul: geluMulNEON, GELUMulGrad: geluMulGradNEON, ClampedMul: clampedMulNEON, ClampedMulGrad: clampedMulGradNEON,
		Ramp: rampNEON, RampMul: rampMulNEON, Leaky: leakyNEON, Sigmoid: sigmoidNEON, Slopes: pieceSlopesNEON, OutputSlopes: outputSlopesNEON,
		LayerNorm: layerNormVectors, LayerNormGrad: layerNormGradVectors,
		RMSNorm: rmsNormVectors, RMSNormGrad: rmsNormGradVectors,
		Dropout: dropoutNEON, Rotate: rotateVectors, RotatePairs: rotatePairsNEON,
	})
}

func addNextVectors(dst, a, b, _, _ []float32, stream bool) { addNEON(dst, a, b, stream) }

func rotateVectors(a, b, cos, sin []float32, turn float32, heads, stride int) {
	for h := range heads {
		a, b := a[h*stride:][:len(cos)], b[h*stride:][:len(cos)]
		rotateNEON(a, b, cos, sin, turn)
	}
}

func layerNormVectors(dst, x, gamma, beta []float32, eps float32, _ bool) (mean, rstd float32) {
	mean = sumNEON(x) / float32(len(x))
	rstd = inverseRootVectors(x, mean, eps)
	normalizeNEON(dst, x, gamma, beta, mean, rstd)
	return mean, rstd
}

func rmsNormVectors(dst, x, gamma []float32, eps float32, _ bool) (rstd float32) {
	rstd = inverseRootVectors(x, 0, eps)
	scaleRowNEON(dst, x, gamma, 0, rstd)
	return rstd
}

func inverseRootVectors(x []float32, center, eps float32) float32 {
	return 1 / float32(math.Sqrt(float64(sumSquaresNEON(x, center)/float32(len(x))+eps)))
}

func layerNormGradVectors(dx, dgamma, dbeta, dy, x, gamma []float32, mean, rstd, alpha, beta float32, _ bool) {
	n := float32(len(x))
	sum, sumX := gammaBetaGradNEON(dgamma, dbeta, dy, x, gamma, mean, rstd)
	normGradVectors(dx, dy, x, gamma, mean, rstd, sum/n, sumX/n, alpha, beta)
}

func rmsNormGradVectors(dx, dgamma, dy, x, gamma []float32, rstd, alpha, beta float32, _ bool) {
	sumX := gammaGradNEON(dgamma, dy, x, gamma, 0, rstd)
	normGradVectors(dx, dy, x, gamma, 0, rstd, 0, sumX/float32(len(x)), alpha, beta)
}

func normGradVectors(dx, dy, x, gamma []float32, mean, rstd, avg, avgX, alpha, beta float32) {
	if beta == 0 {
		normGradNEON(dx, dy, x, gamma, mean, rstd, avg, avgX, alpha)
	} else {
		normAddGradNEON(dx, dy, x, gamma, mean, rstd, avg, avgX, alpha, beta)
	}
}

func affineGradVectors(dx, dy, x []float32, center, a, b, c, beta float32, _ bool) {
	if beta == 0 {
		affineGradNEON(dx, dy, x, center, a, b, c)
	} else {
		affineAddGradNEON(dx, dy, x, center, a, b, c, beta)
	}
}

func columnAffineGradVectors(dx, dy, x, center, a, b, c []float32, beta float32, _ bool) {
	if beta == 0 {
		columnAffineGradNEON(dx, dy, x, center, a, b, c)
	} else {
		columnAffineAddGradNEON(dx, dy, x, center, a, b, c, beta)
	}
}
