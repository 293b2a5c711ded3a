//go:build !noasm && gc

package blockq

import (
	"unsafe"

	"github.com/snug-ml/snug/internal/cpu"
)

func init() {
	narrow := loops{absMaxAVX2, decodeAVX2, decodeStreamAVX2, encodeAVX2}
	k := narrow.kernels()
	k.Encode = narrow.encodeSegments
	Registry.Add(cpu.AVX2, k)
	wide := loops{absMaxAVX512, decodeAVX512, decodeStreamAVX512, encodeAVX512}
	k = wide.kernels()
	k.Encode = wide.encodeQuickly
	Registry.Add(cpu.AVX512, k)
	decode := decodeBlocks(decodeVBMI, k.Decode)
	stream := decodeBlocks(decodeStreamVBMI, k.DecodeStream) // the latter ends with a fence
	Registry.Add(cpu.AVX512VBMI, Kernels{k.AbsMax, decode, whereAligned(stream, decode), wide.encodeLines})
}

// loops are the assembly loops of one tier, over n > 0 elements, a multiple of
// step. The Go loops do the rest.
type loops struct {
	absMax       func(x *float32, n int) uint32
	decode       func(x *float32, codes *uint8, n int, m *[256]float32, absmax float32)
	decodeStream func(x *float32, codes *uint8, n int, m *[256]float32, absmax float32)
	encode       func(codes *uint8, x *float32, n int, absmax float32, cells *uint32, limit *float32, more int)
}

const (
	step  = 16
	align = 64 // bytes, of what decodeStream writes
)

func (l loops) kernels() Kernels {
	return Kernels{l.absMaxOf, decodeWith(l.decode), l.decodeStreamTo, l.encodeTo}
}

// decodeWith makes a decoder of blocks of an assembly loop and the Go loop.
func decodeWith(fast func(x *float32, codes *uint8, n int, m *[256]float32, absmax float32)) func([]float32, []uint8, *[256]float32, []float32, int) {
	return func(x []float32, codes []uint8, m *[256]float32, absmax []float32, block int) {
		for _, a := range absmax {
			size := min(block, len(codes))
			n := size / step * step
			if n > 0 {
				_ = x[n-1]
				fast(&x[0], &codes[0], n, m, a)
			}
			decodeBlock(x[n:size], codes[n:size], m, a)
			x, codes = x[size:], codes[size:]
		}
	}
}

// decodeStreamTo needs blocks that begin at multiples of align.
func (l loops) decodeStreamTo(x []float32, codes []uint8, m *[256]float32, absmax []float32, block int) {
	if uintptr(unsafe.Pointer(unsafe.SliceData(x)))%align != 0 || block%(align/4) != 0 {
		decodeWith(l.decode)(x, codes, m, absmax, block)
		return
	}
	decodeWith(l.decodeStream)(x, codes, m, absmax, block)
	fence()
}

func (l loops) absMaxOf(x []float32) float32 {
	n, top := len(x)/step*step, uint32(0)
	if n > 0 {
		top = l.absMax(&x[0], n)
	}
	return FromMagnitude(max(top, largest(x[n:])))
}

func (l loops) encodeTo(codes []uint8, x []float32, absmax float32, e *Encoder) {
	n := len(x) / step * step
	if n > 0 {
		_ = codes[n-1]
		l.encode(&codes[0], &x[0], n, absmax, &e.cell[0], &e.limit[0], e.more)
	}
	encode(codes[n:], x[n:], absmax, e)
}

// encodeQuickly multiplies by a reciprocal where that is exact.
func (l loops) encodeQuickly(codes []uint8, x []float32, absmax float32, e *Encoder) {
	q, ok := e.Quick(absmax)
	if !ok {
		l.encodeTo(codes, x, absmax, e)
		return
	}
	n := len(x) / step * step
	if n > 0 {
		_ = codes[n-1]
		encodeQuicklyAVX512(&codes[0], &x[0], n, q.Absmax, q.Inverse, q.Rest, q.Cells)
	}
	encode(codes[n:], x[n:], absmax, e)
}

// encodeSegments uses the encoder's segments.
func (l loops) encodeSegments(codes []uint8, x []float32, absmax float32, e *Encoder) {
	if !e.segmented {
		l.encodeTo(codes, x, absmax, e)
		return
	}
	n := len(x) / 32 * 32
	if n > 0 {
		_ = codes[n-1]
		encodeSegmentsAVX2(&codes[0], &x[0], n, absmax, &e.cell[0], (*byte)(unsafe.Pointer(&e.segments)))
	}
	encode(codes[n:], x[n:], absmax, e)
}

