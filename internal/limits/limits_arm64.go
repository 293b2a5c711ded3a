//go:build !noasm && gc

package limits

import "github.com/snug-ml/snug/internal/cpu"

func init() {
	registry.Add(cpu.NEON, loops{
		fma:    arithmetic{fmaNEON, 24 * 4 * 2}, // a step has 24 multiply-adds of 4 lanes
		stream: streamNEON,
	})
}
