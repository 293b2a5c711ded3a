//go:build !noasm && gc

package limits

import "github.com/snug-ml/snug/internal/cpu"

func init() {
	// A step has 12 multiply-adds of 8 or 16 lanes.
	registry.Add(cpu.AVX2, loops{
		fma:    arithmetic{fmaAVX2, 12 * 8 * 2},
		copies: []copying{copyGo, inParts(1, copy1xAVX2), inParts(4, copy4xAVX2), inParts(8, copy8xAVX2)},
		reads:  []reading{readInParts(1, read1xAVX2), readInParts(4, read4xAVX2), readInParts(8, read8xAVX2)},
	})
	fma := arithmetic{fmaAVX512, 12 * 16 * 2}
	registry.Add(cpu.AVX512, loops{
		fma:    fma,
		copies: []copying{copyGo, inParts(1, copy1xAVX512), inParts(4, copy4xAVX512), inParts(8, copy8xAVX512)},
		reads:  []reading{readInParts(1, read1xAVX512), readInParts(4, read4xAVX512), readInParts(8, read8xAVX512)},
	})
	dot := arithmetic{dotBF16, 2 * fma.flops}
	registry.Add(cpu.AVX512BF16, loops{fma: fma, dot: dot})
	// A step has 6 products of tiles, 16×32 by 32×16.
	registry.Add(cpu.AMX, loops{fma: fma, dot: dot, tile: arithmetic{tileBF16, 6 * 16 * 32 * 16 * 2}})
}
