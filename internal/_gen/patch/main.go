// Patch generates the copying of internal/patch.
package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"

	"github.com/snug-ml/snug/internal/_gen/half/vec"
)

func main() {
	ConstraintExpr("!noasm,gc")
	evens()
	pairs()
	for _, e := range elements {
		e.rowsAVX2()
		e.rowsAVX512()
		e.evensAVX512()
		e.gather(1)
		e.gather(2)
	}
	for _, e := range elements {
		e.evensAVX2()
	}
	bits()
	for _, e := range elements {
		e.gatherAVX2(1)
		e.gatherAVX2(2)
	}
	masks()
	for _, t := range tiers {
		t.taps()
		t.tapsFew()
		t.dots()
	}
	for _, t := range tiers {
		t.tapsAcross(1, 1)
		t.tapsAcross(2, 1)
		t.tapsAcross(3, 1)
		t.tapsAcross(3, 2)
	}
	for rows := 1; rows <= 3; rows++ {
		tiers[0].dotsAcross(1, 1, rows, 2)
		for _, t := range tiers {
			t.dotsAcross(3, 1, rows, 1)
			t.dotsAcross(3, 2, rows, 1)
		}
	}
	storeAVX2(vec.BFloat16)
	storeAVX2(vec.Float16)
	spreadAVX2()
	twice()
	spread()
	gatherWords(1)
	gatherWords(2)
	Generate()
}

// element is a type that is copied to float32.
type element struct {
	name, typ string
	size      int
	load      func(m Op, r reg.VecVirtual) // a vector
	single    func(m Mem, x reg.VecVirtual)
}

var elements = []element{
	{"F32", "float32", 4, func(m Op, r reg.VecVirtual) { VMOVUPS(m, r) }, func(m Mem, x reg.VecVirtual) { VMOVSS(m, x) }},
	{"F16", "uint16", 2, func(m Op, r reg.VecVirtual) { VCVTPH2PS(m, r) }, func(m Mem, x reg.VecVirtual) {
		word(m, x)
		VCVTPH2PS(x, x)
	}},
	{"BF16", "uint16", 2, func(m Op, r reg.VecVirtual) {
		VPMOVZXWD(m, r)
		VPSLLD(Imm(16), r, r)
	}, func(m Mem, x reg.VecVirtual) {
		word(m, x)
		VPSLLD(Imm(16), x, x)
	}},
}

func word(m Mem, x reg.VecVirtual) {
	w := GP32()
	MOVWLZX(m, w)
	VMOVD(w, x)
}

// rows is the frame of a function that copies rows; body copies one, from pointers that it may move.
type rows struct {
	dst, src, rows, cols, rowDst, rowSrc reg.GPVirtual
}

func begin(name, what, typ string) rows {
	vec.Func(name, fmt.Sprintf("func(dst *float32, src *%s, rows, cols, rowSrc, rowDst int)", typ),
		name+" copies "+what, "and writes nothing else. Distances are in bytes.")
	load := func(name string) reg.GPVirtual {
		r := GP64()
		Load(Param(name), r)
		return r
	}
	return rows{load("dst"), load("src"), load("rows"), load("cols"), load("rowDst"), load("rowSrc")}
}

func (f rows) each(body func(to, from reg.GPVirtual)) {
	to, from := GP64(), GP64()
	Label("row")
	MOVQ(f.dst, to)
	MOVQ(f.src, from)
	body(to, from)
	ADDQ(f.rowDst, f.dst)
	ADDQ(f.rowSrc, f.src)
	DECQ(f.rows)
	JNZ(LabelRef("row"))
	VZEROUPPER()
	RET()
}

// vectors copies left vectors, if there are any.
func vectors(left reg.GPVirtual, to, from reg.GPVirtual, sizeDst, sizeSrc int, copy func()) {
	TESTQ(left, left)
	JZ(LabelRef("tail"))
	Label("vector")
	copy()
	ADDQ(U32(uint32(sizeSrc)), from)
	ADDQ(U32(uint32(sizeDst)), to)
	DECQ(left)
	JNZ(LabelRef("vector"))
	Label("tail")
}

