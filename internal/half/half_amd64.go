//go:build !noasm && gc

package half

import (
	"unsafe"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
)

func init() {
	Registry.Add(cpu.AVX2, Kernels{
		BF16ToF32: cached(bf16ToF32AVX2, bf16ToF32),
		F32ToBF16: cached(f32ToBF16AVX2, f32ToBF16),
		F16ToF32:  cached(f16ToF32AVX2, f16ToF32),
		F32ToF16:  cached(f32ToF16AVX2, f32ToF16),
		BF16ToF16: cached(bf16ToF16AVX2, bf16ToF16),
		F16ToBF16: cached(f16ToBF16AVX2, f16ToBF16),

		F32ToBF16Stochastic: stochastic(f32ToBF16StochasticAVX2, f32ToBF16Stochastic),
		F32ToF16Stochastic:  stochastic(f32ToF16StochasticAVX2, f32ToF16Stochastic),
		Limit:               limited(limitAVX2),
	})
	Streams.Add(cpu.AVX2, Kernels{
		BF16ToF32: streamed(bf16ToF32StreamAVX2, bf16ToF32),
		F32ToBF16: streamed(f32ToBF16StreamAVX2, f32ToBF16),
		F16ToF32:  streamed(f16ToF32StreamAVX2, f16ToF32),
		F32ToF16:  streamed(f32ToF16StreamAVX2, f32ToF16),
		BF16ToF16: streamed(bf16ToF16StreamAVX2, bf16ToF16),
		F16ToBF16: streamed(f16ToBF16StreamAVX2, f16ToBF16),

		F32ToBF16Stochastic: stochastic(f32ToBF16StochasticAVX2, f32ToBF16Stochastic),
		F32ToF16Stochastic:  stochastic(f32ToF16StochasticAVX2, f32ToF16Stochastic),
		Limit:               limited(limitAVX2),
	})
	Registry.Add(cpu.AVX512, Kernels{
		BF16ToF32: cached(bf16ToF32AVX512, bf16ToF32),
		F32ToBF16: cached(f32ToBF16AVX512, f32ToBF16),
		F16ToF32:  cached(f16ToF32AVX512, f16ToF32),
		F32ToF16:  cached(f32ToF16AVX512, f32ToF16),
		BF16ToF16: cached(bf16ToF16AVX512, bf16ToF16),
		F16ToBF16: cached(f16ToBF16AVX512, f16ToBF16),

		F32ToBF16Stochastic: stochastic(f32ToBF16StochasticAVX512, f32ToBF16Stochastic),
		F32ToF16Stochastic:  stochastic(f32ToF16StochasticAVX512, f32ToF16Stochastic),
		Limit:               limited(limitAVX512),
	})
	Streams.Add(cpu.AVX512, Kernels{
		BF16ToF32: streamed(bf16ToF32StreamAVX512, bf16ToF32),
		F32ToBF16: streamed(f32ToBF16StreamAVX512, f32ToBF16),
		F16ToF32:  streamed(f16ToF32StreamAVX512, f16ToF32),
		F32ToF16:  streamed(f32ToF16StreamAVX512, f32ToF16),
		BF16ToF16: streamed(bf16ToF16StreamAVX512, bf16ToF16),
		F16ToBF16: streamed(f16ToBF16StreamAVX512, f16ToBF16),

		F32ToBF16Stochastic: stochastic(f32ToBF16StochasticAVX512, f32ToBF16Stochastic),
		F32ToF16Stochastic:  stochastic(f32ToF16StochasticAVX512, f32ToF16Stochastic),
		Limit:               limited(limitAVX512),
	})
}

// step is what the assembly converts at a time, and align the bytes to which it
// wants dst aligned when it streams; the Go loops convert the rest.
const (
	step  = 16
	align = 64
)

// word is what assembly takes for an element.
type word interface{ float32 | uint16 | uint8 }

// cached makes a conversion of an assembly loop and a Go loop.
func cached[D, S snug.Element, WD, WS word](fast func(dst *WD, src *WS, n int), rest func([]D, []S)) func([]D, []S) {
	return func(dst []D, src []S) {
		n := len(src) / step * step
		if n > 0 {
			_ = dst[n-1]
			fast((*WD)(unsafe.Pointer(&dst[0])), (*WS)(unsafe.Pointer(&src[0])), n)
		}
		rest(dst[n:], src[n:])
	}
}

// streamed is cached for a loop with an aligned dst.
func streamed[D, S snug.Element, WD, WS word](fast func(dst *WD, src *WS, n int), rest func([]D, []S)) func([]D, []S) {
	whole := cached(fast, rest)
	return func(dst []D, src []S) {
		n := min(unaligned(dst), len(src))
		rest(dst[:n], src[:n])
		whole(dst[n:], src[n:])
	}
}

// unaligned returns how many elements lie before the first aligned one.
func unaligned[T snug.Element](x []T) int {
	address := uintptr(unsafe.Pointer(unsafe.SliceData(x)))
	return int(-address%align) / int(unsafe.Sizeof(*new(T)))
}

// stochastic makes a random rounding of an assembly loop and a Go loop.
func stochastic[D ~uint16](fast func(dst *uint16, src *float32, draws *uint16, n int), rest func([]D, []float32, []uint16)) func([]D, []float32, []uint16) {
	return func(dst []D, src []float32, draws []uint16) {
		n := len(src) / step * step
		if n > 0 {
			_, _ = dst[n-1], draws[n-1]
			fast((*uint16)(unsafe.Pointer(&dst[0])), &src[0], &draws[0], n)
		}
		rest(dst[n:], src[n:], draws[n:])
	}
}

func limited(fast func(dst, src *float32, n int, limit float32)) func(dst, src []float32, limit float32) {
	return func(dst, src []float32, most float32) {
		n := len(src) / step * step
		if n > 0 {
			_ = dst[n-1]
			fast(&dst[0], &src[0], n, most)
		}
		limit(dst[n:], src[n:], most)
	}
}
