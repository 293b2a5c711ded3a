//go:build !noasm && gc

package patch

import (
	"math/bits"
	"unsafe"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
)

func init() {
	narrow := loops{rowsF32AVX2, evensF32AVX2, rowsF16AVX2, evensF16AVX2, rowsBF16AVX2, evensBF16AVX2}
	Registry.Add(cpu.AVX2, Kernels{narrow.copy, narrow.gatherWhole, newTaps(tapsAVX2, tapsFewAVX2, 8), newDots(dotsAVX2), 8, newSpread(spreadAVX2), nil, storeVectors, newTapsAcross([4]acrossLoop{tapsAcross1Step1AVX2, tapsAcross2Step1AVX2, tapsAcross3Step1AVX2, tapsAcross3Step2AVX2}), newDotsAcross([2][3]dotsLoop{{dotsAcross3Step1Rows1AVX2, dotsAcross3Step1Rows2AVX2, dotsAcross3Step1Rows3AVX2}, {dotsAcross3Step2Rows1AVX2, dotsAcross3Step2Rows2AVX2, dotsAcross3Step2Rows3AVX2}})})
	wide := loops{rowsF32AVX512, evensF32AVX512, rowsF16AVX512, evensF16AVX512, rowsBF16AVX512, evensBF16AVX512}
	Registry.Add(cpu.AVX512, Kernels{wide.copy, wide.gather, newTaps(tapsAVX512, tapsFewAVX512, 16), newDots(dotsAVX512), 16, newSpread(spreadAVX512), gatherWords, storeVectors, newTapsAcross([4]acrossLoop{tapsAcross1Step1AVX512, tapsAcross2Step1AVX512, tapsAcross3Step1AVX512, tapsAcross3Step2AVX512}), newDotsAcross([2][3]dotsLoop{{dotsAcross3Step1Rows1AVX512, dotsAcross3Step1Rows2AVX512, dotsAcross3Step1Rows3AVX512}, {dotsAcross3Step2Rows1AVX512, dotsAcross3Step2Rows2AVX512, dotsAcross3Step2Rows3AVX512}})})
}

// loop copies rows. Distances are in bytes.
type loop[T any] = func(dst *float32, src *T, rows, cols, rowSrc, rowDst int)

// loops are those for steps of 1 and of 2, by the type of their source.
type loops struct {
	f32, f32Evens   loop[float32]
	f16, f16Evens   loop[uint16]
	bf16, bf16Evens loop[uint16]
}

func (l loops) copy(dst []float32, src snug.View, at, rows, cols, rowSrc, rowDst, step int) {
	if rows == 0 || cols == 0 {
		return
	}
	switch src.DType() {
	case snug.F32:
		if f := pick(l.f32, l.f32Evens, step); f != nil {
			f(&dst[0], &src.Float32s()[at], rows, cols, 4*rowSrc, 4*rowDst)
			return
		}
	case snug.F16:
		if f := pick(l.f16, l.f16Evens, step); f != nil {
			f(&dst[0], (*uint16)(unsafe.Pointer(&src.Float16s()[at])), rows, cols, 2*rowSrc, 4*rowDst)
			return
		}
	case snug.BF16:
		if f := pick(l.bf16, l.bf16Evens, step); f != nil {
			f(&dst[0], (*uint16)(unsafe.Pointer(&src.BFloat16s()[at])), rows, cols, 2*rowSrc, 4*rowDst)
			return
		}
	}
	copyRows(dst, src, at, rows, cols, rowSrc, rowDst, step)
}

// pick returns the loop for a step.
func pick[T any](rows, evens loop[T], step int) loop[T] {
	switch step {
	case 1:
		return rows
	case 2:
		return evens
	}
	return nil
}

