//go:build !noasm && gc

package ggml

import "github.com/snug-ml/snug/internal/cpu"

func init() {
	Registry.Add(cpu.AVX2, kernelsOf(encodeQ8_0AVX2, [Formats]loops{
		Q4_0: {
			decodeQ4_0AVX2,
			[]dotLoop{dot1xQ4_0AVX2, dot2xQ4_0AVX2, dot4xQ4_0AVX2},
			[]axpyLoop{axpy1xQ4_0AVX2, axpy2xQ4_0AVX2, axpy4xQ4_0AVX2},
		},
		Q4_1: {
			decodeQ4_1AVX2,
			[]dotLoop{dot1xQ4_1AVX2, dot2xQ4_1AVX2, dot4xQ4_1AVX2},
			[]axpyLoop{axpy1xQ4_1AVX2, axpy2xQ4_1AVX2, axpy4xQ4_1AVX2},
		},
		Q5_0: {
			decodeQ5_0AVX2,
			[]dotLoop{dot1xQ5_0AVX2, dot2xQ5_0AVX2, dot4xQ5_0AVX2},
			[]axpyLoop{axpy1xQ5_0AVX2, axpy2xQ5_0AVX2, axpy4xQ5_0AVX2},
		},
		Q5_1: {
			decodeQ5_1AVX2,
			[]dotLoop{dot1xQ5_1AVX2, dot2xQ5_1AVX2, dot4xQ5_1AVX2},
			[]axpyLoop{axpy1xQ5_1AVX2, axpy2xQ5_1AVX2, axpy4xQ5_1AVX2},
		},
		Q8_0: {
			decodeQ8_0AVX2,
			[]dotLoop{dot1xQ8_0AVX2, dot2xQ8_0AVX2, dot4xQ8_0AVX2},
			[]axpyLoop{axpy1xQ8_0AVX2, axpy2xQ8_0AVX2, axpy4xQ8_0AVX2},
		},
		Q4K: {
			decodeQ4KAVX2,
			[]dotLoop{dot1xQ4KAVX2, dot2xQ4KAVX2, dot4xQ4KAVX2},
			[]axpyLoop{axpy1xQ4KAVX2, axpy2xQ4KAVX2, axpy4xQ4KAVX2},
		},
		Q5K: {
			decodeQ5KAVX2,
			[]dotLoop{dot1xQ5KAVX2, dot2xQ5KAVX2, dot4xQ5KAVX2},
			[]axpyLoop{axpy1xQ5KAVX2, axpy2xQ5KAVX2, axpy4xQ5KAVX2},
		},
		Q6K: {
			decodeQ6KAVX2,
			[]dotLoop{dot1xQ6KAVX2, dot2xQ6KAVX2, dot4xQ6KAVX2},
			[]axpyLoop{axpy1xQ6KAVX2, axpy2xQ6KAVX2, axpy4xQ6KAVX2},
		},
	}))
	Registry.Add(cpu.AVX512, kernelsOf(encodeQ8_0AVX512, [Formats]loops{
		Q4_0: {
			decodeQ4_0AVX512,
			[]dotLoop{dot1xQ4_0AVX512, dot2xQ4_0AVX512, dot4xQ4_0AVX512, dot8xQ4_0AVX512},
			[]axpyLoop{axpy1xQ4_0AVX512, axpy2xQ4_0AVX512, axpy4xQ4_0AVX512},
		},
		Q4_1: {
			decodeQ4_1AVX512,
			[]dotLoop{dot1xQ4_1AVX512, dot2xQ4_1AVX512, dot4xQ4_1AVX512, dot8xQ4_1AVX512},
			[]axpyLoop{axpy1xQ4_1AVX512, axpy2xQ4_1AVX512, axpy4xQ4_1AVX512},
		},
		Q5_0: {
			decodeQ5_0AVX512,
			[]dotLoop{dot1xQ5_0AVX512, dot2xQ5_0AVX512, dot4xQ5_0AVX512},
			[]axpyLoop{axpy1xQ5_0AVX512, axpy2xQ5_0AVX512, axpy4xQ5_0AVX512},
		},
		Q5_1: {
			decodeQ5_1AVX512,
			[]dotLoop{dot1xQ5_1AVX512, dot2xQ5_1AVX512, dot4xQ5_1AVX512},
			[]axpyLoop{axpy1xQ5_1AVX512, axpy2xQ5_1AVX512, axpy4xQ5_1AVX512},
		},
		Q8_0: {
			decodeQ8_0AVX512,
			[]dotLoop{dot1xQ8_0AVX512, dot2xQ8_0AVX512, dot4xQ8_0AVX512, dot8xQ8_0AVX512},
			[]axpyLoop{axpy1xQ8_0AVX512, axpy2xQ8_0AVX512, axpy4xQ8_0AVX512},
		},
		Q4K: {
			decodeQ4KAVX512,
			[]dotLoop{dot1xQ4KAVX512, dot2xQ4KAVX512, dot4xQ4KAVX512, dot8xQ4KAVX512},
			[]axpyLoop{axpy1xQ4KAVX512, axpy2xQ4KAVX512, axpy4xQ4KAVX512},
		},
		Q5K: {
			decodeQ5KAVX512,
			[]dotLoop{dot1xQ5KAVX512, dot2xQ5KAVX512, dot4xQ5KAVX512},
			[]axpyLoop{axpy1xQ5KAVX512, axpy2xQ5KAVX512, axpy4xQ5KAVX512},
		},
		Q6K: {
			decodeQ6KAVX512,
			[]dotLoop{dot1xQ6KAVX512, dot2xQ6KAVX512, dot4xQ6KAVX512},
			[]axpyLoop{axpy1xQ6KAVX512, axpy2xQ6KAVX512, axpy4xQ6KAVX512},
		},
	}))
}

