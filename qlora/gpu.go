//go:build cuda || hip || metal || emu

package qlora

import (
	"math/bits"

	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/gpu"
	"github.com/snug-ml/snug/quant8"
)

var kernels = gpu.Module{Name: "qlora"}

const (
	threads = 256
	// slots is the most elements of a quantization block that a thread handles.
	slots = 16
	// flight is the number of 16-byte accesses that a thread of Dequantize has in flight.
	flight = 4
	// maxGrid bounds the blocks of kernels that fill tables first.
	maxGrid = 1 << 11
)

var (
	quantizeNames   = gpu.ForFloats("qlora_quantize")
	dequantizeNames = gpu.ForFloats("qlora_dequantize")
	doubleNames     = gpu.ForFloats("qlora_double")
)

func (j *quantizeJob) Grids(q gpu.Launcher) error {
	packed, absmax, src := *device.Mem(&j.packed), *device.Mem(&j.absmax), *device.Mem(&j.src)
	lanes := j.block / slots // threads that share a block, a power of two as it is
	params := struct {
		n, codes     uint64
		block, lanes uint32
		wide, _      uint32
		limits       [16]float32
	}{
		n: uint64(j.src.Len()), block: uint32(j.block), lanes: uint32(lanes),
		wide: gpu.Aligned(packed.Addr, src.Addr), limits: j.f.Limits,
	}
	for rank, c := range j.f.Codes {
		params.codes |= uint64(c) << (4 * rank)
	}
	return kernels.Launch(q, quantizeNames.Of(uint8(j.src.DType())),
		[3]int{min(gpu.CeilDiv(j.absmax.Len(), threads/lanes), maxGrid), 1, 1}, threads, gpu.Params(&params), packed, absmax, src)
}

func (j *dequantizeJob) Grids(q gpu.Launcher) error {
	dst, packed, n := *device.Mem(&j.dst), *device.Mem(&j.packed), j.dst.Len()
	common := dequantizeParams{uint64(n), uint32(bits.TrailingZeros(uint(j.block))), gpu.Aligned(dst.Addr, packed.Addr), j.f.Values}
	tile := threads * flight * 16 / j.dst.DType().Size()
	l := gpu.Launch{
		Module: &kernels, Func: dequantizeNames.Of(uint8(j.dst.DType())),
		Blocks: [3]int{min(gpu.CeilDiv(n, tile), maxGrid), 1, 1}, Threads: threads,
		Operands: []driver.Mem{dst, packed, *device.Mem(&j.absmax)}, Params: gpu.Params(&common),
	}
	if j.m != nil {
		l.Func = doubleNames.Of(uint8(j.dst.DType()))
		l.Operands = append(l.Operands, *device.Mem(&j.nested))
		l.Params = gpu.Params(&struct {
			dequantizeParams
			offset float32
			_      uint32
			m      quant8.Map
		}{dequantizeParams: common, offset: j.offset, m: *j.m})
	}
	return q.LaunchGrid(&l)
}

type dequantizeParams struct {
	n           uint64
	shift, wide uint32
	values      [16]float32
}