// gather copies pieces with masks.
func (l loops) gather(dst []float32, src snug.View, at int, pieces []Piece, channels, nextSrc, nextDst, step int) {
	if len(pieces) == 0 || channels == 0 {
		return
	}
	if step > 2 {
		gather(l.copy)(dst, src, at, pieces, channels, nextSrc, nextDst, step)
		return
	}
	list := (*[3]int64)(unsafe.Pointer(&pieces[0]))
	switch src.DType() {
	case snug.F32:
		f := [2]gatherLoop[float32]{gather1F32AVX512, gather2F32AVX512}[step-1]
		f(&dst[0], &src.Float32s()[at], list, len(pieces), channels, 4*nextSrc, 4*nextDst)
	case snug.F16:
		f := [2]gatherLoop[uint16]{gather1F16AVX512, gather2F16AVX512}[step-1]
		f(&dst[0], (*uint16)(unsafe.Pointer(&src.Float16s()[at])), list, len(pieces), channels, 2*nextSrc, 4*nextDst)
	case snug.BF16:
		f := [2]gatherLoop[uint16]{gather1BF16AVX512, gather2BF16AVX512}[step-1]
		f(&dst[0], (*uint16)(unsafe.Pointer(&src.BFloat16s()[at])), list, len(pieces), channels, 2*nextSrc, 4*nextDst)
	}
}

// gatherWhole copies pieces by loops that load all elements of a piece: not those that src would have to be larger for.
func (l loops) gatherWhole(dst []float32, src snug.View, at int, pieces []Piece, channels, nextSrc, nextDst, step int) {
	if step > 2 || channels == 0 {
		gather(l.copy)(dst, src, at, pieces, channels, nextSrc, nextDst, step)
		return
	}
	room := src.Len() - at - (channels-1)*nextSrc
	inside := func(p *Piece) bool {
		return int(p.Src) >= -at && int(p.Src)+(bits.Len32(p.Written)-1)*step < room
	}
	for len(pieces) > 0 {
		n := 0
		for n < len(pieces) && inside(&pieces[n]) {
			n++
		}
		if n == 0 {
			gather(l.copy)(dst, src, at, pieces[:1], channels, nextSrc, nextDst, step)
			pieces = pieces[1:]
			continue
		}
		list := (*[3]int64)(unsafe.Pointer(&pieces[0]))
		switch src.DType() {
		case snug.F32:
			f := [2]gatherLoop[float32]{gather1F32AVX2, gather2F32AVX2}[step-1]
			f(&dst[0], &src.Float32s()[at], list, n, channels, 4*nextSrc, 4*nextDst)
		case snug.F16:
			f := [2]gatherLoop[uint16]{gather1F16AVX2, gather2F16AVX2}[step-1]
			f(&dst[0], (*uint16)(unsafe.Pointer(&src.Float16s()[at])), list, n, channels, 2*nextSrc, 4*nextDst)
		case snug.BF16:
			f := [2]gatherLoop[uint16]{gather1BF16AVX2, gather2BF16AVX2}[step-1]
			f(&dst[0], (*uint16)(unsafe.Pointer(&src.BFloat16s()[at])), list, n, channels, 2*nextSrc, 4*nextDst)
		}
		pieces = pieces[n:]
	}
}

// gatherLoop copies pieces for all channels. Distances are in bytes.
type gatherLoop[T any] = func(dst *float32, src *T, pieces *[3]int64, count, channels, nextSrc, nextDst int)

// tapLoop is Taps. Distances are in bytes.
type tapLoop = func(dst, src, w *float32, offsets *int, taps, rows, cols, rowSrc, rowDst int, bias float32, add int)

func newTaps(loop, few tapLoop, lanes int) Taps {
	return func(dst, src, w []float32, offsets []int, rows, cols, rowSrc, rowDst int, bias float32, add bool) {
		old, done := 0, 0
		if add {
			old = 1
		}
		if cols <= lanes && rows >= 4 {
			done = rows / 4 * 4
			few(&dst[0], &src[0], &w[0], &offsets[0], len(w), done, cols, 4*rowSrc, 4*rowDst, bias, old)
		}
		if done < rows {
			loop(&dst[done*rowDst], &src[done*rowSrc], &w[0], &offsets[0], len(w), rows-done, cols, 4*rowSrc, 4*rowDst, bias, old)
		}
	}
}

