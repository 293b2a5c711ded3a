//go:build !noasm && gc

package gemm

import (
	"unsafe"

	"github.com/snug-ml/snug"
)

// amxPairs multiplies with tiles.
func amxPairs() *Pairs {
	p := packedPairs()
	p.Rows, p.LeastPanels = mr, 2
	p.Mul = func(p PanelProduct) {
		mulAMX(&p.A[0], &p.B[0], &p.C[0], p.Count, p.Steps, 2*p.NextA, 2*p.NextB, 4*p.NextC, 4*p.StrideC, oneIf(p.Add))
	}
	return p
}

// dotPairs multiplies with the dot product of AVX512_BF16.
func dotPairs() *Pairs {
	p := packedPairs()
	p.Rows, p.LeastPanels = 8, 1
	p.Mul = func(p PanelProduct) {
		p.dot((*byte)(unsafe.Pointer(&p.C[0])), 4, oneIf(p.Add))
	}
	p.MulBF16 = func(p PanelProduct, c []uint16) {
		p.dot((*byte)(unsafe.Pointer(&c[0])), 2, roundSums)
	}
	return p
}

// roundSums is the mode of mulDot that rounds; 1 adds to C, 0 does not.
const roundSums = 2

// dot multiplies to a C with elements of size bytes.
func (p *PanelProduct) dot(c *byte, size, mode int) {
	mulDot(&p.A[0], &p.B[0], c, p.Rows, p.Count, p.Steps, 2*p.NextA, 2*p.NextB, size*p.NextC, size*p.StrideC, mode, (*[6]int)(unsafe.Pointer(p.Ahead)))
}

func oneIf(x bool) int {
	if x {
		return 1
	}
	return 0
}

// packedPairs returns what both ways to multiply share.
func packedPairs() *Pairs {
	return &Pairs{
		LinesA: eachPanel(copyPairs),
		LinesB: eachPanel(transposePanel),
		AcrossA: func(dst, src []uint16, lines, depth, stride, next int) {
			const together = 4 // steps that are transposed while they are in the first cache
			for k := 0; k < depth; k += together * kr {
				n := min(together*kr, depth-k)
				steps := (n + kr - 1) / kr
				acrossB(dst, src[k*stride:], lines, n, stride, next)
				for at := 0; at < (lines+mr-1)/mr*next; at += next {
					transposeTiles(&dst[at], 2*steps)
				}
				dst = dst[steps*stepLen:]
			}
		},
		AcrossB:   acrossB,
		Transpose: func(steps []uint16) { transposeTiles(&steps[0], 2*len(steps)/stepLen) },
		Finish:    finishPairs,
	}
}

// transposePanel packs both halves of a panel of B. If there are no lines of the second, it repeats the last.
func transposePanel(dst, src *uint16, lines, depth, stride int) {
	const half = mr / 2
	transposePairs(dst, src, lines, depth, stride)
	second := unsafe.Add(unsafe.Pointer(dst), 2*stepLen/2)
	from := unsafe.Add(unsafe.Pointer(src), min(half, lines-1)*stride)
	transposePairs((*uint16)(second), (*uint16)(from), lines-half, depth, stride)
}

// acrossB packs few panels together: of many, the places that are written would share sets of the first cache.
func acrossB(dst, src []uint16, lines, depth, stride, next int) {
	const together = 4 * mr
	for at := 0; at < lines; at += together {
		n := min(together, lines-at)
		panels := (n + mr - 1) / mr
		interleavePairs(&dst[at/mr*next], &src[at], panels, n-(panels-1)*mr, depth, 2*stride, 2*next)
	}
}

// eachPanel packs lines that run along the depth, a panel after the other.
func eachPanel(pack func(dst, src *uint16, lines, depth, stride int)) packing {
	return func(dst, src []uint16, lines, depth, stride, next int) {
		for i := 0; i < lines; i += mr {
			pack(&dst[i/mr*next], &src[i*stride], min(mr, lines-i), depth, 2*stride)
		}
	}
}

func finishPairs(c Matrix, row, col, rows, cols int, alpha float32, sums []float32, beta float32) {
	at, s := row*c.Stride+col, c.Stride
	switch c.Data.DType() {
	case snug.F32:
		finishPairsF32(&c.Data.Float32s()[at], &sums[0], rows, cols, 4*s, alpha, beta)
	case snug.F16:
		finishPairsF16((*uint16)(unsafe.Pointer(&c.Data.Float16s()[at])), &sums[0], rows, cols, 2*s, alpha, beta)
	case snug.BF16:
		finishPairsBF16((*uint16)(unsafe.Pointer(&c.Data.BFloat16s()[at])), &sums[0], rows, cols, 2*s, alpha, beta)
	}
}
