//go:build cuda || hip || metal || emu

package qlora

import (
	"math/bits"

	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/gpu"
	"github.com/snug-ml/snug/quant8"
)

const (
	fewThreads = 128
	// fewOutputs is the number of outputs that a warp of 32 threads computes at a time.
	fewOutputs = 4
)

// fewNames are the kernels for 1, 2, 4 and 8 rows at a time.
var fewNames = [...]gpu.Floats{
	gpu.ForFloats("qlora_few1"), gpu.ForFloats("qlora_few2"), gpu.ForFloats("qlora_few4"), gpu.ForFloats("qlora_few8"),
}

func (j *fewJob) Grids(q gpu.Launcher) error {
	x, packed := *device.Mem(&j.x), *device.Mem(&j.packed)
	params := struct {
		out, in      uint64
		rows, shift  uint32
		kind, wide   uint32
		nested       uint32
		beta, offset float32
		_            uint32
		values       [16]float32
		m            quant8.Map
	}{
		out: uint64(j.out), in: uint64(j.in), rows: uint32(j.rows), shift: uint32(bits.TrailingZeros(uint(j.block))),
		kind: uint32(j.y.DType() - 1), wide: gpu.Aligned(x.Addr, packed.Addr), beta: j.beta, offset: j.offset, values: j.f.Values,
	}
	if j.m != nil {
		params.nested, params.m = 1, *j.m
	}
	size := min(bits.Len(uint(j.rows-1)), len(fewNames)-1)
	return kernels.Launch(q, fewNames[size].Of(uint8(j.x.DType())),
		[3]int{min(gpu.CeilDiv(j.out, fewThreads/32*fewOutputs), maxGrid), gpu.CeilDiv(j.rows, 1<<size), 1}, fewThreads, gpu.Params(&params),
		*device.Mem(&j.y), x, packed, *device.Mem(&j.absmax), *device.Mem(&j.codes), *device.Mem(&j.nested))
}