// Group is the number of elements that the loops of AVX512_VBMI do at a time.
const Group = 64

type decoder = func(x []float32, codes []uint8, m *[256]float32, absmax []float32, block int)

// decodeBlocks makes a decoder of an assembly loop over whole blocks, of a multiple of Group elements, and a decoder
// for the rest.
func decodeBlocks(fast func(x *float32, codes *uint8, m *[256]float32, absmax *float32, blocks, block int), rest decoder) decoder {
	return func(x []float32, codes []uint8, m *[256]float32, absmax []float32, block int) {
		if whole := len(codes) / block; whole > 0 && block%Group == 0 {
			n := whole * block
			_, _ = x[n-1], absmax[whole-1]
			fast(&x[0], &codes[0], m, &absmax[0], whole, block)
			x, codes, absmax = x[n:], codes[n:], absmax[whole:]
		}
		rest(x, codes, m, absmax, block)
	}
}

// whereAligned is stream for an x aligned to align bytes and plain for others.
func whereAligned(stream, plain decoder) decoder {
	return func(x []float32, codes []uint8, m *[256]float32, absmax []float32, block int) {
		if uintptr(unsafe.Pointer(unsafe.SliceData(x)))%align == 0 {
			stream(x, codes, m, absmax, block)
		} else {
			plain(x, codes, m, absmax, block)
		}
	}
}

// encodeLines uses the encoder's lines.
func (l loops) encodeLines(codes []uint8, x []float32, absmax float32, e *Encoder) {
	n := len(x) / Group * Group
	if n > 0 && e.encodeGroups(codes[:n], x[:n], absmax, true) {
		codes, x = codes[n:], x[n:]
	}
	l.encodeQuickly(codes, x, absmax, e)
}

// encodeGroups is Encode for a multiple of Group elements, at least one. It is not ok where it cannot use the lines.
func (e *Encoder) encodeGroups(codes []uint8, x []float32, absmax float32, negative bool) (ok bool) {
	if !(e.lined && absmax >= minQuick && absmax <= mostQuick) {
		return false
	}
	scaled, lines := float32(lineScale/float64(absmax)), (*byte)(unsafe.Pointer(&e.lines))
	if negative {
		encodeVBMI(&codes[0], &x[0], len(x), absmax, scaled, &e.cell[0], lines)
	} else {
		encodePositiveVBMI(&codes[0], &x[0], len(x), absmax, scaled, &e.cell[0], lines)
	}
	return true
}

// DecodeGroups writes the values of a block's codes in an update, for a multiple of [Group] elements, at least one,
// on machines with [cpu.AVX512VBMI].
func (e *Encoder) DecodeGroups(x []float32, codes []uint8, absmax float32) {
	x = x[:len(codes)]
	decodePlanesVBMI(&x[0], &codes[0], &e.plane[0][0], &absmax, 1, len(codes))
}

// EncodeGroups is [Encoder.Encode] for a multiple of [Group] elements on machines with [cpu.AVX512VBMI]. It is faster
// if no element is negative.
func (e *Encoder) EncodeGroups(codes []uint8, x []float32, absmax float32, negative bool) {
	if _ = codes[len(x)-1]; !e.encodeGroups(codes, x, absmax, negative) {
		e.Encode(codes, x, absmax)
	}
}

// Quick is what encoding without divisions takes: absmax, its reciprocal as
// a sum, Inverse being the nearest, and the table of an encoder. With
//
//	y = x·Inverse + x·Rest    the second product rounded, the sum fused
//	q = y + (x - y·Absmax)·Inverse    both fused
//
// y is one of the two float32 around x/Absmax, so that the remainder is exact
// and q is x/Absmax, rounded to nearest (Markstein 1990, "Computation of
// elementary functions on the IBM RISC System/6000 processor").
type Quick struct {
	Absmax, Inverse, Rest float32
	Cells                 *uint32
}

// Quick returns that for an absmax of any block. It is not ok where a remainder
// may be denormal, or the map wants more than the table.
func (e *Encoder) Quick(absmax float32) (q Quick, ok bool) {
	if !e.quick || !(absmax >= minQuick && absmax <= mostQuick) {
		return Quick{}, false
	}
	inverse := 1 / float64(absmax) // rounds to the nearest float32, as the float32 quotient would
	q = Quick{absmax, float32(inverse), 0, &e.cell[0]}
	q.Rest = float32(inverse - float64(q.Inverse))
	return q, true
}
