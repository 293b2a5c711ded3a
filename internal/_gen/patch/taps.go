package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"

	"github.com/snug-ml/snug/internal/_gen/half/vec"
)

// tier is what differs between the instruction sets.
type tier struct {
	name     string
	width    int // bytes of a vector
	register func() reg.VecVirtual
	chunk    int // vectors whose sums are in registers together
}

var tiers = []tier{{"AVX2", 32, YMM, 4}, {"AVX512", 64, ZMM, 4}}

func (t tier) lanes() int { return t.width / 4 }

// tail is a predicate of the first lanes of a vector.
type tail struct {
	tier
	k    reg.OpmaskVirtual
	mask reg.VecVirtual
}

// masks holds 8 set and 8 clear words.
func masks() {
	GLOBL("masks", RODATA|NOPTR)
	for i := range 16 {
		word := uint32(0)
		if i < 8 {
			word = 0xffffffff
		}
		DATA(4*i, U32(word))
	}
}

// first returns the predicate of n lanes, 1 to all.
func (t tier) first(n reg.GPVirtual) tail {
	if t.width == 64 {
		return tail{tier: t, k: low(n)}
	}
	at, mask, back := GP64(), YMM(), GP64()
	LEAQ(NewDataAddr(Symbol{Name: "masks", Static: true}, 32), at)
	MOVQ(n, back)
	NEGQ(back)
	VMOVDQU(Mem{Base: at, Index: back, Scale: 4}, mask)
	return tail{tier: t, mask: mask}
}

func (f tail) load(m Mem, r reg.VecVirtual) {
	if f.width == 64 {
		VMOVUPS_Z(m, f.k, r)
	} else {
		VMASKMOVPS(m, f.mask, r)
	}
}

func (f tail) store(r reg.VecVirtual, m Mem) {
	if f.width == 64 {
		VMOVUPS(r, f.k, m)
	} else {
		VMASKMOVPS(r, f.mask, m)
	}
}

// count sets the vectors of a row, the last of which has 1 to all lanes, and those lanes.
func (t tier) count(cols reg.GPVirtual) (vectors, last reg.GPVirtual) {
	vectors, last = GP64(), GP64()
	LEAQ(Mem{Base: cols, Disp: t.lanes() - 1}, vectors)
	shift := map[int]uint64{8: 3, 16: 4}[t.lanes()]
	SHRQ(Imm(shift), vectors)
	LEAQ(Mem{Base: cols, Disp: -1}, last)
	ANDQ(Imm(uint64(t.lanes()-1)), last)
	INCQ(last)
	return vectors, last
}

func param(name string) reg.GPVirtual {
	r := GP64()
	Load(Param(name), r)
	return r
}

