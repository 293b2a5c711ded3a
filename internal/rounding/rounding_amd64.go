//go:build !noasm && gc

package rounding

import (
	"unsafe"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/philox"
)

func init() {
	Registry.Add(cpu.AVX512, Kernels{BF16: cached, BF16Stream: streamed, Accumulate: accumulate})
}

// step is what the assembly rounds at a time, a multiple of PerBlock, and align the bytes
// to which it wants dst aligned when it streams; Go does the rest.
const (
	step  = 256
	align = 64
)

func by(fast func(dst *uint16, src *float32, n int, seed, tensor, first uint64)) func([]snug.BFloat16, []float32, philox.Stream, uint64) {
	return func(dst []snug.BFloat16, src []float32, s philox.Stream, first uint64) {
		n := len(src) / step * step
		if n > 0 {
			_ = dst[n-1]
			fast((*uint16)(&dst[0]), &src[0], n, s.Seed, s.Tensor, first)
		}
		if n < len(src) {
			toBF16(dst[n:], src[n:], s, first+uint64(n/PerBlock))
		}
	}
}

var cached, aligned = by(toBF16AVX512), by(toBF16StreamAVX512)

// streamed does the elements before the first aligned one in Go, if they are whole blocks.
// Otherwise no block begins at an aligned element, and the caches take the result.
func streamed(dst []snug.BFloat16, src []float32, s philox.Stream, first uint64) {
	before := int(-uintptr(unsafe.Pointer(unsafe.SliceData(dst))) % align / unsafe.Sizeof(snug.BFloat16(0)))
	if before%PerBlock != 0 {
		cached(dst, src, s, first)
		return
	}
	n := min(before, len(src))
	if n > 0 {
		toBF16(dst[:n], src[:n], s, first)
	}
	aligned(dst[n:], src[n:], s, first+uint64(before/PerBlock))
}

func accumulate(acc []snug.BFloat16, g snug.View, lo int, alpha, beta float32, s philox.Stream, first uint64) int {
	n := len(acc) / step * step
	if n == 0 {
		return 0
	}
	to, hi := (*uint16)(&acc[0]), lo+n
	switch g.DType() {
	case snug.F32:
		accumulateF32AVX512(to, &g.Float32s()[lo:hi][0], n, alpha, beta, s.Seed, s.Tensor, first)
	case snug.F16:
		accumulateF16AVX512(to, (*uint16)(&g.Float16s()[lo:hi][0]), n, alpha, beta, s.Seed, s.Tensor, first)
	case snug.BF16:
		accumulateBF16AVX512(to, (*uint16)(&g.BFloat16s()[lo:hi][0]), n, alpha, beta, s.Seed, s.Tensor, first)
	}
	return n
}
