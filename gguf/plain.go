package gguf

import (
	"encoding/binary"
	"math"
	"math/bits"
	"sync"
	"unsafe"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/half"
)

func decodeF32(dst []float32, src []byte) {
	src = src[:4*len(dst)]
	for i := range dst {
		dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(src[4*i:]))
	}
}

func encodeF32(dst []byte, src []float32) {
	dst = dst[:4*len(src)]
	for i, x := range src {
		binary.LittleEndian.PutUint32(dst[4*i:], math.Float32bits(x))
	}
}

func decodeF16(dst []float32, src []byte) {
	convert := half.Registry.Best().F16ToF32
	decode16(dst, src, func(dst []float32, src []uint16) { convert(dst, snug.Float16s(src)) })
}

func encodeF16(dst []byte, src []float32) {
	convert := half.Registry.Best().F32ToF16
	encode16(dst, src, func(dst []uint16, src []float32) { convert(snug.Float16s(dst), src) })
}

func decodeBF16(dst []float32, src []byte) {
	convert := half.Registry.Best().BF16ToF32
	decode16(dst, src, func(dst []float32, src []uint16) { convert(dst, snug.BFloat16s(src)) })
}

func encodeBF16(dst []byte, src []float32) {
	convert := half.Registry.Best().F32ToBF16
	encode16(dst, src, func(dst []uint16, src []float32) { convert(snug.BFloat16s(dst), src) })
}

// parts holds numbers of 16 bits in the order of bytes of the machine, some at a time.
var parts = sync.Pool{New: func() any { return new([half.Chunk]uint16) }}

func decode16(dst []float32, src []byte, convert func(dst []float32, src []uint16)) {
	part := parts.Get().(*[half.Chunk]uint16)
	defer parts.Put(part)
	for len(dst) > 0 {
		n := min(len(dst), len(part))
		copy(bytesOf(part[:n]), src)
		native(part[:n])
		convert(dst[:n], part[:n])
		dst, src = dst[n:], src[2*n:]
	}
}

func encode16(dst []byte, src []float32, convert func(dst []uint16, src []float32)) {
	part := parts.Get().(*[half.Chunk]uint16)
	defer parts.Put(part)
	for len(src) > 0 {
		n := min(len(src), len(part))
		convert(part[:n], src[:n])
		native(part[:n])
		copy(dst, bytesOf(part[:n]))
		dst, src = dst[2*n:], src[n:]
	}
}

// bytesOf returns the memory of numbers.
func bytesOf(x []uint16) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(x))), 2*len(x))
}

// native turns numbers with the low byte first into the machine's, and back.
func native(x []uint16) {
	if binary.NativeEndian.Uint16([]byte{1, 0}) == 1 {
		return
	}
	for i, v := range x {
		x[i] = bits.ReverseBytes16(v)
	}
}

// putScale writes x as a binary16 number, and returns what was written.
func putScale(b []byte, x float32) float32 {
	h := half.Float32ToF16(x)
	binary.LittleEndian.PutUint16(b, uint16(h))
	return half.F16ToFloat32(h)
}
