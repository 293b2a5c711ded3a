//go:build cuda || hip || metal || emu

package attention

import (
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/gpu"
)

// gpuMerge is the parameters of the kernels of merge.h, Merge there.
type gpuMerge struct {
	items, heads, rows, seq uint64
	out                     gpuStrides
	dim, dtype, gradient, _ uint32
}

// rows returns the rows of a head in q and out that sequences have.
func (c *Options) rows() int {
	if c.packed() {
		return c.QStarts[c.Batch]
	}
	return c.SeqQ
}

// Grids implements [gpu.Job].
func (j *mergeJob) Grids(q gpu.Launcher) error {
	c := &j.c
	n := c.batches() * c.Heads * c.rows()
	if n == 0 {
		return nil
	}
	p := gpuMerge{
		items: uint64(n), heads: uint64(c.Heads), rows: uint64(c.rows()), seq: uint64(c.SeqQ), out: c.Out.gpu(),
		dim: uint32(c.DimV), dtype: uint32(j.out.DType()), gradient: flag(c.GradLSE.Len() > 0),
	}
	l := gpu.Launch{
		Module: &kernels, Func: "attention_merge", Blocks: gpu.Grid(n, gpuThreads/32), Threads: gpuThreads,
		Operands: []driver.Mem{*device.Mem(&j.out), *device.Mem(&j.lse), *device.Mem(&j.out1), *device.Mem(&j.lse1), *device.Mem(&j.out2), *device.Mem(&j.lse2)}, Params: gpu.Params(&p),
	}
	if j.backward {
		l.Func = "attention_merge_backward"
		l.Operands = []driver.Mem{
			*device.Mem(&j.dout1), *device.Mem(&j.dlse1), *device.Mem(&j.dout), *device.Mem(&j.out), *device.Mem(&j.lse), *device.Mem(&j.out1), *device.Mem(&j.lse1), *device.Mem(&c.GradLSE),
		}
	}
	return q.LaunchGrid(&l)
}
