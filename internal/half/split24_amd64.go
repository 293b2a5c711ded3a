//go:build !noasm && gc

package half

import (
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
)

func init() {
	Split24Registry.Add(cpu.AVX2, Splits24{join24By(join24AVX2), split24By(split24AVX2), split24StochasticBy(split24StochasticAVX2)})
	Split24Registry.Add(cpu.AVX512, Splits24{join24By(join24AVX512), split24By(split24AVX512), split24StochasticBy(split24StochasticAVX512)})
}

func join24By(fast func(dst *float32, upper *uint16, rest *int8, n int)) func([]float32, []snug.BFloat16, []int8) {
	return func(dst []float32, upper []snug.BFloat16, rest []int8) {
		n := len(dst) / pair * pair
		if n > 0 {
			_, _ = upper[n-1], rest[n-1]
			fast(&dst[0], (*uint16)(&upper[0]), &rest[0], n)
		}
		join24(dst[n:], upper[n:], rest[n:])
	}
}

func split24By(fast func(upper *uint16, rest *int8, src *float32, n int)) func([]snug.BFloat16, []int8, []float32) {
	return func(upper []snug.BFloat16, rest []int8, src []float32) {
		n := len(src) / pair * pair
		if n > 0 {
			_, _ = upper[n-1], rest[n-1]
			fast((*uint16)(&upper[0]), &rest[0], &src[0], n)
		}
		split24(upper[n:], rest[n:], src[n:])
	}
}

func split24StochasticBy(fast func(upper *uint16, rest *int8, src *float32, draws *uint16, n int)) func([]snug.BFloat16, []int8, []float32, []uint16) {
	return func(upper []snug.BFloat16, rest []int8, src []float32, draws []uint16) {
		n := len(src) / pair * pair
		if n > 0 {
			_, _, _ = upper[n-1], rest[n-1], draws[n-1]
			fast((*uint16)(&upper[0]), &rest[0], &src[0], &draws[0], n)
		}
		split24Stochastic(upper[n:], rest[n:], src[n:], draws[n:])
	}
}
