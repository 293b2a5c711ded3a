package main

import (
	"maps"
	"math/rand/v2"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/half"
)

// operand returns n elements of a floating-point type, normally distributed
// with standard deviation 1.
func operand(dt snug.DType, n int) snug.View { return scaled(dt, n, 1) }

// scaled is operand with another standard deviation. The elements repeat after
// some thousands, which no kernel can use.
func scaled(dt snug.DType, n int, deviation float64) snug.View {
	const period = 1<<14 + 9
	rng := rand.New(rand.NewPCG(1, uint64(n)))
	values := make([]float32, min(period, n))
	for i := range values {
		values[i] = float32(deviation * rng.NormFloat64())
	}
	v := empty(dt, n)
	for lo := 0; lo < n; lo += period {
		half.Store(v, lo, values[:min(period, n-lo)])
	}
	return v
}

// empty returns n zeros of a floating-point type.
func empty(dt snug.DType, n int) snug.View {
	switch dt {
	case snug.F16:
		return snug.ViewOf(make([]snug.Float16, n))
	case snug.BF16:
		return snug.ViewOf(make([]snug.BFloat16, n))
	}
	return snug.ViewOf(make([]float32, n))
}

// tokens returns n indices below limit.
func tokens(n, limit int) []int32 {
	rng := rand.New(rand.NewPCG(2, uint64(n)))
	s := make([]int32, n)
	for i := range s {
		s[i] = rng.Int32N(int32(limit))
	}
	return s
}

// size returns the bytes of n elements.
func size(dt snug.DType, n int) float64 { return float64(dt.Size()) * float64(n) }

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
