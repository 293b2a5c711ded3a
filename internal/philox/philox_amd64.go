//go:build !noasm && gc

package philox

import "github.com/snug-ml/snug/internal/cpu"

func init() {
	Registry.Add(cpu.AVX2, blocksAVX2)
	Registry.Add(cpu.AVX512, blocksAVX512)
}
