package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// words returns a predicate of the first n of 32 words; n may be any number.
func words(n reg.GPVirtual) reg.OpmaskVirtual {
	mask, most, k := GP64(), GP64(), K()
	MOVQ(n, mask)
	MOVQ(U32(32), most)
	CMPQ(mask, most)
	CMOVQGT(most, mask)
	MOVQ(U64(1<<64-1), most)
	BZHIQ(mask, most, most)
	KMOVD(most.As32(), k)
	return k
}

// together is how many steps copyPairs copies of a line before the next.
const together = 4

// copyPairs generates the packing of lines that run along the depth to tiles
// of A.
func copyPairs() {
	TEXT("copyPairs", NOSPLIT, "func(dst, src *uint16, lines, depth, stride int)")
	Pragma("noescape")
	Doc("copyPairs copies at most 32 lines, stride bytes apart, to a panel of A. What",
		"lines or depth lack of a multiple of 32 becomes 0.")
	dst, src := Load(Param("dst"), GP64()), Load(Param("src"), GP64())
	depth, stride := Load(Param("depth"), GP64()).(reg.GPVirtual), Load(Param("stride"), GP64())
	zero, r := ZMM(), ZMM()
	VPXORD(zero, zero, zero)
	from, to, left, empty := GP64(), GP64(), GP64(), GP64()

	steps := func(label string, n int, load func(i int)) {
		MOVQ(src, from)
		MOVQ(dst, to)
		Load(Param("lines"), left)
		MOVQ(U32(panel), empty)
		SUBQ(left, empty)
		Label(label)
		for i := range n {
			load(i)
			VMOVDQU64(r, Mem{Base: to, Disp: i * stepBytes})
		}
		ADDQ(stride, from)
		ADDQ(Imm(64), to)
		DECQ(left)
		JNZ(LabelRef(label))
		TESTQ(empty, empty)
		JZ(LabelRef(label + "Full"))
		Label(label + "Empty")
		for i := range n {
			VMOVDQU64(zero, Mem{Base: to, Disp: i * stepBytes})
		}
		ADDQ(Imm(64), to)
		DECQ(empty)
		JNZ(LabelRef(label + "Empty"))
		Label(label + "Full")
		ADDQ(U32(64*n), src)
		ADDQ(U32(stepBytes*n), dst)
		SUBQ(U32(stepDeep*n), depth)
	}
	Label("many")
	CMPQ(depth, Imm(stepDeep*together))
	JLT(LabelRef("one"))
	steps("lines", together, func(i int) {
		VMOVDQU64(Mem{Base: from, Disp: 64 * i}, r)
		PREFETCHT0(Mem{Base: from, Disp: 64 * (together + i)})
	})
	JMP(LabelRef("many"))
	Label("one")
	CMPQ(depth, Imm(0))
	JLE(LabelRef("done"))
	k := words(depth)
	steps("rest", 1, func(int) { VMOVDQU16_Z(Mem{Base: from}, k, r) })
	JMP(LabelRef("one"))
	Label("done")
	VZEROUPPER()
	RET()
}

// interleavePairs generates the packing of rows that lie across the lines to
// tiles of B.
func interleavePairs() {
	order := GLOBL("pairOrder", RODATA|NOPTR)
	// Unpacking interleaves within 128 bits; of the registers with the lower and
	// the upper halves, these quadwords make lines 0 to 15, then 16 to 31.
	for i, q := range []uint64{0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15} {
		DATA(8*i, U64(q))
	}
	TEXT("interleavePairs", NOSPLIT, "func(dst, src *uint16, panels, lines, depth, stride, next int)")
	Pragma("noescape")
	Doc("interleavePairs packs depth rows, stride bytes apart, to panels of B, next bytes",
		"apart, the last of at most 32 lines. What lines or depth lack of a multiple of 32",
		"becomes 0.")
	dst, src := Load(Param("dst"), GP64()), Load(Param("src"), GP64())
	depth, stride := Load(Param("depth"), GP64()), Load(Param("stride"), GP64())
	next := Load(Param("next"), GP64())
	full, k := words(constant(panel)), K()
	last := words(Load(Param("lines"), GP64()).(reg.GPVirtual))
	first, second := ZMM(), ZMM()
	VMOVDQU64(order, first)
	VMOVDQU64(order.Offset(64), second)
	even, odd, low, high, x, y := ZMM(), ZMM(), ZMM(), ZMM(), ZMM(), ZMM()
	left, far, panels, from, to := GP64(), GP64(), GP64(), GP64(), GP64()
	MOVQ(stride, far)
	CMPQ(stride, U32(farStride))
	JG(LabelRef("far"))
	SHLQ(Imm(2), far)
	Label("far")
	SHLQ(Imm(ahead+1), far)
	Label("step")
	MOVQ(U32(stepDeep/2), left)
	Label("pair")
	MOVQ(src, from)
	MOVQ(dst, to)
	Load(Param("panels"), panels)
	Label("panel")
	KMOVD(full, k)
	CMPQ(panels, Imm(1))
	JNE(LabelRef("whole"))
	KMOVD(last, k)
	Label("whole")
	VPXORD(even, even, even)
	VPXORD(odd, odd, odd)
	CMPQ(depth, Imm(0))
	JLE(LabelRef("store"))
	VMOVDQU16_Z(Mem{Base: from}, k, even)
	PREFETCHT1(Mem{Base: from, Index: far, Scale: 1})
	CMPQ(depth, Imm(1))
	JE(LabelRef("store"))
	ADDQ(stride, from)
	VMOVDQU16_Z(Mem{Base: from}, k, odd)
	PREFETCHT1(Mem{Base: from, Index: far, Scale: 1})
	SUBQ(stride, from)
	Label("store")
	VPUNPCKLWD(odd, even, low)
	VPUNPCKHWD(odd, even, high)
	VMOVDQA64(first, x)
	VMOVDQA64(second, y)
	VPERMI2Q(high, low, x)
	VPERMI2Q(high, low, y)
	VMOVDQU64(x, Mem{Base: to})
	VMOVDQU64(y, Mem{Base: to, Disp: tileBytes})
	ADDQ(Imm(64), from)
	ADDQ(next, to)
	DECQ(panels)
	JNZ(LabelRef("panel"))
	LEAQ(Mem{Base: src, Index: stride, Scale: 2}, src)
	SUBQ(Imm(2), depth)
	ADDQ(Imm(64), dst)
	DECQ(left)
	JNZ(LabelRef("pair"))
	ADDQ(U32(stepBytes-tileBytes), dst)
	CMPQ(depth, Imm(0))
	JG(LabelRef("step"))
	VZEROUPPER()
	RET()
}