// loops are the loops for a format over n blocks, at least one, those of products for 1, 2, 4 rows and so on.
type loops struct {
	decode func(x *float32, blocks *byte, n int)
	dot    []dotLoop
	axpy   []axpyLoop
}

type (
	encodeLoop func(blocks *byte, x *float32, n int)

	dotLoop  func(y, x *float32, stride int, blocks *byte, n int)
	axpyLoop func(y *float32, stride int, a *float32, blocks *byte, n int)
)

// kernelsOf makes kernels of loops; formats without have decoders in Go.
func kernelsOf(encodeQ8_0 encodeLoop, all [Formats]loops) Kernels {
	k := Kernels{Decode: inGo}
	k.Encode[Q8_0] = encodeQ8_0.encoder(Q8_0)
	for f, l := range all {
		if l.decode != nil {
			elements, bytes := Format(f).Elements(), Format(f).Bytes()
			k.Decode[f], k.Dot[f], k.Axpy[f] = l.decoder(elements, bytes), l.dots(elements, bytes), l.axpys(elements, bytes)
		}
	}
	return k
}

func (l encodeLoop) encoder(f Format) Encoder {
	return func(blocks []byte, x []float32) {
		if n := min(len(x)/f.Elements(), len(blocks)/f.Bytes()); n > 0 {
			l(&blocks[0], &x[0], n)
		}
	}
}

func (l loops) decoder(elements, bytes int) Decoder {
	return func(x []float32, blocks []byte) {
		if n := min(len(x)/elements, len(blocks)/bytes); n > 0 {
			l.decode(&x[0], &blocks[0], n)
		}
	}
}

func (l loops) dots(elements, bytes int) Dot {
	return func(y, x []float32, stride int, blocks []byte) {
		n := len(blocks) / bytes
		if n == 0 {
			clear(y)
			return
		}
		_ = x[(len(y)-1)*stride+n*elements-1]
		for r := 0; r < len(y); {
			size := sizeOf(len(y)-r, len(l.dot))
			l.dot[size](&y[r], &x[r*stride], stride, &blocks[0], n)
			r += 1 << size
		}
	}
}

func (l loops) axpys(elements, bytes int) Axpy {
	return func(y []float32, stride int, a []float32, blocks []byte) {
		n := len(blocks) / bytes
		if n == 0 {
			return
		}
		_ = y[(len(a)-1)*stride+n*elements-1]
		for r := 0; r < len(a); {
			size := sizeOf(len(a)-r, len(l.axpy))
			l.axpy[size](&y[r*stride], stride, &a[r], &blocks[0], n)
			r += 1 << size
		}
	}
}

// sizeOf returns which of the loops, for 1, 2, 4 rows and so on, takes most of the rows that are left.
func sizeOf(rows, loops int) int {
	size := 0
	for size < loops-1 && 2<<size <= rows {
		size++
	}
	return size
}
