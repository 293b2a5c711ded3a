// Rowwise generates the row loops of internal/rowwise for AVX2 and AVX-512.
//
// Every function is a loop over vectors of its slices, which all have the
// length of the first: groups of several vectors at a time where sums need
// independent accumulators, then single vectors, then the rest under a mask.
// Elementwise arithmetic is rounded as the Go loops round it; exponentials and
// sums use fused multiply-adds.
package main

import (
	. "github.com/mmcloughlin/avo/build"

	"github.com/snug-ml/snug/internal/_gen/half/vec"
)

func main() {
	ConstraintExpr("!noasm,gc")
	for _, wide := range []bool{false, true} {
		maximum(wide)
		expSum(wide)
		exp2Sum(wide)
		scoreGrad(wide)
		softcap(wide)
		softcapSlopes(wide)
		dot(wide)
		nonFinite(wide)
		scale(wide)
		scaleAbove(wide)
		axpby(wide)
		rotatePairs(wide)
		copyAround(wide)
	}
	for _, k := range kinds {
		add(k)
		addNext(k)
		addScaled(k)
		gelu(k)
		geluGrad(k)
		geluErf(k)
		geluErfGrad(k)
		siluMul(k)
		siluMulGrad(k)
		geluMul(k)
		geluMulGrad(k)
		clampedMul(k)
		clampedMulGrad(k)
		ramp(k)
		rampMul(k)
		leaky(k)
		sigmoid(k)
		pieceSlopes(k)
		outputSlopes(k)
		layerNorm(k)
		layerNormGrad(k)
		rmsNorm(k)
		rmsNormGrad(k)
		dropout(k)
		if k.wide {
			dropoutDrawn(k)
		}
		if !k.bf16 {
			centeredSums(k)
			centeredDots(k)
			affine(k, false, "affine")
			affineGrad(k, false, "affineGrad")
			columnSums(k)
			columnDots(k)
			affine(k, true, "columnAffine")
			affineGrad(k, true, "columnAffineGrad")
		}
		rotate(k)
		if k.bf16 {
			rotatePairsBF16(k)
		}
	}
	maxRows()
	exp2Rows(false)
	exp2Rows(true)
	gradRows()
	gradPairs()
	prefetch()
	vec.Fence("orders streamed stores before later ones.")
	Generate()
}
