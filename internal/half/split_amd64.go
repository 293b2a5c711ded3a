//go:build !noasm && gc

package half

import (
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
)

func init() {
	SplitRegistry.Add(cpu.AVX2, Splits[int16]{Join: joinBy(joinAVX2), Split: splitBy(splitAVX2, split)})
	SplitRegistry.Add(cpu.AVX512, Splits[int16]{Join: joinBy(joinAVX512), Split: splitBy(splitAVX512, split)})
	Split24Registry.Add(cpu.AVX2, Splits[int8]{joinBy(join24AVX2), splitBy(split24AVX2, split24), splitStochasticBy(split24StochasticAVX2)})
	Split24Registry.Add(cpu.AVX512, Splits[int8]{joinBy(join24AVX512), splitBy(split24AVX512, split24), splitStochasticBy(split24StochasticAVX512)})
}

// pair is what the assembly converts at a time; the Go loops convert the rest.
const pair = 32

// joinBy makes a conversion of an assembly loop and the Go loop.
func joinBy[R int8 | int16](fast func(dst *float32, upper *uint16, rest *R, n int)) func([]float32, []snug.BFloat16, []R) {
	return func(dst []float32, upper []snug.BFloat16, rest []R) {
		n := len(dst) / pair * pair
		if n > 0 {
			_, _ = upper[n-1], rest[n-1]
			fast(&dst[0], (*uint16)(&upper[0]), &rest[0], n)
		}
		join(dst[n:], upper[n:], rest[n:])
	}
}

func splitBy[R int8 | int16](fast func(upper *uint16, rest *R, src *float32, n int), slow func([]snug.BFloat16, []R, []float32)) func([]snug.BFloat16, []R, []float32) {
	return func(upper []snug.BFloat16, rest []R, src []float32) {
		n := len(src) / pair * pair
		if n > 0 {
			_, _ = upper[n-1], rest[n-1]
			fast((*uint16)(&upper[0]), &rest[0], &src[0], n)
		}
		slow(upper[n:], rest[n:], src[n:])
	}
}

func splitStochasticBy(fast func(upper *uint16, rest *int8, src *float32, draws *uint16, n int)) func([]snug.BFloat16, []int8, []float32, []uint16) {
	return func(upper []snug.BFloat16, rest []int8, src []float32, draws []uint16) {
		n := len(src) / pair * pair
		if n > 0 {
			_, _, _ = upper[n-1], rest[n-1], draws[n-1]
			fast((*uint16)(&upper[0]), &rest[0], &src[0], &draws[0], n)
		}
		split24Stochastic(upper[n:], rest[n:], src[n:], draws[n:])
	}
}
