//go:build !noasm && gc

package nibble

import (
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
)

func init() {
	k := Kernels{
		encoderOf(encodeNEON, func(f *Format) *[16]float32 { return &f.Limits }), decoderOf(decodeF32NEON, decodeF32),
		decoder16[snug.Float16](decodeF16NEON, decodeF16), decoder16[snug.BFloat16](decodeBF16NEON, decodeBF16),
	}
	Dots.Add(cpu.NEON, dotOf(dot1xNEON, dot2xNEON, dot4xNEON))
	Axpys.Add(cpu.NEON, axpyOf(1, axpy1xNEON, axpy2xNEON, axpy4xNEON, axpy8xNEON))
	Registry.Add(cpu.NEON, k)
	Streams.Add(cpu.NEON, k)
}
