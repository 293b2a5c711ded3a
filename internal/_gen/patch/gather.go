package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// gather copies pieces of up to 32 elements, each of them for all channels, with masks for what lies outside of the
// source. A piece has the distances of its source and destination, in bytes, and the masks of what is read and of what is
// written.
func (e element) gather(step int) {
	name := fmt.Sprintf("gather%d%sAVX512", step, e.name)
	TEXT(name, NOSPLIT, "func(dst *float32, src *"+e.typ+", pieces *[3]int64, count, channels, nextSrc, nextDst int)")
	Pragma("noescape")
	what := "elements"
	if step == 2 {
		what = "every second of the elements"
	}
	Doc(name + " copies " + what + " of pieces for all channels. Distances are in bytes.")
	load := func(name string) reg.GPVirtual {
		r := GP64()
		Load(Param(name), r)
		return r
	}
	dst, src, pieces, count := load("dst"), load("src"), load("pieces"), load("count")
	nextSrc, nextDst := load("nextSrc"), load("nextDst")
	index := ZMM()
	if step == 2 && e.size == 4 {
		VMOVDQU32(NewDataAddr(Symbol{Name: "pairs", Static: true}, 0), index)
	}
	spread := GP64()
	if step == 2 {
		MOVQ(U64(0x5555555555555555), spread)
	}
	from, to, left := GP64(), GP64(), GP64()
	read, written, high := GP64(), GP64(), GP64()
	Label("piece")
	MOVQ(Mem{Base: pieces}, from)
	if e.size == 2 {
		ADDQ(from, from)
	} else {
		SHLQ(Imm(2), from)
	}
	ADDQ(src, from)
	MOVQ(Mem{Base: pieces, Disp: 8}, to)
	SHLQ(Imm(2), to)
	ADDQ(dst, to)
	MOVL(Mem{Base: pieces, Disp: 16}, read.As32())
	MOVL(Mem{Base: pieces, Disp: 20}, written.As32())
	ADDQ(Imm(24), pieces)
	Load(Param("channels"), left)

	kw0, kw1 := K(), K()
	KMOVW(written.As32(), kw0)
	MOVQ(written, high)
	SHRQ(Imm(16), high)
	KMOVW(high.As32(), kw1)
	r, s, y := ZMM(), ZMM(), YMM()
	k := [4]reg.OpmaskVirtual{K(), K(), K(), K()} // of what is read
	if step == 1 {
		KMOVW(read.As32(), k[0])
		MOVQ(read, high)
		SHRQ(Imm(16), high)
		KMOVW(high.As32(), k[1])
	} else {
		PDEPQ(spread, read, read)
		if e.size == 2 {
			KMOVD(read.As32(), k[0])
			MOVQ(read, high)
			SHRQ(Imm(32), high)
			KMOVD(high.As32(), k[1])
		} else {
			for i := range 4 {
				if i > 0 {
					SHRQ(Imm(16), read)
				}
				KMOVW(read.As32(), k[i])
			}
		}
	}
	// half copies elements 16·i to 16·i+15.
	half := func(i int) {
		at := func(elements int) Mem { return Mem{Base: from, Disp: elements * e.size} }
		switch {
		case step == 1 && e.size == 4:
			VMOVUPS_Z(at(16*i), k[i], r)
		case step == 1:
			VMOVDQU16_Z(at(16*i), k[i], y)
			e.load(y, r)
		case e.size == 4:
			VMOVUPS_Z(at(32*i), k[2*i], r)
			VMOVUPS_Z(at(32*i+16), k[2*i+1], s)
			VPERMT2PS(s, index, r)
		default:
			VMOVDQU16_Z(at(32*i), k[i], r)
			if e.name == "BF16" {
				VPSLLD(Imm(16), r, r)
			} else {
				VPMOVDW(r, y)
				VCVTPH2PS(y, r)
			}
		}
		VMOVUPS(r, []reg.OpmaskVirtual{kw0, kw1}[i], Mem{Base: to, Disp: 64 * i})
	}
	SHRQ(Imm(16), written)
	JZ(LabelRef("short"))
	Label("long")
	half(0)
	half(1)
	ADDQ(nextSrc, from)
	ADDQ(nextDst, to)
	DECQ(left)
	JNZ(LabelRef("long"))
	JMP(LabelRef("next"))
	Label("short")
	half(0)
	ADDQ(nextSrc, from)
	ADDQ(nextDst, to)
	DECQ(left)
	JNZ(LabelRef("short"))
	Label("next")
	DECQ(count)
	JNZ(LabelRef("piece"))
	VZEROUPPER()
	RET()
}

// gatherWords copies pieces of 16-bit elements as they are.
func gatherWords(step int) {
	name := fmt.Sprintf("gatherWords%dAVX512", step)
	TEXT(name, NOSPLIT, "func(dst, src *uint16, pieces *[3]int64, count, channels, nextSrc, nextDst int)")
	Pragma("noescape")
	what := "elements"
	if step == 2 {
		what = "every second of the elements"
	}
	Doc(name + " copies " + what + " of pieces for all channels. Distances are in bytes.")
	dst, src, pieces, count := param("dst"), param("src"), param("pieces"), param("count")
	nextSrc, nextDst := param("nextSrc"), param("nextDst")
	spread := GP64()
	if step == 2 {
		MOVQ(U64(0x5555555555555555), spread)
	}
	from, to, left := GP64(), GP64(), GP64()
	read, written := GP64(), GP64()
	r := []reg.VecVirtual{ZMM(), ZMM()}
	kr, kw := []reg.OpmaskVirtual{K(), K()}, []reg.OpmaskVirtual{K(), K()}
	Label("piece")
	for i, p := range []struct{ to, base reg.GPVirtual }{{from, src}, {to, dst}} {
		MOVQ(Mem{Base: pieces, Disp: 8 * i}, p.to)
		LEAQ(Mem{Base: p.base, Index: p.to, Scale: 2}, p.to)
	}
	MOVL(Mem{Base: pieces, Disp: 16}, read.As32())
	MOVL(Mem{Base: pieces, Disp: 20}, written.As32())
	ADDQ(Imm(24), pieces)
	Load(Param("channels"), left)
	KMOVD(written.As32(), kw[0])
	if step == 2 {
		PDEPQ(spread, read, read)
		SHRQ(Imm(16), written)
		KMOVD(written.As32(), kw[1])
	}
	KMOVD(read.As32(), kr[0])
	if step == 2 {
		SHRQ(Imm(32), read)
		KMOVD(read.As32(), kr[1])
	}
	Label("channel")
	for i := range step {
		VMOVDQU16_Z(Mem{Base: from, Disp: 64 * i}, kr[i], r[i])
		if step == 1 {
			VMOVDQU16(r[i], kw[i], Mem{Base: to})
			continue
		}
		VPMOVDW(r[i], r[i].(reg.Vec).AsY())
		VMOVDQU16(r[i].(reg.Vec).AsY(), kw[i], Mem{Base: to, Disp: 32 * i})
	}
	ADDQ(nextSrc, from)
	ADDQ(nextDst, to)
	DECQ(left)
	JNZ(LabelRef("channel"))
	DECQ(count)
	JNZ(LabelRef("piece"))
	VZEROUPPER()
	RET()
}
