//go:build !noasm && gc

package half

import "github.com/snug-ml/snug/internal/cpu"

func init() {
	k := Kernels{
		BF16ToF32: bf16ToF32NEON, F32ToBF16: f32ToBF16NEON, F16ToF32: f16ToF32NEON,
		F32ToF16: f32ToF16NEON, BF16ToF16: bf16ToF16NEON, F16ToBF16: f16ToBF16NEON,

		F32ToBF16Stochastic: f32ToBF16StochasticNEON, F32ToF16Stochastic: f32ToF16StochasticNEON, Limit: limitNEON,
	}
	Registry.Add(cpu.NEON, k)
	Streams.Add(cpu.NEON, k) // stores around the caches are but a hint here
}
