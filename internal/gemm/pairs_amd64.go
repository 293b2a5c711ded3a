//go:build !noasm && gc

package gemm

import (
	"unsafe"

	"github.com/snug-ml/snug"
)

// amxPairs multiplies with tiles.
func amxPairs() *Pairs {
	p := packedPairs()
	p.Rows, p.LeastPanels = panelLines, 2
	p.Mul = func(a, b []uint16, c []float32, _, panels, steps, nextA, nextB, nextC, rowC int, add bool, _ *Ahead) {
		mulAMX(&a[0], &b[0], &c[0], panels, steps, 2*nextA, 2*nextB, 4*nextC, 4*rowC, oneIf(add))
	}
	return p
}

// dotPairs multiplies with the dot product of AVX512_BF16.
func dotPairs() *Pairs {
	p := packedPairs()
	p.Rows, p.LeastPanels = 8, 1
	p.Mul = func(a, b []uint16, c []float32, rows, panels, steps, nextA, nextB, nextC, rowC int, add bool, ahead *Ahead) {
		mulDotF32(&a[0], &b[0], &c[0], rows, panels, steps, 2*nextA, 2*nextB, 4*nextC, 4*rowC, oneIf(add), (*[6]int)(unsafe.Pointer(ahead)))
	}
	p.MulBF16 = func(a, b, c []uint16, rows, panels, steps, nextA, nextB, nextC, rowC int, ahead *Ahead) {
		mulDotBF16(&a[0], &b[0], &c[0], rows, panels, steps, 2*nextA, 2*nextB, 2*nextC, 2*rowC, (*[6]int)(unsafe.Pointer(ahead)))
	}
	return p
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
			for k := 0; k < depth; k += together * stepDepth {
				n := min(together*stepDepth, depth-k)
				steps := (n + stepDepth - 1) / stepDepth
				acrossB(dst, src[k*stride:], lines, n, stride, next)
				for at := 0; at < (lines+panelLines-1)/panelLines*next; at += next {
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
	const half = panelLines / 2
	transposePairs(dst, src, lines, depth, stride)
	second := unsafe.Add(unsafe.Pointer(dst), 2*stepLen/2)
	from := unsafe.Add(unsafe.Pointer(src), min(half, lines-1)*stride)
	transposePairs((*uint16)(second), (*uint16)(from), lines-half, depth, stride)
}

// acrossB packs few panels together: of many, the places that are written would share sets of the first cache.
func acrossB(dst, src []uint16, lines, depth, stride, next int) {
	const together = 4 * panelLines
	for at := 0; at < lines; at += together {
		n := min(together, lines-at)
		panels := (n + panelLines - 1) / panelLines
		interleavePairs(&dst[at/panelLines*next], &src[at], panels, n-(panels-1)*panelLines, depth, 2*stride, 2*next)
	}
}

// eachPanel packs lines that run along the depth, a panel after the other.
func eachPanel(pack func(dst, src *uint16, lines, depth, stride int)) packing {
	return func(dst, src []uint16, lines, depth, stride, next int) {
		for i := 0; i < lines; i += panelLines {
			pack(&dst[i/panelLines*next], &src[i*stride], min(panelLines, lines-i), depth, 2*stride)
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
