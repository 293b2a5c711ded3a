package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// acrossVectors is how many vectors of channels the loops across channels take together.
const acrossVectors = 2

// tapsAcross generates a depthwise convolution whose channels lie side by side: for a few vectors of channels, positions
// in groups of few, whose sums stay in registers over all taps. The last group overlaps the one before.
func (t tier) tapsAcross() {
	name := "tapsAcross" + t.name
	TEXT(name, NOSPLIT, "func(dst, src, w *float32, offsets *int, taps, cols, channels, stepSrc, stepDst, rowW int)")
	Pragma("noescape")
	Doc(name+" sets each of cols positions to the last row of w plus the sum over taps of the other rows times src from the",
		fmt.Sprintf("tap's offset on, for a multiple of %d channels. Distances are in bytes, offsets in elements.", acrossVectors*t.lanes()))
	dst, src, w, offsets := param("dst"), param("src"), param("w"), param("offsets")
	stepSrc, stepDst, rowW := param("stepSrc"), param("stepDst"), param("rowW")
	three, start := GP64(), GP64()
	LEAQ(Mem{Base: stepSrc, Index: stepSrc, Scale: 2}, three)
	MOVQ(paramAddr("taps"), start)
	IMULQ(rowW, start)
	acc := make([][acrossVectors]reg.VecVirtual, few)
	for i := range acc {
		for j := range acc[i] {
			acc[i][j] = t.register()
		}
	}
	var value [acrossVectors]reg.VecVirtual
	for j := range value {
		value[j] = t.register()
	}
	left, to, from := GP64(), GP64(), GP64()
	// group computes n positions.
	group := func(n int) {
		for j := range value {
			VMOVUPS(Mem{Base: w, Index: start, Scale: 1, Disp: j * t.width}, value[j])
			for i := range n {
				VMOVAPS(value[j], acc[i][j])
			}
		}
		tap, at, weights := GP64(), GP64(), GP64()
		XORQ(tap, tap)
		MOVQ(w, weights)
		label := fmt.Sprintf("tap%d", n)
		CMPQ(paramAddr("taps"), Imm(0))
		JE(LabelRef(label + "Done"))
		Label(label)
		MOVQ(Mem{Base: offsets, Index: tap, Scale: 8}, at)
		LEAQ(Mem{Base: from, Index: at, Scale: 4}, at)
		for j := range value {
			VMOVUPS(Mem{Base: weights, Disp: j * t.width}, value[j])
		}
		for i := range n {
			m := []Mem{{Base: at}, {Base: at, Index: stepSrc, Scale: 1}, {Base: at, Index: stepSrc, Scale: 2}, {Base: at, Index: three, Scale: 1}}[i]
			for j := range value {
				m.Disp = j * t.width
				VFMADD231PS(m, value[j], acc[i][j])
			}
		}
		ADDQ(rowW, weights)
		INCQ(tap)
		CMPQ(tap, paramAddr("taps"))
		JLT(LabelRef(label))
		Label(label + "Done")
		MOVQ(to, at)
		for i := range n {
			for j := range value {
				VMOVUPS(acc[i][j], Mem{Base: at, Disp: j * t.width})
			}
			ADDQ(stepDst, at)
		}
	}
	back := GP64()
	Label("channels")
	MOVQ(paramAddr("cols"), left)
	MOVQ(dst, to)
	MOVQ(src, from)
	CMPQ(left, Imm(few))
	JL(LabelRef("single"))
	Label("group")
	group(few)
	LEAQ(Mem{Base: to, Index: stepDst, Scale: few}, to)
	LEAQ(Mem{Base: from, Index: stepSrc, Scale: few}, from)
	SUBQ(Imm(few), left)
	JZ(LabelRef("next"))
	CMPQ(left, Imm(few))
	JGE(LabelRef("group"))
	LEAQ(Mem{Base: left, Disp: -few}, back)
	MOVQ(U32(few), left)
	for _, p := range []struct{ at, step reg.GPVirtual }{{to, stepDst}, {from, stepSrc}} {
		bytes := GP64()
		MOVQ(back, bytes)
		IMULQ(p.step, bytes)
		ADDQ(bytes, p.at)
	}
	JMP(LabelRef("group"))
	Label("single")
	group(1)
	ADDQ(stepDst, to)
	ADDQ(stepSrc, from)
	DECQ(left)
	JNZ(LabelRef("single"))
	Label("next")
	for _, p := range []reg.GPVirtual{dst, src, w} {
		ADDQ(Imm(uint64(acrossVectors*t.width)), p)
	}
	SUBQ(Imm(uint64(acrossVectors*t.lanes())), paramAddr("channels"))
	JNZ(LabelRef("channels"))
	VZEROUPPER()
	RET()
}

