//go:build !noasm && gc

package half

import (
	"unsafe"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
)

func init() {
	Registry8.Add(cpu.AVX2, Kernels8{
		E4M3ToF32: widenBy(e4m3ToF32AVX2, e4m3ToF32), F32ToE4M3: narrowBy(f32ToE4M3AVX2, f32ToE4M3),
		E5M2ToF32: widenBy(e5m2ToF32AVX2, e5m2ToF32), F32ToE5M2: narrowBy(f32ToE5M2AVX2, f32ToE5M2),
	})
	Registry8.Add(cpu.AVX512, Kernels8{
		E4M3ToF32: widenBy(e4m3ToF32AVX512, e4m3ToF32), F32ToE4M3: narrowBy(f32ToE4M3AVX512, f32ToE4M3),
		E5M2ToF32: widenBy(e5m2ToF32AVX512, e5m2ToF32), F32ToE5M2: narrowBy(f32ToE5M2AVX512, f32ToE5M2),
	})
}

// widenBy makes a conversion of an assembly loop and a Go loop.
func widenBy[T snug.Float8E4M3 | snug.Float8E5M2](fast func(dst *float32, src *uint8, n int), rest func([]float32, []T)) func([]float32, []T) {
	return func(dst []float32, src []T) {
		n := len(src) / step * step
		if n > 0 {
			_ = dst[n-1]
			fast(&dst[0], (*uint8)(unsafe.Pointer(&src[0])), n)
		}
		rest(dst[n:], src[n:])
	}
}

func narrowBy[T snug.Float8E4M3 | snug.Float8E5M2](fast func(dst *uint8, src *float32, n int), rest func([]T, []float32)) func([]T, []float32) {
	return func(dst []T, src []float32) {
		n := len(src) / step * step
		if n > 0 {
			_ = dst[n-1]
			fast((*uint8)(unsafe.Pointer(&dst[0])), &src[0], n)
		}
		rest(dst[n:], src[n:])
	}
}
