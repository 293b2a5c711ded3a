package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"

	"github.com/snug-ml/snug/internal/_gen/half/vec"
)

// ahead is the binary logarithm of how many rows copyRows and the micro-kernels of many rows
// prefetch ahead: rows far apart are no stream that the processor would follow.
const ahead = 3

// element is a type that copyRows and dots convert to float32.
type element struct {
	name string
	size int
	load func(m Op, r reg.VecVirtual)
}

// elements are the types, by the numbers that functions take as their kind.
var elements = []element{
	{"F32", 4, func(m Op, r reg.VecVirtual) { VMOVUPS(m, r) }},
	{"F16", 2, func(m Op, r reg.VecVirtual) { VCVTPH2PS(m, r) }},
	{"BF16", 2, func(m Op, r reg.VecVirtual) {
		VPMOVZXWD(m, r)
		VPSLLD(Imm(16), r, r)
	}},
}

// eachElement generates what do makes for the type whose number is the parameter kind, and goes to end. The
// labels begin with label.
func eachElement(label, end string, do func(e element, label string)) {
	for i, e := range elements {
		if i < len(elements)-1 {
			CMPQ(vec.ParamAddr("kind"), Imm(uint64(i)))
			JNE(LabelRef(fmt.Sprint(label, i+1)))
		}
		do(e, label+e.name)
		if i < len(elements)-1 {
			JMP(LabelRef(end))
			Label(fmt.Sprint(label, i+1))
		}
	}
	Label(end)
}

// copyRows generates the copying of rows to float32, in pieces of a panel's
// width. B's rows are contiguous across the panels.
func (t tier) copyRows() {
	name := "copyRows" + t.name
	TEXT(name, NOSPLIT, "func(dst *float32, src *byte, kind, rows, cols, rowSrc, rowDst, piece int)")
	Pragma("noescape")
	Doc(name+" copies rows of cols elements in pieces of two vectors. Distances are in",
		"bytes.")
	dst, src := Load(Param("dst"), GP64()), Load(Param("src"), GP64())
	rows, rowSrc := Load(Param("rows"), GP64()), Load(Param("rowSrc"), GP64())
	rowDst, piece := Load(Param("rowDst"), GP64()), Load(Param("piece"), GP64())
	far := GP64()
	MOVQ(rowSrc, far)
	SHLQ(Imm(ahead), far)
	from, to, left := GP64(), GP64(), GP64()
	r := t.register()
	lanes := t.lanes()

	eachElement("row", "done", func(e element, label string) {
		vector := e.size * lanes // bytes of src
		Label(label)
		MOVQ(src, from)
		MOVQ(dst, to)
		Load(Param("cols"), left)
		Label(label + "Piece")
		CMPQ(left, Imm(uint64(2*lanes)))
		JLT(LabelRef(label + "Tail"))
		for i := 0; i < 2*vector; i += 64 {
			PREFETCHT0(Mem{Base: from, Index: far, Scale: 1, Disp: i})
		}
		for i := range 2 {
			e.load(Mem{Base: from, Disp: i * vector}, r)
			VMOVUPS(r, Mem{Base: to, Disp: i * t.width})
		}
		ADDQ(U32(2*vector), from)
		ADDQ(piece, to)
		SUBQ(Imm(uint64(2*lanes)), left)
		JMP(LabelRef(label + "Piece"))

		Label(label + "Tail")
		PREFETCHT0(Mem{Base: from, Index: far, Scale: 1})
		CMPQ(left, Imm(uint64(lanes)))
		JLT(LabelRef(label + "Last"))
		e.load(Mem{Base: from}, r)
		VMOVUPS(r, Mem{Base: to})
		ADDQ(Imm(uint64(vector)), from)
		ADDQ(Imm(uint64(t.width)), to)
		SUBQ(Imm(uint64(lanes)), left)
		Label(label + "Last")
		TESTQ(left, left)
		JZ(LabelRef(label + "Next"))
		t.rest(e, label+"Single", from, to, left)
		Label(label + "Next")
		ADDQ(rowSrc, src)
		ADDQ(rowDst, dst)
		DECQ(rows)
		JNZ(LabelRef(label))
	})
	VZEROUPPER()
	RET()
}

// rest copies fewer elements than a vector has.
func (t tier) rest(e element, label string, from, to, left reg.GPVirtual) {
	r := t.register()
	switch {
	case e.size == 4:
		t.first(left).load(Mem{Base: from}, r)
		VMOVUPS(r, Mem{Base: to})
	case t.width == 64: // by way of the lanes of a masked load of 16-bit elements
		y := YMM()
		VMOVDQU16_Z(Mem{Base: from}, t.first(left).k, y)
		e.load(y, r)
		VMOVUPS(r, Mem{Base: to})
	default:
		word, x := GP32(), XMM()
		Label(label)
		MOVWLZX(Mem{Base: from}, word)
		VMOVD(word, x)
		e.load(x, x)
		VMOVSS(x, Mem{Base: to})
		ADDQ(Imm(2), from)
		ADDQ(Imm(4), to)
		DECQ(left)
		JNZ(LabelRef(label))
	}
}

