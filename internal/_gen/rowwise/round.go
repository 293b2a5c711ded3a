package main

import (
	"fmt"
	"strings"

	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"

	"github.com/snug-ml/snug/internal/_gen/gemm/avx512bf16"
)

// packing holds the constants that bfloat16 needs.
type packing struct {
	upper    reg.VecVirtual // the upper half of every word of 32 bits
	rounding rounding       // where the processor has no conversion
	order    reg.VecVirtual // the even words before the odd ones
	turns    reg.VecVirtual // words of both halves in turn
}

// rounding holds the constants of roundWords.
type rounding struct {
	odd, even        reg.OpmaskVirtual // words of 16 bits
	one, half, nines reg.VecVirtual    // words of 1, 0x8000 and 0xfffe
}

func wordsOf(x uint32) reg.VecVirtual {
	v := ZMM()
	VPBROADCASTD(lanesOf(x), v)
	return v
}

func loadRounding() rounding {
	p := rounding{odd: K(), even: K(), one: wordsOf(0x00010001), half: wordsOf(0x80008000), nines: wordsOf(0xfffefffe)}
	bits := GP32()
	MOVL(operand.U32(0xaaaaaaaa), bits)
	KMOVD(bits, p.odd)
	KNOTD(p.odd, p.even)
	return p
}

// loadPacking loads the constants, before any loop.
func (r *rows) loadPacking() {
	if !r.bf16 {
		return
	}
	r.pack = &packing{upper: wordsOf(0xffff0000)}
	if !r.converts {
		r.pack.rounding = loadRounding()
	}
	switch {
	case r.inOrder:
		r.pack.order = words("evenFirst", func(i int) int { return i%16*2 + i/16 })
	case r.converts:
		r.pack.turns = words("halvesInTurn", func(i int) int { return i%2*16 + i/2 })
	}
}

// words returns a vector of 16-bit words.
func words(name string, of func(i int) int) reg.VecVirtual {
	var pairs [16]uint32
	for i := range 32 {
		pairs[i/2] |= uint32(of(i)) << (i % 2 * 16)
	}
	v := ZMM()
	VMOVDQU16(symbol(name, pairs[:]...), v)
	return v
}

// narrow rounds a unit to bfloat16, to nearest even.
func (r *rows) narrow(x unit) reg.VecVirtual {
	words := ZMM()
	if r.converts {
		r.convert(x, words)
	} else {
		r.roundWords(x, r.pack.rounding, words)
	}
	return words
}

// convert is narrow by the processor's instruction, which takes subnormal numbers for 0: a unit with any is rounded
// word by word.
func (r *rows) convert(x unit, words reg.VecVirtual) {
	r.labels++
	normal, done := fmt.Sprintf("normal%d", r.labels), fmt.Sprintf("converted%d", r.labels)
	first, second := K(), K()
	VFPCLASSPSZ(subnormal, x[0], first)
	VFPCLASSPSZ(subnormal, x[1], second)
	KORTESTW(first, second)
	JZ(operand.LabelRef(normal))
	r.roundWords(x, loadRounding(), words)
	JMP(operand.LabelRef(done))
	Label(normal)
	avx512bf16.Convert(x[0], x[1], words)
	if !r.inOrder {
		VPERMW(words, r.pack.turns, words)
	}
	Label(done)
}

// roundWords is narrow in vectors of words: the upper halves of both vectors in turn, and the lower ones, which decide. A
// quiet NaN stays as it is: only one of all ones would not by itself.
func (r *rows) roundWords(x unit, p rounding, high reg.VecVirtual) {
	low, t := ZMM(), ZMM()
	VPSRLD(operand.U8(16), x[0], high)
	VMOVDQU16(x[1], p.odd, high)
	VPSLLD(operand.U8(16), x[1], low)
	VMOVDQU16(x[0], p.even, low)
	number, up := K(), K()
	VPADDW(high, high, t)
	VPCMPUW(differs, p.nines, t, number)
	VPANDD(p.one, high, t)
	VPADDUSW(t, low, low) // a tie goes up to an even number
	VPCMPUW(above, p.half, low, number, up)
	VPADDW(p.one, high, up, high)
	if r.inOrder {
		VPERMW(high, r.pack.order, high)
	}
}

// keepUnit zeroes what lies beyond the end.
func (r *rows) keepUnit(x unit) {
	if !r.tail {
		return
	}
	for v := range x {
		if r.wide {
			VMOVAPS_Z(x[v], r.masks[v], x[v])
		} else {
			VANDPS(r.masks[v], x[v], x[v])
		}
	}
}

// each does both vectors.
func each(x unit, body func(v int, x reg.VecVirtual)) unit {
	for v := range x {
		body(v, x[v])
	}
	return x
}

// replaceType puts an element type for T.
func replaceType(signature, element string) string {
	return strings.ReplaceAll(signature, "[]T", "[]"+element)
}
