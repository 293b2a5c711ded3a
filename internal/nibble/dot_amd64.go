//go:build !noasm && gc

package nibble

import "github.com/snug-ml/snug/internal/cpu"

func init() {
	Dots.Add(cpu.AVX2, dotOf(dot1xAVX2, dot2xAVX2, dot4xAVX2, dot8xAVX2))
	Dots.Add(cpu.AVX512, dotOf(dot1xAVX512, dot2xAVX512, dot4xAVX512, dot8xAVX512))
}

// dotRows is a loop for a number of rows of x.
type dotRows func(y, x *float32, stride int, packed *uint8, absmax *float32, blocks, block int, values *[16]float32)

// dotOf makes a Dot of loops for 1, 2, 4 and 8 rows.
func dotOf(one, two, four, eight dotRows) Dot {
	return func(y, x []float32, stride int, packed []uint8, absmax []float32, block int, f *Format) {
		blocks := len(absmax)
		n := blocks * block
		if n == 0 {
			clear(y)
			return
		}
		_, _ = packed[n/2-1], x[(len(y)-1)*stride+n-1]
		for len(y) > 0 {
			rows, loop := 1, one
			switch {
			case len(y) >= 8:
				rows, loop = 8, eight
			case len(y) >= 4:
				rows, loop = 4, four
			case len(y) >= 2:
				rows, loop = 2, two
			}
			loop(&y[0], &x[0], stride, &packed[0], &absmax[0], blocks, block, &f.Values)
			if y = y[rows:]; len(y) > 0 {
				x = x[rows*stride:]
			}
		}
	}
}