// farStride is the most bytes between rows at which 64 rows fit into the second cache, where only some of its sets
// take them.
const farStride = 8 << 10

func constant(n uint32) reg.GPVirtual {
	r := GP64()
	MOVQ(U32(n), r)
	return r
}

// transposePairs generates the packing of lines that run along the depth to tiles of B: the 16 × 16 pairs of 16
// lines are transposed.
func transposePairs() {
	TEXT("transposePairs", NOSPLIT, "func(dst, src *uint16, lines, depth, stride int)")
	Pragma("noescape")
	Doc("transposePairs packs at most 16 lines, stride bytes apart, to the tiles of half a panel of B. What depth",
		"lacks of a multiple of 32 becomes 0. Lines beyond the last repeat it.")
	dst, src := Load(Param("dst"), GP64()), Load(Param("src"), GP64())
	lines, depth, stride := Load(Param("lines"), GP64()), Load(Param("depth"), GP64()).(reg.GPVirtual), Load(Param("stride"), GP64())
	after := GP64()
	MOVQ(stride, after)
	SHLQ(Imm(4), after)
	from, next := GP64(), GP64()
	k := words(constant(stepDeep))
	Label("step")
	CMPQ(depth, Imm(stepDeep))
	JGE(LabelRef("whole"))
	CMPQ(depth, Imm(0))
	JLE(LabelRef("done"))
	KMOVD(words(depth), k)
	Label("whole")
	MOVQ(src, from)
	in := make([]reg.VecVirtual, 16)
	for i := range in {
		in[i] = ZMM()
		VMOVDQU16_Z(Mem{Base: from}, k, in[i])
		PREFETCHT1(Mem{Base: from, Index: after, Scale: 1})
		if i < 15 {
			LEAQ(Mem{Base: from, Index: stride, Scale: 1}, next)
			CMPQ(lines, Imm(uint64(i+1)))
			CMOVQGT(next, from)
		}
	}
	for i, r := range tiers[1].transpose(in) {
		VMOVUPS(r, Mem{Base: dst, Disp: 64 * i})
	}
	ADDQ(Imm(64), src)
	ADDQ(U32(stepBytes), dst)
	SUBQ(Imm(stepDeep), depth)
	JMP(LabelRef("step"))
	Label("done")
	VZEROUPPER()
	RET()
}

// transposeTiles generates what makes tiles of A of tiles of B, and back.
func transposeTiles() {
	TEXT("transposeTiles", NOSPLIT, "func(tiles *uint16, n int)")
	Pragma("noescape")
	Doc("transposeTiles transposes the 16 × 16 pairs of each of n tiles.")
	at, n := Load(Param("tiles"), GP64()), Load(Param("n"), GP64())
	Label("tile")
	in := make([]reg.VecVirtual, 16)
	for i := range in {
		in[i] = ZMM()
		VMOVUPS(Mem{Base: at, Disp: 64 * i}, in[i])
	}
	for i, r := range tiers[1].transpose(in) {
		VMOVUPS(r, Mem{Base: at, Disp: 64 * i})
	}
	ADDQ(U32(tileBytes), at)
	DECQ(n)
	JNZ(LabelRef("tile"))
	VZEROUPPER()
	RET()
}