// taps generates a row of a depthwise convolution after the other: sums of a few vectors stay in registers over all taps.
func (t tier) taps() {
	name := "taps" + t.name
	TEXT(name, NOSPLIT, "func(dst, src, w *float32, offsets *int, taps, rows, cols, rowSrc, rowDst int, bias float32, add int)")
	Pragma("noescape")
	Doc(name+" sets rows of dst to bias, or with add to themselves, plus the sum over taps of w times src from the tap's",
		"offset on. It reads whole vectors of src. Distances are in bytes, offsets in elements.")
	dst, src, w, offsets := param("dst"), param("src"), param("w"), param("offsets")
	cols := param("cols")
	vectors, lanes := t.count(cols)
	last := t.first(lanes)
	bias := t.register()
	VBROADCASTSS(vec.ParamAddr("bias"), bias)
	left, to, from := GP64(), GP64(), GP64()
	Label("row")
	MOVQ(vectors, left)
	MOVQ(dst, to)
	MOVQ(src, from)
	chunk := func(n int, final bool) {
		id := fmt.Sprintf("%d%v", n, final)
		acc := make([]reg.VecVirtual, n)
		at := func(base reg.GPVirtual, i int) Mem { return Mem{Base: base, Disp: i * t.width} }
		for i := range acc {
			acc[i] = t.register()
		}
		CMPQ(vec.ParamAddr("add"), Imm(0))
		JNE(LabelRef("add" + id))
		for i := range acc {
			VMOVUPS(bias, acc[i])
		}
		JMP(LabelRef("sum" + id))
		Label("add" + id)
		for i := range acc {
			if final && i == n-1 {
				last.load(at(to, i), acc[i])
			} else {
				VMOVUPS(at(to, i), acc[i])
			}
		}
		Label("sum" + id)
		tap, offset, count := GP64(), GP64(), GP64()
		value := t.register()
		XORQ(tap, tap)
		Load(Param("taps"), count)
		Label("tap" + id)
		MOVQ(Mem{Base: offsets, Index: tap, Scale: 8}, offset)
		VBROADCASTSS(Mem{Base: w, Index: tap, Scale: 4}, value)
		for i := range acc {
			VFMADD231PS(Mem{Base: from, Index: offset, Scale: 4, Disp: i * t.width}, value, acc[i])
		}
		INCQ(tap)
		CMPQ(tap, count)
		JLT(LabelRef("tap" + id))
		for i := range acc {
			if final && i == n-1 {
				last.store(acc[i], at(to, i))
			} else {
				VMOVUPS(acc[i], at(to, i))
			}
		}
	}
	Label("chunk")
	CMPQ(left, Imm(uint64(t.chunk)))
	JLE(LabelRef("final"))
	chunk(t.chunk, false)
	ADDQ(U32(uint32(t.chunk*t.width)), to)
	ADDQ(U32(uint32(t.chunk*t.width)), from)
	SUBQ(Imm(uint64(t.chunk)), left)
	JMP(LabelRef("chunk"))
	Label("final")
	for n := t.chunk; n >= 1; n-- {
		next := fmt.Sprintf("below%d", n)
		if n > 1 {
			CMPQ(left, Imm(uint64(n)))
			JNE(LabelRef(next))
		}
		chunk(n, true)
		if n > 1 {
			JMP(LabelRef("done"))
			Label(next)
		}
	}
	Label("done")
	ADDQ(vec.ParamAddr("rowDst"), dst)
	ADDQ(vec.ParamAddr("rowSrc"), src)
	DECQ(vec.ParamAddr("rows"))
	JNZ(LabelRef("row"))
	VZEROUPPER()
	RET()
}

// few is how many rows tapsFew does at a time.
const few = 4

// tapsFew generates taps for rows of at most a vector, a few of them together, since the sums of one would wait for one
// another.
func (t tier) tapsFew() {
	name := "tapsFew" + t.name
	TEXT(name, NOSPLIT, "func(dst, src, w *float32, offsets *int, taps, rows, cols, rowSrc, rowDst int, bias float32, add int)")
	Pragma("noescape")
	Doc(name + " is taps" + t.name + fmt.Sprintf(" for rows of at most a vector, whose number is a multiple of %d.", few))
	dst, src, w, offsets := param("dst"), param("src"), param("w"), param("offsets")
	cols, rowSrc, rowDst, count := param("cols"), param("rowSrc"), param("rowDst"), param("taps")
	last := t.first(cols)
	three := GP64()
	LEAQ(Mem{Base: rowSrc, Index: rowSrc, Scale: 2}, three)
	acc := make([]reg.VecVirtual, few)
	for i := range acc {
		acc[i] = t.register()
	}
	value := t.register()
	Label("rows")
	at := GP64()
	CMPQ(vec.ParamAddr("add"), Imm(0))
	JNE(LabelRef("add"))
	for i := range acc {
		VBROADCASTSS(vec.ParamAddr("bias"), acc[i])
	}
	JMP(LabelRef("sum"))
	Label("add")
	MOVQ(dst, at)
	for i := range acc {
		last.load(Mem{Base: at}, acc[i])
		ADDQ(rowDst, at)
	}
	Label("sum")
	tap, from := GP64(), GP64()
	XORQ(tap, tap)
	Label("tap")
	MOVQ(Mem{Base: offsets, Index: tap, Scale: 8}, from)
	LEAQ(Mem{Base: src, Index: from, Scale: 4}, from)
	VBROADCASTSS(Mem{Base: w, Index: tap, Scale: 4}, value)
	VFMADD231PS(Mem{Base: from}, value, acc[0])
	VFMADD231PS(Mem{Base: from, Index: rowSrc, Scale: 1}, value, acc[1])
	VFMADD231PS(Mem{Base: from, Index: rowSrc, Scale: 2}, value, acc[2])
	VFMADD231PS(Mem{Base: from, Index: three, Scale: 1}, value, acc[3])
	INCQ(tap)
	CMPQ(tap, count)
	JLT(LabelRef("tap"))
	for i := range acc {
		last.store(acc[i], Mem{Base: dst})
		ADDQ(rowDst, dst)
	}
	LEAQ(Mem{Base: src, Index: rowSrc, Scale: 4}, src)
	SUBQ(Imm(few), vec.ParamAddr("rows"))
	JNZ(LabelRef("rows"))
	VZEROUPPER()
	RET()
}

