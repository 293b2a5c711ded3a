// Package patch copies the parts of images that convolutions multiply to where the loops of a matrix product read them.
package patch

import (
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/half"
)

// Copy sets row i of dst, cols floats from element i·rowDst on, to the elements of src from at + i·rowSrc on, step
// apart. It writes nothing else.
type Copy func(dst []float32, src snug.View, at, rows, cols, rowSrc, rowDst, step int)

// Kernels are the loops of one tier.
type Kernels struct {
	Copy   Copy
	Gather Gather
	Taps   Taps
	Dots   Dots
	Lanes  int // sums of Dots for each tap
	Spread Spread
	Words  GatherWords // nil: there is none

	Store      Store
	TapsAcross TapsAcross
	DotsAcross DotsAcross
}

// Registry holds the loops of every tier.
var Registry cpu.Registry[Kernels]

func init() {
	Registry.Add(cpu.Go, Kernels{copyRows, gather(copyRows), taps, dots, 1, spread, nil, store, tapsAcross, dotsAcross})
}

func copyRows(dst []float32, src snug.View, at, rows, cols, rowSrc, rowDst, step int) {
	switch src.DType() {
	case snug.F32:
		x := src.Float32s()[at:]
		if step != 1 {
			convertRows(dst, x, rows, cols, rowSrc, rowDst, step, func(x float32) float32 { return x })
			return
		}
		for i := range rows {
			copy(dst[i*rowDst:][:cols], x[i*rowSrc:])
		}
	case snug.F16:
		convertRows(dst, src.Float16s()[at:], rows, cols, rowSrc, rowDst, step, half.F16ToFloat32)
	case snug.BF16:
		convertRows(dst, src.BFloat16s()[at:], rows, cols, rowSrc, rowDst, step, snug.BFloat16.Float32)
	}
}

// Store rounds rows of cols floats, rowSrc apart, to elements of dst of 16 bits, from element at on and rowDst apart. It writes
// nothing else.
type Store func(dst snug.View, at int, x []float32, rows, cols, rowSrc, rowDst int)

func store(dst snug.View, at int, x []float32, rows, cols, rowSrc, rowDst int) {
	for i := range rows {
		half.Store(dst, at+i*rowDst, x[i*rowSrc:][:cols])
	}
}

func convertRows[T any](dst []float32, src []T, rows, cols, rowSrc, rowDst, step int, convert func(T) float32) {
	for i := range rows {
		to, from := dst[i*rowDst:][:cols], src[i*rowSrc:]
		for j := range to {
			to[j] = convert(from[j*step])
		}
	}
}
