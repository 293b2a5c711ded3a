//go:build !noasm && gc

package limits

import "github.com/snug-ml/snug/internal/cpu"

func init() {
	// A step has 12 multiply-adds of 8 or 16 lanes.
	registry.Add(cpu.AVX2, loops{
		fma:    arithmetic{fmaAVX2, 12 * 8 * 2},
		stream: streamAVX2,
	})
	fma := arithmetic{fmaAVX512, 12 * 16 * 2}
	registry.Add(cpu.AVX512, loops{
		fma:    fma,
		stream: streamAVX512,
	})
	dot := arithmetic{dotBF16, 2 * fma.flops}
	registry.Add(cpu.AVX512BF16, loops{fma: fma, dot: dot})
	// A step has 6 products of tiles, 16×32 by 32×16.
	registry.Add(cpu.AMX, loops{fma: fma, dot: dot, tile: arithmetic{tileBF16, 6 * 16 * 32 * 16 * 2}})
}