// spread generates the writing of every second element, by the masks of AVX-512.
func spread() {
	TEXT("spreadAVX512", NOSPLIT, "func(dst, src *float32, rows, cols, rowSrc, rowDst int)")
	Pragma("noescape")
	Doc("spreadAVX512 writes rows of cols floats to every second float of rows of dst, and nothing else. Distances are in", "bytes.")
	dst, src, cols, rowSrc, rowDst := param("dst"), param("src"), param("cols"), param("rowSrc"), param("rowDst")
	index, half := ZMM(), ZMM()
	VMOVDQU32(NewDataAddr(Symbol{Name: "twice", Static: true}, 0), index)
	full, rest, even := GP64(), GP64(), GP64()
	MOVQ(cols, full)
	SHRQ(Imm(3), full)
	MOVQ(cols, rest)
	ANDQ(Imm(7), rest)
	MOVQ(U32(0x5555), even)
	all, some, read := K(), GP64(), low(rest)
	KMOVW(even.As32(), all)
	LEAQ(Mem{Base: rest, Index: rest, Scale: 1}, some)
	BZHIQ(some, even, some)
	written := K()
	KMOVW(some.As32(), written)
	left, to, from := GP64(), GP64(), GP64()
	Label("row")
	MOVQ(full, left)
	MOVQ(dst, to)
	MOVQ(src, from)
	vectors(left, to, from, 64, 32, func() {
		VMOVUPS(Mem{Base: from}, half.AsY())
		VPERMPS(half, index, half)
		VMOVUPS(half, all, Mem{Base: to})
	})
	TESTQ(rest, rest)
	JZ(LabelRef("next"))
	VMOVUPS_Z(Mem{Base: from}, read, half.AsY())
	VPERMPS(half, index, half)
	VMOVUPS(half, written, Mem{Base: to})
	Label("next")
	ADDQ(rowDst, dst)
	ADDQ(rowSrc, src)
	DECQ(vec.ParamAddr("rows"))
	JNZ(LabelRef("row"))
	VZEROUPPER()
	RET()
}

