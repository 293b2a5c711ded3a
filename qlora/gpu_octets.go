//go:build cuda || hip || metal || emu

package qlora

import (
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/gpu"
)

var octetNames = gpu.ForFloats("qlora_octets")

// octetMost is the number of elements up to which the kernel counts them, with room for the last step.
const octetMost = 1 << 30

func (j *rowsJob) Grids(q gpu.Launcher) error {
	rows := max(1, octetMost/j.in) // of a launch
	for lo := 0; lo*j.in < j.dst.Len(); lo += rows {
		hi := min((lo+rows)*j.in, j.dst.Len())
		if err := j.grid(q, lo, hi-lo*j.in); err != nil {
			return err
		}
	}
	return nil
}

// grid launches the decoding of n elements from a row of dst on.
func (j *rowsJob) grid(q gpu.Launcher, row, n int) error {
	dst, codes := part(j.dst, row*j.in, row*j.in+n), part(j.codes, row*j.in, row*j.in+n)
	to, from, size := *device.Mem(&dst), *device.Mem(&codes), dst.DType().Size()
	g, f := j.w.grid, j.w.t.octets()
	params := struct {
		n, first, in, rows, cols, across, even, wide uint32
		factor                                       float32
		_                                            uint32
		values                                       [256]float32
	}{
		n: uint32(n), first: uint32(j.first + row), in: uint32(j.in), rows: uint32(g.rows), cols: uint32(g.cols), across: uint32(cpu.Chunks(j.in, g.cols)),
		wide: gpu.Aligned(to.Addr, from.Addr), factor: f.Factor, values: f.Values,
	}
	if per := 16 / size; j.in%per == 0 && g.cols%per == 0 {
		params.even = 1
	}
	return kernels.Launch(q, octetNames.Of(uint8(dst.DType())),
		[3]int{min(gpu.CeilDiv(n, threads*flight*16/size), maxGrid), 1, 1}, threads, gpu.Params(&params), to, from, *device.Mem(&j.scales))
}
