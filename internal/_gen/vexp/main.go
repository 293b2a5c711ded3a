// Vexp generates the row loops of internal/vexp for AVX2 and AVX-512.
//
// Every function is a loop over vectors of its slices, which all have the
// length of the first: groups of several vectors at a time where sums need
// independent accumulators, then single vectors, then the rest under a mask.
// Elementwise arithmetic is rounded as the Go loops round it; exponentials and
// sums use fused multiply-adds.
package main

import (
	. "github.com/mmcloughlin/avo/build"
)

func main() {
	ConstraintExpr("!noasm,gc")
	for _, wide := range []bool{false, true} {
		maximum(wide)
		expSum(wide)
		exp2Sum(wide)
		scoreGrad(wide)
		gelu(wide)
		geluGrad(wide)
		siluMul(wide)
		siluMulGrad(wide)
		sum(wide)
		dot(wide)
		sumSquares(wide)
		nonFinite(wide)
		layerNorm(wide)
		layerNormSums(wide)
		layerNormGrad(wide)
		rmsNorm(wide)
		rmsNormSums(wide)
		rmsNormGrad(wide)
		add(wide)
		scale(wide)
		stream(wide)
		axpby(wide)
		dropout(wide)
		rotate(wide)
		rotatePairs(wide)
	}
	prefetch()
	fence()
	Generate()
}