// spreadAVX2 generates the writing of every second element one by one: masked stores take longer.
func spreadAVX2() {
	TEXT("spreadAVX2", NOSPLIT, "func(dst, src *float32, rows, cols, rowSrc, rowDst int)")
	Pragma("noescape")
	Doc("spreadAVX2 writes rows of cols floats to every second float of rows of dst, and nothing else. Distances are in", "bytes.")
	dst, src, cols, rowSrc, rowDst := param("dst"), param("src"), param("cols"), param("rowSrc"), param("rowDst")
	four, full, rest := XMM(), GP64(), GP64()
	MOVQ(cols, full)
	SHRQ(Imm(2), full)
	MOVQ(cols, rest)
	ANDQ(Imm(3), rest)
	left, to, from := GP64(), GP64(), GP64()
	Label("row")
	MOVQ(full, left)
	MOVQ(dst, to)
	MOVQ(src, from)
	vectors(left, to, from, 32, 16, func() {
		VMOVUPS(Mem{Base: from}, four)
		VMOVSS(four, Mem{Base: to})
		for i := 1; i < 4; i++ {
			VEXTRACTPS(Imm(uint64(i)), four, Mem{Base: to, Disp: 8 * i})
		}
	})
	MOVQ(rest, left)
	TESTQ(left, left)
	JZ(LabelRef("next"))
	Label("single")
	VMOVSS(Mem{Base: from}, four)
	VMOVSS(four, Mem{Base: to})
	ADDQ(Imm(4), from)
	ADDQ(Imm(8), to)
	DECQ(left)
	JNZ(LabelRef("single"))
	Label("next")
	ADDQ(rowDst, dst)
	ADDQ(rowSrc, src)
	DECQ(vec.ParamAddr("rows"))
	JNZ(LabelRef("row"))
	VZEROUPPER()
	RET()
}

// twice is the indices of 8 floats, twice each.
func twice() {
	GLOBL("twice", RODATA|NOPTR)
	for i := range 16 {
		DATA(4*i, U32(uint32(i/2)))
	}
}

// together is how many taps dots does at a time.
const together = 3

// dots generates the gradient of the weights of a depthwise convolution, of a few taps.
func (t tier) dots() {
	name := "dots" + t.name
	TEXT(name, NOSPLIT, "func(sums, y, src *float32, offsets *int, rows, cols, rowY, rowSrc int)")
	Pragma("noescape")
	Doc(fmt.Sprintf("%s adds to %d vectors of sums the products of rows of y with src from each of as many offsets on.", name, together),
		"Distances are in bytes, offsets in elements.")
	sums, y, src, offsets := param("sums"), param("y"), param("src"), param("offsets")
	cols, rows, rowY, rowSrc := param("cols"), param("rows"), param("rowY"), param("rowSrc")
	vectors, lanes := t.count(cols)
	DECQ(vectors)
	last := t.first(lanes)
	acc, offset := make([]reg.VecVirtual, together), make([]reg.GPVirtual, together)
	for i := range acc {
		acc[i], offset[i] = t.register(), GP64()
		VMOVUPS(Mem{Base: sums, Disp: i * t.width}, acc[i])
		MOVQ(Mem{Base: offsets, Disp: 8 * i}, offset[i])
	}
	left, from, at := GP64(), GP64(), GP64()
	x, z := t.register(), t.register()
	Label("row")
	MOVQ(vectors, left)
	MOVQ(y, at)
	MOVQ(src, from)
	TESTQ(left, left)
	JZ(LabelRef("last"))
	Label("vector")
	VMOVUPS(Mem{Base: at}, x)
	for i := range acc {
		VFMADD231PS(Mem{Base: from, Index: offset[i], Scale: 4}, x, acc[i])
	}
	ADDQ(Imm(uint64(t.width)), at)
	ADDQ(Imm(uint64(t.width)), from)
	DECQ(left)
	JNZ(LabelRef("vector"))
	Label("last")
	last.load(Mem{Base: at}, x)
	for i := range acc {
		last.load(Mem{Base: from, Index: offset[i], Scale: 4}, z)
		VFMADD231PS(z, x, acc[i])
	}
	ADDQ(rowY, y)
	ADDQ(rowSrc, src)
	DECQ(rows)
	JNZ(LabelRef("row"))
	for i := range acc {
		VMOVUPS(acc[i], Mem{Base: sums, Disp: i * t.width})
	}
	VZEROUPPER()
	RET()
}
