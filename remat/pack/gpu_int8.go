//go:build cuda || hip || metal || emu

package pack

import (
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/gpu"
)

var (
	packInt8Names   = gpu.ForFloats("pack_int8")
	unpackInt8Names = gpu.ForFloats("unpack_int8")
)

func (j *int8Job) Grids(q gpu.Launcher) error {
	x, codes, scales, n := *device.Mem(&j.x), *device.Mem(&j.codes), *device.Mem(&j.scales), j.x.Len()
	params := struct {
		n       uint64
		wide, _ uint32
	}{n: uint64(n), wide: gpu.Aligned(x.Addr, codes.Addr)}
	l := gpu.Launch{Module: &kernels, Threads: threads, Params: gpu.Params(&params)}
	if j.pack {
		l.Func, l.Blocks = packInt8Names.Of(uint8(j.x.DType())), gpu.Grid(n, threads)
		l.Operands = []driver.Mem{codes, scales, x}
	} else {
		l.Func, l.Blocks = unpackInt8Names.Of(uint8(j.x.DType())), gpu.Grid(n, threads*16/j.x.DType().Size())
		l.Operands = []driver.Mem{x, codes, scales}
	}
	return q.LaunchGrid(&l)
}
