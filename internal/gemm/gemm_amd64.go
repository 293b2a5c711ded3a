//go:build !noasm && gc

package gemm

import "github.com/snug-ml/snug/internal/cpu"

func init() {
	Registry.Add(cpu.AVX2, Kernel{6, 16, func(a, b, c []float32, ldc int) {
		add6x16(&a[0], &b[0], &c[0], len(a)/6, ldc)
	}})
	Registry.Add(cpu.AVX512, Kernel{14, 32, func(a, b, c []float32, ldc int) {
		add14x32(&a[0], &b[0], &c[0], len(a)/14, ldc)
	}})
}
