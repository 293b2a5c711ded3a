//go:build cuda || hip || metal || emu

package amp

import (
	"github.com/snug-ml/snug/internal/gemm"
	"github.com/snug-ml/snug/internal/gpu"
)

func (j *matMulJob) Grids(q gpu.Launcher) error {
	g := &j.cfg
	a := gemm.Matrix{Data: j.a, Stride: g.LDA, Trans: g.TransA}
	b := gemm.Matrix{Data: j.b, Stride: g.LDB, Trans: g.TransB}
	c := gemm.Matrix{Data: j.c, Stride: g.LDC}
	return gemm.Grids(q, g.M, g.N, g.K, g.Into.Alpha, a.GPU(), b.GPU(), g.Into.Beta, c.GPU())
}
