// Rowwise generates the NEON loops of internal/rowwise. Elementwise arithmetic is
// rounded as the Go loops round it; exponentials and sums use fused
// multiply-adds.
package main

import . "github.com/snug-ml/snug/internal/_gen/neon"

func main() {
	f := NewFile()
	maximum(f)
	expSum(f)
	exp2Sum(f)
	scoreGrad(f)
	softcap(f)
	softcapSlopes(f)
	dot(f)
	nonFinite(f)
	scale(f)
	scaleAbove(f)
	axpby(f)

	add(f)
	addScaled(f)
	dropout(f)
	rotate(f)
	rotatePairs(f)
	gelu(f)
	geluGrad(f)
	geluErf(f)
	geluErfGrad(f)
	siluMul(f)
	siluMulGrad(f)
	geluMul(f)
	geluMulGrad(f)
	clampedMul(f)
	clampedMulGrad(f)
	ramp(f)
	rampMul(f)
	leaky(f)
	sigmoid(f)
	pieceSlopes(f)
	outputSlopes(f)
	centeredSums(f)
	centeredDots(f)
	affine(f, "affine", false)
	affineGrad(f, "affineGrad", false, false)
	affineGrad(f, "affineAddGrad", false, true)
	columnSums(f)
	columnDots(f)
	affine(f, "columnAffine", true)
	affineGrad(f, "columnAffineGrad", true, false)
	affineGrad(f, "columnAffineAddGrad", true, true)
	norms(f)
	f.Generate()
}

// begin starts a function that does what the Go loop of that name does.
func begin(file *File, name, signature string) *Func {
	return file.Func(name+"NEON", signature, "is "+name+", on vectors.")
}

// sums is how many accumulators the sums without other work have.
const sums = 4