// packLines generates the packing of lines of A or B that run along the depth: it
// transposes squares of a vector's width.
func (t tier) packLines() {
	TEXT("packLines"+t.name, NOSPLIT, "func(dst, src *float32, lines, depth, lineSrc, rowDst int)")
	Pragma("noescape")
	Doc("packLines"+t.name+" transposes lines of depth floats, lineSrc bytes apart, into rows of a",
		"panel, rowDst bytes apart. It writes whole vectors for a depth rounded up to a",
		"vector's lanes. Lines beyond the last repeat it.")
	rowDst := Load(Param("rowDst"), GP64())
	dst, src := GP64(), GP64()
	Load(Param("dst"), dst)
	Load(Param("src"), src)
	lines, depth, lineSrc := Load(Param("lines"), GP64()), Load(Param("depth"), GP64()), Load(Param("lineSrc"), GP64())
	lanes := t.lanes()
	from, next, n := GP64(), GP64(), GP64()
	MOVQ(U32(uint32(lanes)), n)
	some := t.first(n)
	Label("square")
	CMPQ(depth, n)
	JGE(LabelRef("whole"))
	TESTQ(depth, depth)
	JLE(LabelRef("done"))
	some.set(depth.(reg.GPVirtual))
	Label("whole")
	MOVQ(src, from)
	in := make([]reg.VecVirtual, lanes)
	for i := range in {
		in[i] = t.register()
		some.load(Mem{Base: from}, in[i])
		if i < lanes-1 {
			LEAQ(Mem{Base: from, Index: lineSrc, Scale: 1}, next)
			CMPQ(lines, Imm(uint64(i+1)))
			CMOVQGT(next, from)
		}
	}
	for _, r := range t.transpose(in) {
		VMOVUPS(r, Mem{Base: dst})
		ADDQ(rowDst, dst)
	}
	ADDQ(Imm(uint64(t.width)), src)
	SUBQ(n, depth)
	JMP(LabelRef("square"))
	Label("done")
	VZEROUPPER()
	RET()
}

// transpose returns the columns of a square whose rows are in. Each round
// merges pairs of registers: by one and two floats within 128 bits, then by
// units of 128 bits.
func (t tier) transpose(in []reg.VecVirtual) []reg.VecVirtual {
	r := t.pairs(in, 1, VUNPCKLPS, VUNPCKHPS)
	r = t.pairs(r, 2, VUNPCKLPD, VUNPCKHPD)
	// Register i now holds column rank(i%4) of every unit of 128 bits, for
	// rows i/4·4 to i/4·4+3.
	order := []int{0, 2, 1, 3}
	units := t.lanes() / 4
	out := make([]reg.VecVirtual, len(in))
	for c := range 4 {
		column := make([]reg.VecVirtual, units)
		for u := range column {
			column[u] = r[4*u+order[c]]
		}
		for u, x := range t.units(column) {
			out[4*u+c] = x
		}
	}
	return out
}

// pairs merges register i with register i+distance: low halves into the first,
// high halves into the second.
func (t tier) pairs(in []reg.VecVirtual, distance int, low, high func(ops ...Op)) []reg.VecVirtual {
	out := make([]reg.VecVirtual, len(in))
	for i := range in {
		if i/distance%2 == 1 {
			continue
		}
		out[i], out[i+distance] = t.register(), t.register()
		low(in[i+distance], in[i], out[i])
		high(in[i+distance], in[i], out[i+distance])
	}
	return out
}

// units transposes the 128-bit units of 2 or 4 registers.
func (t tier) units(in []reg.VecVirtual) []reg.VecVirtual {
	if len(in) == 2 {
		lo, hi := t.register(), t.register()
		VPERM2F128(Imm(0x20), in[1], in[0], lo)
		VPERM2F128(Imm(0x31), in[1], in[0], hi)
		return []reg.VecVirtual{lo, hi}
	}
	shuffle := func(selection uint64, x, y reg.VecVirtual) reg.VecVirtual {
		z := t.register()
		VSHUFF32X4(Imm(selection), y, x, z)
		return z
	}
	even := []reg.VecVirtual{shuffle(0x88, in[0], in[1]), shuffle(0x88, in[2], in[3])} // units 0 and 2
	odd := []reg.VecVirtual{shuffle(0xdd, in[0], in[1]), shuffle(0xdd, in[2], in[3])}  // units 1 and 3
	return []reg.VecVirtual{
		shuffle(0x88, even[0], even[1]), shuffle(0x88, odd[0], odd[1]),
		shuffle(0xdd, even[0], even[1]), shuffle(0xdd, odd[0], odd[1]),
	}
}
