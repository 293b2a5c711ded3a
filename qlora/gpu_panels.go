//go:build cuda || hip || metal || emu

package qlora

import (
	"github.com/snug-ml/snug/internal/gemm"
	"github.com/snug-ml/snug/internal/gpu"
)

// Grids queues the panels if the library has all their products, else the kernel that decodes on the way. Should the
// library refuse a product after that, snug's kernels multiply by the panel.
func (j *panelsJob) Grids(q gpu.Launcher) error {
	has, err := j.has(q)
	if err != nil {
		return err
	}
	if !has {
		return j.productJob.Grids(q)
	}
	for p := range j.panels {
		if err := p.decode.Grids(q); err != nil {
			return err
		}
		if err := gemm.Grids(q, p.m, p.n, p.k, 1, p.a.GPU(), p.b.GPU(), p.beta, p.c.GPU()); err != nil {
			return err
		}
	}
	return nil
}

// has reports whether the library of q has the products of all panels.
func (j *panelsJob) has(q gpu.Launcher) (bool, error) {
	library, ok := q.(gpu.MatMulChecker)
	if !ok {
		return false, nil
	}
	for p := range j.panels {
		if has, err := library.HasMatMul(p.m, p.n, p.k, p.a.GPU(), p.b.GPU(), p.c.GPU()); err != nil || !has {
			return false, err
		}
	}
	return true, nil
}
