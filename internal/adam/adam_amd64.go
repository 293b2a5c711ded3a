//go:build !noasm && gc

package adam

import "github.com/snug-ml/snug/internal/cpu"

func init() {
	avx2, avx512 := vector(updateAVX2), vector(updateAVX512)
	Registry.Add(cpu.AVX2, Kernels{avx2, blockwise(avx2)})
	Registry.Add(cpu.AVX512, Kernels{avx512, step8})
}

// step is what the assembly updates at a time; the Go loop does the rest.
const step = 16

// vector makes an update of an assembly loop and the Go loop. The factors go by
// value, so that nothing escapes.
func vector(fast func(beta1, rest1, beta2, rest2, gradScale, size, eps, pre, post float32, p, m, v, grad *float32, n int)) func(Coef, []float32, []float32, []float32, []float32) {
	return func(c Coef, p, m, v, g []float32) {
		n := len(g) / step * step
		if n > 0 {
			_, _, _ = p[n-1], m[n-1], v[n-1]
			fast(c.beta1, c.rest1, c.beta2, c.rest2, c.gradScale, c.size, c.eps, c.pre, c.post, &p[0], &m[0], &v[0], &g[0], n)
		}
		update(c, p[n:], m[n:], v[n:], g[n:])
	}
}