// low sets the lowest n bits of a mask; n is 0 to 32.
func low(n reg.GPVirtual) reg.OpmaskVirtual {
	ones, k := GP64(), K()
	MOVQ(I64(-1), ones)
	BZHIQ(n, ones, ones)
	KMOVD(ones.As32(), k)
	return k
}

// count returns the vectors of a row and the elements of the last, which is not whole.
func (f rows) count(lanes int) (full, tail reg.GPVirtual) {
	full, tail = GP64(), GP64()
	MOVQ(f.cols, full)
	MOVQ(f.cols, tail)
	shift := map[int]uint64{8: 3, 16: 4}[lanes]
	SHRQ(Imm(shift), full)
	ANDQ(Imm(uint64(lanes-1)), tail)
	return full, tail
}

// rowsAVX512 copies rows with masks for what is less than a vector.
func (e element) rowsAVX512() {
	f := begin("rows"+e.name+"AVX512", "rows of cols elements", e.typ)
	full, tail := f.count(16)
	k := low(tail)
	r, y := ZMM(), YMM()
	f.each(func(to, from reg.GPVirtual) {
		left := GP64()
		MOVQ(full, left)
		vectors(left, to, from, 64, 16*e.size, func() {
			e.load(Mem{Base: from}, r)
			VMOVUPS(r, Mem{Base: to})
		})
		TESTQ(tail, tail)
		JZ(LabelRef("next"))
		if e.size == 4 {
			VMOVUPS_Z(Mem{Base: from}, k, r)
		} else {
			VMOVDQU16_Z(Mem{Base: from}, k, y)
			e.load(y, r)
		}
		VMOVUPS(r, k, Mem{Base: to})
		Label("next")
	})
}

// rowsAhead is the binary logarithm of how many rows rowsAVX2 asks ahead for: rows apart are no stream that the processor
// would follow.
const rowsAhead = 3

// rowsAVX2 copies what is less than a vector in parts of 4, 2 and 1 elements: masked stores take long on processors by
// AMD.
func (e element) rowsAVX2() {
	f := begin("rows"+e.name+"AVX2", "rows of cols elements", e.typ)
	full, tail := f.count(8)
	r, x, far := YMM(), XMM(), GP64()
	MOVQ(f.rowSrc, far)
	SHLQ(Imm(rowsAhead), far)
	f.each(func(to, from reg.GPVirtual) {
		left := GP64()
		MOVQ(full, left)
		vectors(left, to, from, 32, 8*e.size, func() {
			PREFETCHT0(Mem{Base: from, Index: far, Scale: 1})
			e.load(Mem{Base: from}, r)
			VMOVUPS(r, Mem{Base: to})
		})
		part := func(n int, copy func()) {
			label := fmt.Sprintf("below%d", n)
			TESTQ(U32(uint32(n)), tail)
			JZ(LabelRef(label))
			copy()
			ADDQ(Imm(uint64(n*e.size)), from)
			ADDQ(Imm(uint64(n*4)), to)
			Label(label)
		}
		part(4, func() {
			e.load(Mem{Base: from}, x)
			VMOVUPS(x, Mem{Base: to})
		})
		part(2, func() {
			for i := range 2 {
				e.single(Mem{Base: from, Disp: i * e.size}, x)
				VMOVSS(x, Mem{Base: to, Disp: 4 * i})
			}
		})
		part(1, func() {
			e.single(Mem{Base: from}, x)
			VMOVSS(x, Mem{Base: to})
		})
	})
}

// evens is the indices of the even elements among 31, whose 15th is in both of two vectors.
func evens() {
	GLOBL("evens", RODATA|NOPTR)
	for i := range 16 {
		index := 2 * i
		if i >= 8 {
			index++
		}
		DATA(4*i, U32(uint32(index)))
	}
}

