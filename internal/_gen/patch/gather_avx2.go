package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// bits is a bit for each lane of a vector, from the lowest.
func bits() {
	GLOBL("bits", RODATA|NOPTR)
	for i := range 8 {
		DATA(4*i, U32(1<<i))
	}
}

// gatherAVX2 copies pieces without masked stores, which take long on processors by AMD: a piece is whole vectors of a
// width, the last of which overlaps the one before. What is not read is loaded too, and cleared.
func (e element) gatherAVX2(step int) {
	name := fmt.Sprintf("gather%d%sAVX2", step, e.name)
	TEXT(name, NOSPLIT, "func(dst *float32, src *"+e.typ+", pieces *[3]int64, count, channels, nextSrc, nextDst int)")
	Pragma("noescape")
	what := "elements"
	if step == 2 {
		what = "every second of the elements"
	}
	Doc(name+" copies "+what+" of pieces for all channels. It loads those that are not read too. Distances are in", "bytes.")
	dst, src, pieces, count := param("dst"), param("src"), param("pieces"), param("count")
	nextSrc, nextDst := param("nextSrc"), param("nextDst")
	bit := YMM()
	VMOVDQU(NewDataAddr(Symbol{Name: "bits", Static: true}, 0), bit)
	g := gatherPiece{element: e, step: step, high: YMM(), from: GP64(), to: GP64(), lastFrom: GP64(), lastTo: GP64()}
	for i := range g.masks {
		g.masks[i] = YMM()
	}
	g.highs()
	read, n, left := GP64(), GP64(), GP64()
	Label("piece")
	MOVQ(Mem{Base: pieces}, g.from)
	LEAQ(Mem{Base: src, Index: g.from, Scale: uint8(e.size)}, g.from)
	MOVQ(Mem{Base: pieces, Disp: 8}, g.to)
	LEAQ(Mem{Base: dst, Index: g.to, Scale: 4}, g.to)
	MOVL(Mem{Base: pieces, Disp: 16}, read.As32())
	MOVL(Mem{Base: pieces, Disp: 20}, n.As32())
	ADDQ(Imm(24), pieces)
	POPCNTQ(n, n)
	Load(Param("channels"), left)
	// path copies count vectors of width elements.
	path := func(width, count int) {
		last := GP64()
		LEAQ(Mem{Base: n, Disp: -width}, last)
		for i := range count {
			b := GP64()
			if i == count-1 {
				SHRXQ(last, read, b)
			} else {
				MOVQ(read, b)
				SHRQ(Imm(uint64(i*width)), b)
			}
			VMOVD(b.As32(), g.masks[i].AsX())
			VPBROADCASTD(g.masks[i].AsX(), g.masks[i])
			VPAND(bit, g.masks[i], g.masks[i])
			VPCMPEQD(bit, g.masks[i], g.masks[i])
		}
		LEAQ(Mem{Base: g.to, Index: last, Scale: 4}, g.lastTo)
		LEAQ(Mem{Base: g.from, Index: last, Scale: uint8(step * e.size)}, g.lastFrom)
		label := fmt.Sprintf("copy%dx%d", count, width)
		Label(label)
		for i := range count {
			g.copy(width, i, i == count-1)
		}
		if count > 1 {
			ADDQ(nextSrc, g.from)
			ADDQ(nextDst, g.to)
		}
		ADDQ(nextSrc, g.lastFrom)
		ADDQ(nextDst, g.lastTo)
		DECQ(left)
		JNZ(LabelRef(label))
		JMP(LabelRef("next"))
	}
	for _, p := range []struct{ most, width, count int }{{32, 8, 4}, {24, 8, 3}, {16, 8, 2}, {8, 8, 1}, {7, 4, 2}, {3, 1, 3}, {2, 1, 2}} {
		label := fmt.Sprintf("most%d", p.most)
		Label(label)
		if p.most != 8 {
			below := map[int]int{32: 24, 24: 16, 16: 8, 7: 3, 3: 2, 2: 1}[p.most]
			CMPQ(n, Imm(uint64(below)))
			JLE(LabelRef(fmt.Sprintf("most%d", below)))
		} else {
			CMPQ(n, Imm(8))
			JL(LabelRef("most7"))
		}
		path(p.width, p.count)
	}
	Label("most1")
	path(1, 1)
	Label("next")
	DECQ(count)
	JNZ(LabelRef("piece"))
	VZEROUPPER()
	RET()
}

// gatherPiece is a piece that is copied.
type gatherPiece struct {
	element
	step                       int
	high                       reg.VecVirtual // the upper halves of words of 32 bits
	from, to, lastFrom, lastTo reg.GPVirtual
	masks                      [4]reg.VecVirtual
}

// highs sets high, if it is needed.
func (g *gatherPiece) highs() {
	if g.step == 2 && g.size == 2 {
		VPCMPEQD(g.high, g.high, g.high)
		VPSLLD(Imm(16), g.high, g.high)
	}
}

// copy copies vector i of elements.
func (g *gatherPiece) copy(width, i int, last bool) {
	from := Mem{Base: g.from, Disp: i * width * g.size * g.step}
	to := Mem{Base: g.to, Disp: 4 * i * width}
	if last {
		from, to = Mem{Base: g.lastFrom}, Mem{Base: g.lastTo}
	}
	var r, mask reg.VecVirtual = YMM(), g.masks[i]
	if width < 8 {
		r, mask = XMM(), mask.AsX().(reg.VecVirtual)
	}
	switch {
	case width == 1:
		g.single(from, r)
	case g.step == 2:
		g.evens(from, width, r)
	case g.size == 4:
		VANDPS(from, mask, r)
		VMOVUPS(r, to)
		return
	default:
		g.load(from, r)
	}
	VANDPS(mask, r, r)
	if width == 1 {
		VMOVSS(r, to)
	} else {
		VMOVUPS(r, to)
	}
}

// evens loads 4 or 8 elements, the first and every second after it, and nothing beyond the last.
func (g *gatherPiece) evens(from Mem, width int, r reg.VecVirtual) {
	second := from
	second.Disp += (width - 1) * g.size
	if g.size == 4 {
		VMOVUPS(from, r)
		VSHUFPS(Imm(0xd8), second, r, r)
		if width == 8 {
			VPERMPD(Imm(0xd8), r, r)
		}
		return
	}
	x, y := r.AsX(), XMM()
	move := func(m Mem, x Op) { VMOVDQU(m, x) }
	if width == 4 {
		move = func(m Mem, x Op) { VMOVQ(m, x) }
	}
	move(from, x)
	move(second, y)
	if g.name == "BF16" {
		VPSLLD(Imm(16), x, x)
		VPAND(g.high.AsX(), y, y)
		if width == 4 {
			VPUNPCKLQDQ(y, x, x)
		} else {
			VINSERTI128(Imm(1), y, r, r)
		}
		return
	}
	VPANDN(x, g.high.AsX(), x)
	VPSRLD(Imm(16), y, y)
	if width == 4 {
		VPUNPCKLQDQ(y, x, x)
		VPACKUSDW(x, x, x)
	} else {
		VPACKUSDW(y, x, x)
	}
	VCVTPH2PS(x, r)
}
