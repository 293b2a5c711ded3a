//go:build !noasm && gc

package limits

import "github.com/snug-ml/snug/internal/cpu"

func init() {
	registry.Add(cpu.NEON, loops{
		fma:    arithmetic{fmaNEON, 24 * 4 * 2}, // a step has 24 multiply-adds of 4 lanes
		copies: []copying{copyGo, inParts(1, copy1xNEON), inParts(4, copy4xNEON)},
		reads:  []reading{readInParts(1, read1xNEON), readInParts(4, read4xNEON)},
	})
}