// pairs is the indices of the even elements of two vectors.
func pairs() {
	GLOBL("pairs", RODATA|NOPTR)
	for i := range 16 {
		DATA(4*i, U32(uint32(2*i)))
	}
}

// evensAVX512 copies every second element.
func (e element) evensAVX512() {
	f := begin("evens"+e.name+"AVX512", "rows of every second of 2·cols-1 elements", e.typ)
	full, tail := f.count(16)
	k := low(tail)
	words := GP64() // that hold the tail
	LEAQ(Mem{Base: tail, Index: tail, Scale: 1, Disp: -1}, words)
	r, s, y := ZMM(), ZMM(), YMM()
	if e.size == 4 {
		index := ZMM()
		VMOVDQU32(NewDataAddr(Symbol{Name: "evens", Static: true}, 0), index)
		lower, upper := GP64(), GP64()
		MOVQ(U32(16), lower)
		CMPQ(words, lower)
		CMOVQLT(words, lower)
		XORQ(upper, upper)
		LEAQ(Mem{Base: words, Disp: -15}, upper)
		none := GP64()
		XORQ(none, none)
		CMPQ(upper, none)
		CMOVQLT(none, upper)
		k0, k1 := low(lower), low(upper)
		f.each(func(to, from reg.GPVirtual) {
			left := GP64()
			MOVQ(full, left)
			vectors(left, to, from, 64, 128, func() {
				VMOVUPS(Mem{Base: from}, r)
				VPERMT2PS(Mem{Base: from, Disp: 60}, index, r)
				VMOVUPS(r, Mem{Base: to})
			})
			TESTQ(tail, tail)
			JZ(LabelRef("next"))
			VMOVUPS_Z(Mem{Base: from}, k0, r)
			VMOVUPS_Z(Mem{Base: from, Disp: 60}, k1, s)
			VPERMT2PS(s, index, r)
			VMOVUPS(r, k, Mem{Base: to})
			Label("next")
		})
		return
	}
	all := GP64()
	MOVQ(U32(31), all)
	kAll, kTail := low(all), low(words)
	widen := func() {
		if e.name == "BF16" {
			VPSLLD(Imm(16), r, r)
			return
		}
		VPMOVDW(r, y)
		VCVTPH2PS(y, r)
	}
	f.each(func(to, from reg.GPVirtual) {
		left := GP64()
		MOVQ(full, left)
		vectors(left, to, from, 64, 64, func() {
			VMOVDQU16_Z(Mem{Base: from}, kAll, r)
			widen()
			VMOVUPS(r, Mem{Base: to})
		})
		TESTQ(tail, tail)
		JZ(LabelRef("next"))
		VMOVDQU16_Z(Mem{Base: from}, kTail, r)
		widen()
		VMOVUPS(r, k, Mem{Base: to})
		Label("next")
	})
}

// evensAVX2 copies every second element.
func (e element) evensAVX2() {
	f := begin("evens"+e.name+"AVX2", "rows of every second of 2·cols-1 elements", e.typ)
	full, tail := f.count(8)
	var r reg.VecVirtual = YMM()
	x, g := XMM(), gatherPiece{element: e, step: 2, high: YMM()}
	g.highs()
	f.each(func(to, from reg.GPVirtual) {
		left := GP64()
		MOVQ(full, left)
		vectors(left, to, from, 32, 16*e.size, func() {
			g.evens(Mem{Base: from}, 8, r)
			VMOVUPS(r, Mem{Base: to})
		})
		MOVQ(tail, left)
		TESTQ(left, left)
		JZ(LabelRef("next"))
		Label("single")
		e.single(Mem{Base: from}, x)
		VMOVSS(x, Mem{Base: to})
		ADDQ(Imm(uint64(2*e.size)), from)
		ADDQ(Imm(4), to)
		DECQ(left)
		JNZ(LabelRef("single"))
		Label("next")
	})
}
