//go:build !noasm && gc

package adam

import "github.com/snug-ml/snug/internal/cpu"

func init() { Registry.Add(cpu.NEON, Kernels{Update: neon, Step8: blockwise(neon)}) }

func neon(c Coef, p, m, v, g []float32) {
	updateNEON(g, p, m, v, c.beta1, c.rest1, c.beta2, c.rest2, c.gradScale, c.size, c.eps, c.pre, c.post)
}
