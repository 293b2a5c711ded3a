//go:build !noasm && gc

package limits

import "github.com/snug-ml/snug/internal/cpu"

func init() {
	registry.Add(cpu.NEON, loops{
		fma: arithmetic{fmaNEON, 24 * 4 * 2}, // a step has 24 multiply-adds of 4 lanes
		streams: map[Mix][]streaming{
			{1, 0, false}: {{1, stream1to0By1NEON}, {4, stream1to0By4NEON}},
			{1, 1, false}: {{1, stream1to1By1NEON}, {4, stream1to1By4NEON}, {1, stream1to1AroundBy1NEON}, {4, stream1to1AroundBy4NEON}},
			{2, 1, false}: {{1, stream2to1By1NEON}, {4, stream2to1By4NEON}, {1, stream2to1AroundBy1NEON}, {4, stream2to1AroundBy4NEON}},
			{4, 1, false}: {{1, stream4to1By1NEON}, {4, stream4to1By4NEON}, {1, stream4to1AroundBy1NEON}, {4, stream4to1AroundBy4NEON}},
			{1, 2, false}: {{1, stream1to2By1NEON}, {4, stream1to2By4NEON}, {1, stream1to2AroundBy1NEON}, {4, stream1to2AroundBy4NEON}},
			{1, 4, false}: {{1, stream1to4By1NEON}, {4, stream1to4By4NEON}, {1, stream1to4AroundBy1NEON}, {4, stream1to4AroundBy4NEON}},
			{3, 2, false}: {{1, stream3to2By1NEON}, {4, stream3to2By4NEON}, {1, stream3to2AroundBy1NEON}, {4, stream3to2AroundBy4NEON}},
			{1, 1, true}:  {{1, stream1to1InPlaceBy1NEON}, {4, stream1to1InPlaceBy4NEON}},
			{2, 1, true}:  {{1, stream2to1InPlaceBy1NEON}, {4, stream2to1InPlaceBy4NEON}},
			{3, 1, true}:  {{1, stream3to1InPlaceBy1NEON}, {4, stream3to1InPlaceBy4NEON}},
			{4, 3, true}:  {{1, stream4to3InPlaceBy1NEON}, {4, stream4to3InPlaceBy4NEON}},
		},
	})
}
