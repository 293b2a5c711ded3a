//go:build !noasm && gc

package half

import (
	"unsafe"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
)

func init() {
	Registry.Add(cpu.AVX2, Kernels{
		BF16ToF32: widen(bf16ToF32AVX2, bf16ToF32),
		F32ToBF16: narrow(f32ToBF16AVX2, f32ToBF16),
		F16ToF32:  widen(f16ToF32AVX2, f16ToF32),
		F32ToF16:  narrow(f32ToF16AVX2, f32ToF16),
	})
	Registry.Add(cpu.AVX512, Kernels{
		BF16ToF32: widen(bf16ToF32AVX512, bf16ToF32),
		F32ToBF16: narrow(f32ToBF16AVX512, f32ToBF16),
		F16ToF32:  widen(f16ToF32AVX512, f16ToF32),
		F32ToF16:  narrow(f32ToF16AVX512, f32ToF16),
	})
}

// step is what the assembly converts at a time; the Go loops convert the rest.
const step = 16

// widen makes a conversion to float32 of an assembly loop and a Go loop.
func widen[T snug.Float16 | snug.BFloat16](fast func(dst *float32, src *uint16, n int), rest func([]float32, []T)) func([]float32, []T) {
	return func(dst []float32, src []T) {
		n := len(src) / step * step
		if n > 0 {
			_ = dst[n-1]
			fast(&dst[0], (*uint16)(unsafe.Pointer(&src[0])), n)
		}
		rest(dst[n:], src[n:])
	}
}

// narrow makes a conversion from float32 of an assembly loop and a Go loop.
func narrow[T snug.Float16 | snug.BFloat16](fast func(dst *uint16, src *float32, n int), rest func([]T, []float32)) func([]T, []float32) {
	return func(dst []T, src []float32) {
		n := len(src) / step * step
		if n > 0 {
			_ = dst[n-1]
			fast((*uint16)(unsafe.Pointer(&dst[0])), &src[0], n)
		}
		rest(dst[n:], src[n:])
	}
}
