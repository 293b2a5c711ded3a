//go:build !noasm && gc

package half

import "github.com/snug-ml/snug/internal/cpu"

func init() {
	Registry8.Add(cpu.AVX2, Kernels8{
		E4M3ToF32: cached(e4m3ToF32AVX2, e4m3ToF32), F32ToE4M3: cached(f32ToE4M3AVX2, f32ToE4M3),
		E5M2ToF32: cached(e5m2ToF32AVX2, e5m2ToF32), F32ToE5M2: cached(f32ToE5M2AVX2, f32ToE5M2),
	})
	Registry8.Add(cpu.AVX512, Kernels8{
		E4M3ToF32: cached(e4m3ToF32AVX512, e4m3ToF32), F32ToE4M3: cached(f32ToE4M3AVX512, f32ToE4M3),
		E5M2ToF32: cached(e5m2ToF32AVX512, e5m2ToF32), F32ToE5M2: cached(f32ToE5M2AVX512, f32ToE5M2),
	})
}
