//go:build !noasm && gc

package philox

import "github.com/snug-ml/snug/internal/cpu"

func init() {
	Registry.Add(cpu.AVX2, by(blocksAVX2))
	Registry.Add(cpu.AVX512, by(blocksAVX512))
}

func by(fast func(dst *uint32, n int, seed, tensor, first uint64)) blocksFunc {
	return func(dst []uint32, seed, tensor, first uint64) {
		if len(dst) > 0 {
			fast(&dst[0], len(dst), seed, tensor, first)
		}
	}
}
