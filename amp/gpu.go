//go:build cuda || hip || metal || emu

package amp

import (
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/gpu"
	"github.com/snug-ml/snug/internal/measure"
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
	return kernels.Launch(q, castNames[[2]snug.DType{from, to}],
		elementGrid(j.dst.Len(), max(from.Size(), to.Size())), threads, gpu.Params(&params), dst, src)
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
	return kernels.Launch(q, randomNames[[2]snug.DType{j.src.DType(), j.dst.DType()}],
		gpu.Grid(n+rounding.PerBlock, threads*rounding.PerBlock), threads, gpu.Params(&params), dst, src)
}

func (j *sweepJob) Grids(q gpu.Launcher) error {
	if len(j.joined.Rest()) > 0 {
		return j.gridsOfMany(q)
	}
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
	params.write = j.write()
	return kernels.Launch(q, sweepNames.Of(uint8(j.grad.DType())), [3]int{gpu.CeilDiv(n, j.piece()), 1, 1}, threads, gpu.Params(&params),
		grad, *device.Mem(&j.records.View))
}

// write returns 1 if the gradient changes.
func (j *sweepJob) write() uint32 {
	if j.factor != 1 || j.limit != noLimit {
		return 1
	}
	return 0
}

// gridsOfMany has one launch for all gradients, and one for what was found in them.
func (j *sweepJob) gridsOfMany(q gpu.Launcher) error {
	var params struct {
		factor, limit float32
		write, count  uint32
		items         [measure.MaxVectors]struct {
			x, n                         uint64
			first, piece, ordinal, dtype uint32
		}
	}
	params.factor, params.limit, params.write = j.factor, j.limit, j.write()
	var first [measure.MaxVectors + 1]uint32
	for i, o := range j.joined.Jobs {
		p, n, piece := &params.items[i], o.grad.Len(), o.piece()
		p.x, p.n = uint64(device.Mem(&o.grad).Addr), uint64(n)
		p.first, p.piece, p.ordinal, p.dtype = first[i], uint32(piece), uint32(o.ordinal), uint32(o.grad.DType())
		first[i+1] = first[i] + uint32(measure.Pieces(o.grad))
		params.count++
	}
	err := kernels.Launch(q, "amp_sweeps", [3]int{int(first[params.count]), 1, 1}, threads, gpu.Params(&params), *device.Mem(&j.records.Parts))
	if err != nil {
		return err
	}
	return j.records.Gather(q, &kernels, "amp_gather", first[:params.count+1])
}
