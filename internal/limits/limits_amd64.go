//go:build !noasm && gc

package limits

import "github.com/snug-ml/snug/internal/cpu"

func init() {
	// A step has 12 multiply-adds of 8 or 16 lanes.
	registry.Add(cpu.AVX2, loops{
		fma: fmaAVX2, flops: 12 * 8 * 2,
		copy: func(dst, src []byte) { streamAVX2(&dst[0], &src[0], len(src)) },
		read: func(src []byte) { readAVX2(&src[0], len(src)) },
	})
	registry.Add(cpu.AVX512, loops{
		fma: fmaAVX512, flops: 12 * 16 * 2,
		copy: func(dst, src []byte) { streamAVX512(&dst[0], &src[0], len(src)) },
		read: func(src []byte) { readAVX512(&src[0], len(src)) },
	})
	registry.Add(cpu.AVX512BF16, loops{fma: fmaAVX512, dot: dotBF16, flops: 12 * 16 * 2})
}
