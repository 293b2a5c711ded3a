package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"

	"github.com/snug-ml/snug/internal/_gen/half/vec"
)

// storeAVX2 generates the rounding of rows of float32 to 16 bits. The last vector of a row overlaps the one before.
func storeAVX2(e vec.Elem) {
	name := "store" + e.Name + "AVX2"
	vec.Func(name, "func(dst *uint16, src *float32, rows, cols, rowSrc, rowDst int)",
		name+" rounds rows of cols floats, and writes nothing else. Distances are in bytes.")
	dst, src, rows, cols := param("dst"), param("src"), param("rows"), param("cols")
	rowSrc, rowDst := param("rowSrc"), param("rowDst")
	round := vec.AVX2.Rounder(e)
	full, tail := GP64(), GP64()
	MOVQ(cols, full)
	SHRQ(Imm(3), full)
	MOVQ(cols, tail)
	ANDQ(Imm(7), tail)
	left, to, from := GP64(), GP64(), GP64()
	all := func() {
		x := YMM()
		VMOVUPS(Mem{Base: from}, x)
		VMOVDQU(round(x), Mem{Base: to})
	}
	TESTQ(full, full)
	JZ(LabelRef("short"))
	Label("row")
	MOVQ(full, left)
	MOVQ(dst, to)
	MOVQ(src, from)
	vectors(left, to, from, 16, 32, all)
	TESTQ(tail, tail)
	JZ(LabelRef("next"))
	LEAQ(Mem{Base: from, Index: tail, Scale: 4, Disp: -32}, from)
	LEAQ(Mem{Base: to, Index: tail, Scale: 2, Disp: -16}, to)
	all()
	Label("next")
	ADDQ(rowDst, dst)
	ADDQ(rowSrc, src)
	DECQ(rows)
	JNZ(LabelRef("row"))
	VZEROUPPER()
	RET()

	Label("short")
	some := tiers[0].first(tail)
	Label("shortRow")
	MOVQ(dst, to)
	x := YMM()
	some.load(Mem{Base: src}, x)
	words := round(x)
	part := func(n int, store func()) {
		label := fmt.Sprintf("no%d", n)
		TESTQ(U32(uint32(n)), tail)
		JZ(LabelRef(label))
		store()
		if n > 1 {
			ADDQ(Imm(uint64(2*n)), to)
			VPSRLDQ(Imm(uint64(2*n)), words, words)
		}
		Label(label)
	}
	part(4, func() { VMOVQ(words, Mem{Base: to}) })
	part(2, func() { VMOVD(words, Mem{Base: to}) })
	part(1, func() { VPEXTRW(Imm(0), words, Mem{Base: to}) })
	ADDQ(rowDst, dst)
	ADDQ(rowSrc, src)
	DECQ(rows)
	JNZ(LabelRef("shortRow"))
	VZEROUPPER()
	RET()
}
