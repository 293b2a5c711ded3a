//go:build cuda || hip || metal || emu

package pack

import (
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/gpu"
)

var kernels = gpu.Module{Name: "pack"}

// threads is the size of a block.
const threads = 256

// The entry points that know elements by their size only, in bytes.
var (
	packNames   = map[int]string{1: "pack_bits_u8", 2: "pack_bits_u16", 4: "pack_bits_u32"}
	unpackNames = map[int]string{1: "unpack_bits_u8", 2: "unpack_bits_u16", 4: "unpack_bits_u32"}
	applyNames  = gpu.ForFloats("apply_bits")
)

// launch queues a kernel for n elements of size bytes. A thread takes those of one
// byte of the mask at a time, or of two where elements are bytes.
func launch(q gpu.Launcher, name string, n, size int, params []byte, operands ...driver.Mem) error {
	return kernels.Launch(q, name, gpu.Grid(n, threads*max(8, 16/size)), threads, params, operands...)
}

// wide returns 1 if the kernels may access mask and vectors, whose elements have
// size bytes, in groups; else 0.
func wide(size int, mask driver.Mem, vectors ...driver.Mem) uint32 {
	if size == 1 && mask.Addr%2 != 0 {
		return 0
	}
	for _, v := range vectors {
		if v.Addr%16 != 0 {
			return 0
		}
	}
	return 1
}

func (j *bitsJob) Grids(q gpu.Launcher) error {
	mask, x, size := *device.Mem(&j.mask), *device.Mem(&j.x), j.x.DType().Size()
	params := struct {
		n                     uint64
		shift, limit, wide, _ uint32
	}{n: uint64(j.x.Len()), shift: uint32(j.test.shift), limit: j.test.limit, wide: wide(size, mask, x)}
	return launch(q, packNames[size], j.x.Len(), size, gpu.Params(&params), mask, x)
}

func (j *unpackJob) Grids(q gpu.Launcher) error {
	dst, mask, size := *device.Mem(&j.dst), *device.Mem(&j.mask), j.dst.DType().Size()
	params := struct {
		n         uint64
		one, wide uint32
	}{uint64(j.dst.Len()), oneOf(j.dst.DType()), wide(size, mask, dst)}
	return launch(q, unpackNames[size], j.dst.Len(), size, gpu.Params(&params), dst, mask)
}

func (j *applyJob) Grids(q gpu.Launcher) error {
	dx, dy, mask, dt := *device.Mem(&j.dx), *device.Mem(&j.dy), *device.Mem(&j.mask), j.dx.DType()
	params := struct {
		n     uint64
		scale float32
		wide  uint32
	}{uint64(j.dx.Len()), j.scale, wide(dt.Size(), mask, dx, dy)}
	return launch(q, applyNames.Of(uint8(dt)), j.dx.Len(), dt.Size(), gpu.Params(&params), dx, dy, mask)
}
