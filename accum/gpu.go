//go:build cuda || hip || metal || emu

package accum

import (
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/gpu"
)

var kernels = gpu.Module{Name: "accum"}

// threads is the size of a block, perThread how many elements each thread of it
// takes at a time, and perBlock how many take their random numbers from one
// Philox block.
const (
	threads   = 256
	perThread = 16
	perBlock  = 8
)

var (
	accumulateNames = gpu.ForFloats("accum_accumulate")
	measuredNames   = gpu.ForFloats("accum_measured")
	roundedNames    = gpu.ForFloats("accum_rounded")
)

func (j *accumulateJob) Grids(q gpu.Launcher) error {
	if len(j.joined.Rest()) > 0 {
		return j.gridOfMany(q)
	}
	acc, g, n := *device.Mem(&j.acc), *device.Mem(&j.g), j.acc.Len()
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

func (j *measuredJob) Grids(q gpu.Launcher) error {
	if len(j.joined.Rest()) > 0 {
		return j.gridsOfMany(q)
	}
	g, n := *device.Mem(&j.g), j.g.Len()
	if n == 0 {
		return nil
	}
	params := struct {
		n, piece    uint64
		ordinal     int64
		alpha, beta float32
		write, wide uint32
		used, _     uint32
	}{
		n: uint64(n), piece: uint64(j.piece()), ordinal: j.ordinal, alpha: j.alpha, beta: j.beta,
		used: uint32(j.records.Used),
	}
	acc := g // bound, and not used
	if j.acc.Len() > 0 {
		acc, params.write = *device.Mem(&j.acc), 1
	}
	params.wide = gpu.Aligned(acc.Addr, g.Addr)
	return kernels.Launch(q, measuredNames.Of(uint8(j.g.DType())), [3]int{gpu.CeilDiv(n, j.piece()), 1, 1}, threads, gpu.Params(&params),
		g, acc, *device.Mem(&j.records.View))
}

func (j *roundedJob) Grids(q gpu.Launcher) error {
	if len(j.joined.Rest()) > 0 {
		return j.gridOfMany(q)
	}
	acc, g, n := *device.Mem(&j.acc), *device.Mem(&j.g), j.acc.Len()
	if n == 0 {
		return nil
	}
	params := struct {
		n, seed, tensor uint64
		alpha, beta     float32
		add, wide       uint32
	}{n: uint64(n), seed: j.seed, tensor: j.tensor, alpha: j.alpha, beta: j.beta, add: 1}
	dt := j.g.DType()
	if j.g.Len() == 0 {
		g, params.add, dt = acc, 0, j.acc.DType() // bound, and not used
	}
	params.wide = gpu.Aligned(acc.Addr, g.Addr)
	return kernels.Launch(q, roundedNames.Of(uint8(dt)), gpu.Grid(n, threads*perBlock), threads, gpu.Params(&params), g, acc)
}
