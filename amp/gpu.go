//go:build cuda || hip || metal || emu

package amp

import (
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/gpu"
	"github.com/snug-ml/snug/internal/rounding"
)

var kernels = gpu.Module{Name: "amp"}

// threads is the size of a block of the kernels that go through elements, and
// flight how many accesses each of them has on the way.
const (
	threads = 256
	flight  = 4
)

var (
	castNames   = map[[2]snug.DType]string{}
	randomNames = map[[2]snug.DType]string{}
	sweepNames  = gpu.ForFloats("amp_sweep")
)

func init() {
	for _, from := range []snug.DType{snug.F32, snug.F16, snug.BF16} {
		for _, to := range []snug.DType{snug.F32, snug.F16, snug.BF16} {
			types := [2]snug.DType{from, to}
			castNames[types] = "amp_cast_" + from.String() + "_" + to.String()
			randomNames[types] = "amp_random_" + from.String() + "_" + to.String()
		}
	}
}

// elementGrid returns the blocks for n elements of at most size bytes.
func elementGrid(n, size int) [3]int { return gpu.Grid(n, threads*flight*16/size) }

func (j *castJob) Grids(q gpu.Launcher) error {
	dst, src := *device.Mem(&j.dst), *device.Mem(&j.src)
	from, to := j.src.DType(), j.dst.DType()
	limit := j.limit
	if limit == 0 {
		limit = float32(math.Inf(1))
	}
	switch {
	case j.plain():
		return q.Copy(dst, src)
	case j.random:
		return j.gridsAtRandom(q, limit)
	}
	params := struct {
		n     uint64
		limit float32
		wide  uint32
	}{uint64(j.dst.Len()), limit, gpu.Aligned(dst.Addr, src.Addr)}
	return q.LaunchGrid(&gpu.Launch{
		Module: &kernels, Func: castNames[[2]snug.DType{from, to}],
		Blocks: elementGrid(j.dst.Len(), max(from.Size(), to.Size())), Threads: threads,
		Operands: []driver.Mem{dst, src}, Params: gpu.Params(&params),
	})
}

// gridsAtRandom has a thread for each block of random numbers.
func (j *castJob) gridsAtRandom(q gpu.Launcher, limit float32) error {
	dst, src, n := *device.Mem(&j.dst), *device.Mem(&j.src), j.dst.Len()
	skip := uintptr(j.draw.First % rounding.PerBlock)
	params := struct {
		n, seed, tensor, first uint64
		limit                  float32
		wide                   uint32
	}{
		n: uint64(n), seed: j.draw.Seed, tensor: j.draw.Tensor, first: j.draw.First, limit: limit,
		wide: gpu.Aligned(dst.Addr-2*skip, src.Addr-uintptr(j.src.DType().Size())*skip),
	}
	return q.LaunchGrid(&gpu.Launch{
		Module: &kernels, Func: randomNames[[2]snug.DType{j.src.DType(), j.dst.DType()}],
		Blocks: gpu.Grid(n+rounding.PerBlock, threads*rounding.PerBlock), Threads: threads,
		Operands: []driver.Mem{dst, src}, Params: gpu.Params(&params),
	})
}

func (j *sweepJob) Grids(q gpu.Launcher) error {
	grad, n := *device.Mem(&j.grad), j.grad.Len()
	params := struct {
		n, piece      uint64
		ordinal       int64
		factor, limit float32
		write, wide   uint32
		used, _       uint32
	}{
		n: uint64(n), piece: uint64(j.piece()), ordinal: j.ordinal, factor: j.factor, limit: j.limit,
		wide: gpu.Aligned(grad.Addr), used: uint32(j.records.Used),
	}
	if j.factor != 1 || j.limit != noLimit {
		params.write = 1
	}
	return q.LaunchGrid(&gpu.Launch{
		Module: &kernels, Func: sweepNames.Of(uint8(j.grad.DType())),
		Blocks: [3]int{gpu.CeilDiv(n, j.piece()), 1, 1}, Threads: threads,
		Operands: []driver.Mem{grad, *device.Mem(&j.records.View)}, Params: gpu.Params(&params),
	})
}
