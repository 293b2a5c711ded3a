//go:build !noasm && gc

package mx

import "github.com/snug-ml/snug/internal/cpu"

func init() {
	Registry.Add(cpu.AVX2, Kernels{encodeBy(encodeAVX2), decodeBy(decodeAVX2)})
	Registry.Add(cpu.AVX512, Kernels{encodeBy(encodeAVX512), decodeBy(decodeAVX512)})
}

func encodeBy(fast func(codes, scales *uint8, x *float32, blocks int)) func(codes, scales []uint8, x []float32) {
	return func(codes, scales []uint8, x []float32) {
		if n := len(scales); n > 0 {
			_, _ = codes[n*Block-1], x[n*Block-1]
			fast(&codes[0], &scales[0], &x[0], n)
		}
	}
}

func decodeBy(fast func(x *float32, codes, scales *uint8, steps *float32, blocks int)) func(x []float32, codes, scales []uint8) {
	return func(x []float32, codes, scales []uint8) {
		if n := len(scales); n > 0 {
			_, _ = codes[n*Block-1], x[n*Block-1]
			fast(&x[0], &codes[0], &scales[0], &steps[0], n)
		}
	}
}
