//go:build !noasm && gc

package nibble

import (
	"unsafe"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
)

func init() {
	k := Kernels{
		encoderOf(encodeNEON, func(f *Format) *[16]float32 { return &f.Limits }), decoderOf(decodeF32NEON, decodeF32),
		decoder16[snug.Float16](decodeF16NEON, decodeF16), decoder16[snug.BFloat16](decodeBF16NEON, decodeBF16),
	}
	Dots.Add(cpu.NEON, Product{Dot: dotOf(eachLine(1, dot1xNEON), eachLine(2, dot2xNEON), eachLine(4, dot4xNEON))})
	Axpys.Add(cpu.NEON, axpyOf(1, axpy1xNEON, axpy2xNEON, axpy4xNEON, axpy8xNEON))
	Registry.Add(cpu.NEON, k)
	Streams.Add(cpu.NEON, k)
}

// eachLine makes a dotRows of a loop over one line, which writes its products.
func eachLine(rows int, loop func(y, x *float32, stride int, packed *uint8, absmax *float32, blocks, block int, values *[16]float32)) dotRows {
	return func(y *float32, rowY int, x *float32, stride int, packed *uint8, skip int, absmax *float32, skipAbsmax, lines, blocks, block int, f *Format) {
		sums := unsafe.Slice(y, (rows-1)*rowY+lines)
		var products [DotRows]float32
		for j := range lines {
			loop(&products[0], x, stride, packed, absmax, blocks, block, &f.Values)
			for r, p := range products[:rows] {
				sums[r*rowY+j] += p
			}
			if j < lines-1 {
				packed = (*uint8)(unsafe.Add(unsafe.Pointer(packed), blocks*block/2+skip))
				absmax = (*float32)(unsafe.Add(unsafe.Pointer(absmax), 4*(blocks+skipAbsmax)))
			}
		}
	}
}
