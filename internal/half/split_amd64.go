//go:build !noasm && gc

package half

import (
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
)

func init() {
	SplitRegistry.Add(cpu.AVX2, Splits{joinBy(joinAVX2), splitBy(splitAVX2)})
	SplitRegistry.Add(cpu.AVX512, Splits{joinBy(joinAVX512), splitBy(splitAVX512)})
}

// pair is what the assembly converts at a time; the Go loops convert the rest.
const pair = 32

// joinBy makes a conversion of an assembly loop and the Go loop.
func joinBy(fast func(dst *float32, upper *uint16, rest *int16, n int)) func([]float32, []snug.BFloat16, []int16) {
	return func(dst []float32, upper []snug.BFloat16, rest []int16) {
		n := len(dst) / pair * pair
		if n > 0 {
			_, _ = upper[n-1], rest[n-1]
			fast(&dst[0], (*uint16)(&upper[0]), &rest[0], n)
		}
		join(dst[n:], upper[n:], rest[n:])
	}
}

func splitBy(fast func(upper *uint16, rest *int16, src *float32, n int)) func([]snug.BFloat16, []int16, []float32) {
	return func(upper []snug.BFloat16, rest []int16, src []float32) {
		n := len(src) / pair * pair
		if n > 0 {
			_, _ = upper[n-1], rest[n-1]
			fast((*uint16)(&upper[0]), &rest[0], &src[0], n)
		}
		split(upper[n:], rest[n:], src[n:])
	}
}
