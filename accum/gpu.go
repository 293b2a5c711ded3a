//go:build cuda || metal || emu

package accum

import (
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/gpu"
)

var kernels = gpu.Module{Name: "accum"}

// threads is the size of a block, and perThread how many elements each thread
// of it takes at a time.
const (
	threads   = 256
	perThread = 16
)

var (
	accumulateNames = gpu.ForFloats("accum_accumulate")
	inspectNames    = gpu.ForFloats("accum_inspect")
)

func (j *accumulateJob) Grids(q gpu.Launcher) error {
	acc, g, n := *j.acc.Mem(), *j.g.Mem(), j.acc.Len()
	if n == 0 {
		return nil
	}
	params := struct {
		n           uint64
		alpha, beta float32
		wide, _     uint32
	}{n: uint64(n), alpha: j.alpha, beta: j.beta, wide: gpu.Aligned(acc.Addr)}
	l := gpu.Launch{
		Module: &kernels, Func: "accum_decay",
		Blocks: gpu.Grid(n, threads*perThread), Threads: threads,
		Operands: []driver.Mem{acc}, Params: gpu.Params(&params),
	}
	if j.g.Len() > 0 {
		l.Func, l.Operands = accumulateNames.Of(uint8(j.g.DType())), []driver.Mem{acc, g}
		params.wide = gpu.Aligned(acc.Addr, g.Addr)
	}
	return q.LaunchGrid(&l)
}

func (j *inspectJob) Grids(q gpu.Launcher) error {
	g, n := *j.g.Mem(), j.g.Len()
	if n == 0 {
		return nil
	}
	params := struct {
		n, piece uint64
		param    int32
		wide     uint32
	}{uint64(n), uint64(j.piece()), j.param, gpu.Aligned(g.Addr)}
	return q.LaunchGrid(&gpu.Launch{
		Module: &kernels, Func: inspectNames.Of(uint8(j.g.DType())),
		Blocks: [3]int{gpu.CeilDiv(n, j.piece()), 1, 1}, Threads: threads,
		Operands: []driver.Mem{g, *j.records.Mem()}, Params: gpu.Params(&params),
	})
}