// newSpread returns Spread with a loop for every second float.
func newSpread(loop func(dst, src *float32, rows, cols, rowSrc, rowDst int)) Spread {
	return func(dst, src []float32, rows, cols, rowSrc, rowDst, step int) {
		if step == 2 && rows > 0 && cols > 0 {
			loop(&dst[0], &src[0], rows, cols, 4*rowSrc, 4*rowDst)
			return
		}
		spread(dst, src, rows, cols, rowSrc, rowDst, step)
	}
}

func newDots(f func(sums, y, src *float32, offsets *int, rows, cols, rowY, rowSrc int)) Dots {
	return func(sums, y, src []float32, offsets []int, rows, cols, rowY, rowSrc int) {
		f(&sums[0], &y[0], &src[0], &offsets[0], rows, cols, 4*rowY, 4*rowSrc)
	}
}

func gatherWords(dst, src []uint16, at int, pieces []Piece, channels, nextSrc, nextDst, step int) {
	if len(pieces) == 0 || channels == 0 {
		return
	}
	f := [2]func(dst, src *uint16, pieces *[3]int64, count, channels, nextSrc, nextDst int){gatherWords1AVX512, gatherWords2AVX512}[step-1]
	f(&dst[0], &src[at], (*[3]int64)(unsafe.Pointer(&pieces[0])), len(pieces), channels, 2*nextSrc, 2*nextDst)
}

func storeVectors(dst snug.View, at int, x []float32, rows, cols, rowSrc, rowDst int) {
	if rows == 0 || cols == 0 {
		return
	}
	if dst.DType() == snug.F16 {
		storeF16AVX2((*uint16)(unsafe.Pointer(&dst.Float16s()[at])), &x[0], rows, cols, 4*rowSrc, 2*rowDst)
	} else {
		storeBF16AVX2((*uint16)(unsafe.Pointer(&dst.BFloat16s()[at])), &x[0], rows, cols, 4*rowSrc, 2*rowDst)
	}
}

// acrossLoop is TapsAcross for rows of some taps. Distances are in bytes, those of rows in elements.
type acrossLoop = func(dst, src, w, bias *float32, rows *[2]int, count, lines, cols, channels, lineSrc, lineDst, stepSrc, stepDst, stepW, edges int)

// newTapsAcross returns TapsAcross with a loop for each number of taps, and one for three taps and results two positions apart.
func newTapsAcross(loops [4]acrossLoop) TapsAcross {
	return func(dst, src, w, bias []float32, rows []AcrossRow, a Across) {
		list := (*[2]int)(unsafe.Pointer(unsafe.SliceData(rows)))
		loop := loops[a.Taps-1+a.Step-1]
		loop(&dst[0], unsafe.SliceData(src), unsafe.SliceData(w), &bias[0], list, len(rows), a.Lines, a.Cols, 4*a.Channels,
			4*a.LineSrc, 4*a.LineDst, 4*a.StepSrc, 4*a.StepDst, 4*a.StepW, a.edges())
	}
}

// dotsLoop is DotsAcross for some rows of some taps. Distances are in bytes, those of rows in elements.
type dotsLoop = func(sums, y, src *float32, rows *[2]int, lines, cols, channels, lineSrc, lineY, stepSrc, stepY, stepSums, edges int)

// newDotsAcross returns DotsAcross with loops for rows of three taps, by their number, for results one and two positions apart.
// What single taps read is loaded for each of them: vectors of AVX2 are enough.
func newDotsAcross(loops [2][3]dotsLoop) DotsAcross {
	single := [3]dotsLoop{dotsAcross1Step1Rows1AVX2, dotsAcross1Step1Rows2AVX2, dotsAcross1Step1Rows3AVX2}
	return func(sums, y, src []float32, rows []AcrossRow, a Across) {
		loop := &single
		if a.Taps == 3 {
			loop = &loops[a.Step-1]
		}
		for len(rows) > 0 {
			n := min(len(rows), len(loop))
			list := (*[2]int)(unsafe.Pointer(&rows[0]))
			loop[n-1](&sums[0], &y[0], &src[0], list, a.Lines, a.Cols, 4*a.Channels, 4*a.LineSrc, 4*a.LineDst, 4*a.StepSrc, 4*a.StepDst, 4*a.StepW, a.edges())
			rows = rows[n:]
		}
	}
}