// dotsAcross generates the gradient of the weights of a depthwise convolution whose channels lie side by side.
func (t tier) dotsAcross() {
	name := "dotsAcross" + t.name
	TEXT(name, NOSPLIT, "func(sums, y, src *float32, offsets *int, rows, cols, channels, rowY, stepY, rowSrc, stepSrc, rowSums int)")
	Pragma("noescape")
	Doc(fmt.Sprintf("%s adds to %d rows of sums, for a multiple of %d channels, the products of rows of positions of y with src from", name, together, acrossVectors*t.lanes()),
		"each of as many offsets on. Distances are in bytes, offsets in elements.")
	sums, y, src, offsets := param("sums"), param("y"), param("src"), param("offsets")
	stepY, stepSrc, rowSums := param("stepY"), param("stepSrc"), param("rowSums")
	var acc [together][acrossVectors]reg.VecVirtual
	var offset [together]reg.GPVirtual
	each := func(move func(m Mem, r reg.VecVirtual)) {
		at := GP64()
		MOVQ(sums, at)
		for i := range acc {
			for j := range acc[i] {
				move(Mem{Base: at, Disp: j * t.width}, acc[i][j])
			}
			ADDQ(rowSums, at)
		}
	}
	for i := range acc {
		offset[i] = GP64()
		MOVQ(Mem{Base: offsets, Disp: 8 * i}, offset[i])
		for j := range acc[i] {
			acc[i][j] = t.register()
		}
	}
	left, from, at, rows, rowFrom, rowAt := GP64(), GP64(), GP64(), GP64(), GP64(), GP64()
	Label("channels")
	each(func(m Mem, r reg.VecVirtual) { VMOVUPS(m, r) })
	MOVQ(paramAddr("rows"), rows)
	MOVQ(y, rowAt)
	MOVQ(src, rowFrom)
	Label("row")
	MOVQ(paramAddr("cols"), left)
	MOVQ(rowAt, at)
	MOVQ(rowFrom, from)
	Label("position")
	for j := range acrossVectors {
		value := t.register()
		VMOVUPS(Mem{Base: at, Disp: j * t.width}, value)
		for i := range acc {
			VFMADD231PS(Mem{Base: from, Index: offset[i], Scale: 4, Disp: j * t.width}, value, acc[i][j])
		}
	}
	ADDQ(stepY, at)
	ADDQ(stepSrc, from)
	DECQ(left)
	JNZ(LabelRef("position"))
	ADDQ(paramAddr("rowY"), rowAt)
	ADDQ(paramAddr("rowSrc"), rowFrom)
	DECQ(rows)
	JNZ(LabelRef("row"))
	each(func(m Mem, r reg.VecVirtual) { VMOVUPS(r, m) })
	for _, p := range []reg.GPVirtual{sums, y, src} {
		ADDQ(Imm(uint64(acrossVectors*t.width)), p)
	}
	SUBQ(Imm(uint64(acrossVectors*t.lanes())), paramAddr("channels"))
	JNZ(LabelRef("channels"))
	VZEROUPPER()
	RET()
}
