package kerneltest

import (
	"math"
	"math/rand/v2"
)

// Uniform returns n values between -1 and 1.
func Uniform(seed uint64, n int) []float32 {
	rng := rand.New(rand.NewPCG(seed, 1))
	x := make([]float32, n)
	for i := range x {
		x[i] = 2*rng.Float32() - 1
	}
	return x
}

// Normal returns n values of mean 0 and variance 1.
func Normal(seed uint64, n int) []float32 {
	rng := rand.New(rand.NewPCG(seed, 0))
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(rng.NormFloat64())
	}
	return x
}

// Bits returns the bits of x, with the same bits for every NaN.
func Bits(x []float32) []uint32 {
	b := make([]uint32, len(x))
	for i, v := range x {
		if b[i] = math.Float32bits(v); v != v {
			b[i] = 0x7fc00000
		}
	}
	return b
}
