//go:build !noasm && gc

package crc32c

import (
	"github.com/klauspost/cpuid/v2"
	"github.com/snug-ml/snug/internal/cpu"
)

func init() {
	if cpuid.CPU.Supports(cpuid.VPCLMULQDQ, cpuid.SSE42) {
		Registry.Add(cpu.AVX2, folded(128, updateAVX2))
		Registry.Add(cpu.AVX512, folded(256, updateAVX512))
	}
}

// folded makes Update of a loop over registers for a multiple of step bytes.
func folded(step int, loop func(sum uint32, p *byte, n int) uint32) func(sum uint32, b []byte) uint32 {
	return func(sum uint32, b []byte) uint32 {
		if n := len(b) / step * step; n > 0 {
			sum, b = ^loop(^sum, &b[0], n), b[n:]
		}
		return update(sum, b)
	}
}
