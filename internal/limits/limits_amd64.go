//go:build !noasm && gc

package limits

import "github.com/snug-ml/snug/internal/cpu"

func init() {
	// A step has 12 multiply-adds of 8 or 16 lanes.
	registry.Add(cpu.AVX2, loops{
		fma: arithmetic{fmaAVX2, 12 * 8 * 2},
		streams: map[Mix][]streaming{
			{1, 0, false}: {{1, stream1to0By1AVX2}, {4, stream1to0By4AVX2}},
			{1, 1, false}: {{1, stream1to1By1AVX2}, {4, stream1to1By4AVX2}, {1, stream1to1AroundBy1AVX2}, {4, stream1to1AroundBy4AVX2}},
			{2, 1, false}: {{1, stream2to1By1AVX2}, {4, stream2to1By4AVX2}, {1, stream2to1AroundBy1AVX2}, {4, stream2to1AroundBy4AVX2}},
			{4, 1, false}: {{1, stream4to1By1AVX2}, {4, stream4to1By4AVX2}, {1, stream4to1AroundBy1AVX2}, {4, stream4to1AroundBy4AVX2}},
			{1, 2, false}: {{1, stream1to2By1AVX2}, {4, stream1to2By4AVX2}, {1, stream1to2AroundBy1AVX2}, {4, stream1to2AroundBy4AVX2}},
			{1, 4, false}: {{1, stream1to4By1AVX2}, {4, stream1to4By4AVX2}, {1, stream1to4AroundBy1AVX2}, {4, stream1to4AroundBy4AVX2}},
			{3, 2, false}: {{1, stream3to2By1AVX2}, {4, stream3to2By4AVX2}, {1, stream3to2AroundBy1AVX2}, {4, stream3to2AroundBy4AVX2}},
			{1, 1, true}:  {{1, stream1to1InPlaceBy1AVX2}, {4, stream1to1InPlaceBy4AVX2}, {1, stream1to1InPlaceByLinesAVX2}},
			{2, 1, true}:  {{1, stream2to1InPlaceBy1AVX2}, {4, stream2to1InPlaceBy4AVX2}, {1, stream2to1InPlaceByLinesAVX2}},
			{3, 1, true}:  {{1, stream3to1InPlaceBy1AVX2}, {4, stream3to1InPlaceBy4AVX2}, {1, stream3to1InPlaceByLinesAVX2}},
			{4, 3, true}:  {{1, stream4to3InPlaceBy1AVX2}, {4, stream4to3InPlaceBy4AVX2}, {1, stream4to3InPlaceByLinesAVX2}},
		},
	})
	fma := arithmetic{fmaAVX512, 12 * 16 * 2}
	registry.Add(cpu.AVX512, loops{
		fma: fma,
		streams: map[Mix][]streaming{
			{1, 0, false}: {{1, stream1to0By1AVX512}, {4, stream1to0By4AVX512}},
			{1, 1, false}: {{1, stream1to1By1AVX512}, {4, stream1to1By4AVX512}, {1, stream1to1AroundBy1AVX512}, {4, stream1to1AroundBy4AVX512}},
			{2, 1, false}: {{1, stream2to1By1AVX512}, {4, stream2to1By4AVX512}, {1, stream2to1AroundBy1AVX512}, {4, stream2to1AroundBy4AVX512}},
			{4, 1, false}: {{1, stream4to1By1AVX512}, {4, stream4to1By4AVX512}, {1, stream4to1AroundBy1AVX512}, {4, stream4to1AroundBy4AVX512}},
			{1, 2, false}: {{1, stream1to2By1AVX512}, {4, stream1to2By4AVX512}, {1, stream1to2AroundBy1AVX512}, {4, stream1to2AroundBy4AVX512}},
			{1, 4, false}: {{1, stream1to4By1AVX512}, {4, stream1to4By4AVX512}, {1, stream1to4AroundBy1AVX512}, {4, stream1to4AroundBy4AVX512}},
			{3, 2, false}: {{1, stream3to2By1AVX512}, {4, stream3to2By4AVX512}, {1, stream3to2AroundBy1AVX512}, {4, stream3to2AroundBy4AVX512}},
			{1, 1, true}:  {{1, stream1to1InPlaceBy1AVX512}, {4, stream1to1InPlaceBy4AVX512}, {1, stream1to1InPlaceByLinesAVX512}},
			{2, 1, true}:  {{1, stream2to1InPlaceBy1AVX512}, {4, stream2to1InPlaceBy4AVX512}, {1, stream2to1InPlaceByLinesAVX512}},
			{3, 1, true}:  {{1, stream3to1InPlaceBy1AVX512}, {4, stream3to1InPlaceBy4AVX512}, {1, stream3to1InPlaceByLinesAVX512}},
			{4, 3, true}:  {{1, stream4to3InPlaceBy1AVX512}, {4, stream4to3InPlaceBy4AVX512}, {1, stream4to3InPlaceByLinesAVX512}},
		},
	})
	dot := arithmetic{dotBF16, 2 * fma.flops}
	registry.Add(cpu.AVX512BF16, loops{fma: fma, dot: dot})
	// A step has 6 products of tiles, 16×32 by 32×16.
	registry.Add(cpu.AMX, loops{fma: fma, dot: dot, tile: arithmetic{tileBF16, 6 * 16 * 32 * 16 * 2}})
}
