package pack

import (
	"math"
	"unsafe"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/half"
)

// maskChunk is how many elements a worker takes at a time, a multiple of 8.
const maskChunk = 1 << 16

// word is the bits of an element.
type word interface{ uint8 | uint16 | uint32 }

// words returns elements lo to hi-1 of a host view as bits.
func words[W word](v *snug.View, lo, hi int) []W {
	return unsafe.Slice((*W)(device.Mem(v).Host), v.Len())[lo:hi]
}

// maskBytes returns the bytes of a host mask for elements lo to hi-1; lo is a
// multiple of 8.
func maskBytes(mask *snug.View, lo, hi int) []uint8 {
	return device.Mem(mask).Bytes()[lo/8 : BitsLen(hi)]
}

// bitTest is a test of the bits w of an element, in the arithmetic of their size:
//
//	(w << shift) − 1 < limit
type bitTest struct {
	shift uint8
	limit uint32
}

// positive is the test x > 0. Positive numbers are the bits from 1 to those of
// infinity; NaNs lie above, and so do negative numbers.
func positive(dt snug.DType) bitTest {
	switch dt {
	case snug.F16:
		return bitTest{limit: 0x7c00}
	case snug.BF16:
		return bitTest{limit: 0x7f80}
	}
	return bitTest{limit: 0x7f800000}
}

// nonzero is the test x ≠ 0: it shifts the sign of a float out, and only from 0 is
// 1 less the largest number.
func nonzero(dt snug.DType) bitTest {
	t := bitTest{limit: math.MaxUint32 >> (32 - 8*dt.Size())}
	if dt.IsFloat() {
		t.shift = 1
	}
	return t
}

// bitsJob sets bit i of mask by a test of x[i].
type bitsJob struct {
	mask, x snug.View
	test    bitTest
}

func (*bitsJob) Kernel() string { return "pack.bits" }

func (j *bitsJob) Operands(yield func(*driver.Mem)) { device.Each(yield, &j.mask, &j.x) }

func (j bitsJob) Run() { bitsTask.Run(cpu.Chunks(j.x.Len(), maskChunk), j) }

var bitsTask = cpu.NewTask(func(j *bitsJob, item int) {
	lo, hi := cpu.Chunk(j.x.Len(), maskChunk, item)
	mask := maskBytes(&j.mask, lo, hi)
	switch j.x.DType().Size() {
	case 1:
		packWords(mask, words[uint8](&j.x, lo, hi), j.test)
	case 2:
		packWords(mask, words[uint16](&j.x, lo, hi), j.test)
	case 4:
		packWords(mask, words[uint32](&j.x, lo, hi), j.test)
	}
})

// packWords has no branches that depend on x, whose signs are as good as random.
func packWords[W word](mask []uint8, x []W, t bitTest) {
	limit := uint64(t.limit)
	for b := range mask {
		group := x[8*b : min(8*b+8, len(x))]
		var bits uint8
		for _, w := range group {
			less := (uint64(w<<t.shift-1) - limit) >> 63
			bits = bits>>1 | uint8(less)<<7
		}
		mask[b] = bits >> (8 - len(group))
	}
}

// unpackJob is dst[i] = bit i of mask.
type unpackJob struct{ dst, mask snug.View }

func (*unpackJob) Kernel() string { return "pack.unpack_bits" }

func (j *unpackJob) Operands(yield func(*driver.Mem)) { device.Each(yield, &j.dst, &j.mask) }

func (j unpackJob) Run() { unpackTask.Run(cpu.Chunks(j.dst.Len(), maskChunk), j) }

var unpackTask = cpu.NewTask(func(j *unpackJob, item int) {
	lo, hi := cpu.Chunk(j.dst.Len(), maskChunk, item)
	mask, one := maskBytes(&j.mask, lo, hi), oneOf(j.dst.DType())
	switch j.dst.DType().Size() {
	case 1:
		unpackWords(words[uint8](&j.dst, lo, hi), mask, uint8(one))
	case 2:
		unpackWords(words[uint16](&j.dst, lo, hi), mask, uint16(one))
	case 4:
		unpackWords(words[uint32](&j.dst, lo, hi), mask, one)
	}
})

// oneOf returns the bits of 1.
func oneOf(dt snug.DType) uint32 {
	switch dt {
	case snug.F32:
		return 0x3f800000
	case snug.F16:
		return 0x3c00
	case snug.BF16:
		return 0x3f80
	}
	return 1
}

func unpackWords[W word](dst []W, mask []uint8, one W) {
	for i := range dst {
		dst[i] = one & selector[W](mask, i)
	}
}

// selector returns all ones where bit i of mask is set, else 0.
func selector[W word](mask []uint8, i int) W { return -W(mask[i/8] >> (i % 8) & 1) }

// applyJob is dx[i] = scale·dy[i] where bit i of mask is set, else 0.
type applyJob struct {
	dx, dy, mask snug.View
	scale        float32
}

func (*applyJob) Kernel() string { return "pack.apply_bits" }

func (j *applyJob) Operands(yield func(*driver.Mem)) { device.Each(yield, &j.dx, &j.dy, &j.mask) }

func (j applyJob) Run() { applyTask.Run(cpu.Chunks(j.dy.Len(), maskChunk), j) }

var applyTask = cpu.NewTask(func(j *applyJob, item int) {
	lo, hi := cpu.Chunk(j.dy.Len(), maskChunk, item)
	mask := maskBytes(&j.mask, lo, hi)
	switch {
	case j.scale != 1:
		j.multiply(lo, hi)
	case j.dy.DType() == snug.F32:
		selectWords(words[uint32](&j.dx, lo, hi), words[uint32](&j.dy, lo, hi), mask)
	default:
		selectWords(words[uint16](&j.dx, lo, hi), words[uint16](&j.dy, lo, hi), mask)
	}
})

func selectWords[W word](dx, dy []W, mask []uint8) {
	dy = dy[:len(dx)]
	for i := range dx {
		dx[i] = dy[i] & selector[W](mask, i)
	}
}

var tiles cpu.Scratch

// multiply computes elements lo to hi-1 when scale is not 1.
func (j *applyJob) multiply(lo, hi int) {
	buf := tiles.Get(half.Chunk)
	defer tiles.Put(buf)
	for ; lo < hi; lo += half.Chunk {
		tile := (*buf)[:min(half.Chunk, hi-lo)]
		half.Load(tile, j.dy, lo)
		mask := maskBytes(&j.mask, lo, lo+len(tile))
		for i, y := range tile {
			bits := math.Float32bits(j.scale * y)
			tile[i] = math.Float32frombits(bits & selector[uint32](mask, i))
		}
		half.Store(j.dx, lo, tile)
	}
}
