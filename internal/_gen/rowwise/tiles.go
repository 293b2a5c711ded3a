package main

import (
	"math"

	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"

	"github.com/snug-ml/snug/internal/_gen/gemm/avx512bf16"

	"github.com/snug-ml/snug/internal/_gen/half/vec"
)

// The registers of a loop over rows of a tile, which takes 32 elements at a time: scores and
// gradients, temporaries, what is broadcast, and masks. They are physical, since
// VCVTNE2PS2BF16 takes no others.
var (
	scores    = [2]reg.VecPhysical{reg.Z0, reg.Z1}
	others    = [2]reg.VecPhysical{reg.Z2, reg.Z3}
	powers    = [2]reg.VecPhysical{reg.Z4, reg.Z5}
	whole     = [2]reg.VecPhysical{reg.Z6, reg.Z7}
	totals    = [2]reg.VecPhysical{reg.Z8, reg.Z9}
	factorReg = reg.Z10
	baseReg   = reg.Z11
	lowReg    = reg.Z12
	deltaReg  = reg.Z13
	scaleReg  = reg.Z14
	lowHalf   = reg.Z15
	powerRegs = []reg.VecPhysical{reg.Z16, reg.Z17, reg.Z18, reg.Z19, reg.Z20, reg.Z21, reg.Z22}
	counts    = [2]reg.OpmaskPhysical{reg.K1, reg.K2}
	normal    = [2]reg.OpmaskPhysical{reg.K3, reg.K4}
)

var powerCoefficients = []float32{0.0001559467754900736, 0.001340664390501221,
	0.009617692974894307, 0.05550310550995927, 0.24022652782876044, 0.6931472149680394, 1}

// load returns a parameter in a register.
func load(name string) reg.GPVirtual {
	return Load(Param(name), GP64()).(reg.GPVirtual)
}

// beginTile begins a function.
func beginTile(name, doc, signature string) {
	vec.Func(name, signature, name+" "+doc)
}

func broadcastConstant(x float32, to reg.VecPhysical) {
	VBROADCASTSS(lanesOf(math.Float32bits(x)), to)
}

func broadcastParam(name string, to reg.VecPhysical) { VBROADCASTSS(parameter(name), to) }

// powerConstants loads what power2s takes.
func powerConstants() {
	for i, c := range powerCoefficients {
		broadcastConstant(c, powerRegs[i])
	}
	broadcastConstant(minExponent, lowReg)
}

// loadRange loads the range of keys that the row sees.
func loadRange(sees, lo, hi reg.GPVirtual) {
	MOVQ(operand.Mem{Base: sees}, lo)
	MOVQ(operand.Mem{Base: sees, Disp: 8}, hi)
	ADDQ(parameter("at"), lo)
	ADDQ(parameter("at"), hi)
}

// countMasks sets counts to the elements position to position+31 that lie from lo to hi-1.
func countMasks(position, lo, hi, zero, most, ones reg.GPVirtual) {
	first, last := GP64(), GP64()
	for _, r := range []struct{ bound, bits reg.GPVirtual }{{lo, first}, {hi, last}} {
		n := GP64()
		MOVQ(r.bound, n)
		SUBQ(position, n)
		CMOVQLT(zero, n)
		CMPQ(n, most)
		CMOVQGT(most, n)
		BZHIQ(n, ones, r.bits)
	}
	ANDNQ(last, first, last)
	KMOVW(last.As32(), counts[0])
	SHRQ(operand.Imm(16), last)
	KMOVW(last.As32(), counts[1])
}

// power2s replaces scores by 2^(factor·score − base) in powers, as exp2 of
// internal/rowwise computes it, and by 0 where counts says so.
func power2s() {
	each := func(do func(u int)) { do(0); do(1) }
	each(func(u int) { VMULPS(factorReg, scores[u], scores[u]) })
	each(func(u int) { VSUBPS(baseReg, scores[u], scores[u]) })
	each(func(u int) { VRNDSCALEPS(nearest, scores[u], whole[u]) })
	each(func(u int) { VCMPPS(notBelow, lowReg, scores[u], counts[u], normal[u]) })
	each(func(u int) { VSUBPS(whole[u], scores[u], scores[u]) })
	each(func(u int) { VMOVAPS(powerRegs[0], powers[u]) })
	for _, c := range powerRegs[1:] {
		each(func(u int) { VFMADD213PS(c, scores[u], powers[u]) })
	}
	each(func(u int) { VSCALEFPS_Z(whole[u], powers[u], normal[u], powers[u]) })
}

// storeSum adds the lanes of totals and stores the sum.
func storeSum(to operand.Mem) {
	VADDPS(totals[1], totals[0], totals[0])
	reduce(VADDPS)
	VMOVSS(reg.X8, to)
}

// reduce combines the lanes of totals[0] in its first.
func reduce(op func(ops ...operand.Op)) {
	VEXTRACTF64X4(orderOf1, reg.Z8, reg.Y9)
	op(reg.Y9, reg.Y8, reg.Y8)
	VEXTRACTF128(orderOf1, reg.Y8, reg.X9)
	op(reg.X9, reg.X8, reg.X8)
	VPERMILPS(operand.U8(0x4e), reg.X8, reg.X9)
	op(reg.X9, reg.X8, reg.X8)
	VPERMILPS(swapPairs, reg.X8, reg.X9)
	op(reg.X9, reg.X8, reg.X8)
}

// tileLoop is a loop over the rows of a tile and, within, over 32 elements at a time. Few
// registers are left for what a row needs once, which stays in memory.
type tileLoop struct {
	row, lo, hi, zero, most, ones, position reg.GPVirtual
}

func newTileLoop() *tileLoop {
	l := &tileLoop{row: GP64(), lo: GP64(), hi: GP64(), zero: GP64(), most: GP64(), ones: GP64(), position: GP64()}
	XORQ(l.row, l.row)
	XORQ(l.zero, l.zero)
	MOVQ(operand.U32(32), l.most)
	MOVQ(operand.U64(math.MaxUint64), l.ones)
	return l
}

// element returns the place of the row's element of a parameter of floats.
func (l *tileLoop) element(name string) operand.Mem {
	return operand.Mem{Base: load(name), Index: l.row, Scale: 4}
}

// do emits the loop over rows: before, then chunk for every 32 elements, then after.
func (l *tileLoop) do(before, chunk, after func()) {
	Label("row")
	sees := GP64()
	MOVQ(l.row, sees)
	SHLQ(operand.Imm(4), sees)
	ADDQ(parameter("sees"), sees)
	loadRange(sees, l.lo, l.hi)
	before()
	XORQ(l.position, l.position)
	Label("chunk")
	countMasks(l.position, l.lo, l.hi, l.zero, l.most, l.ones)
	chunk()
	ADDQ(operand.Imm(32), l.position)
	CMPQ(l.position, parameter("cols"))
	JLT(operand.LabelRef("chunk"))
	after()
	INCQ(l.row)
	CMPQ(l.row, parameter("rows"))
	JLT(operand.LabelRef("row"))
	VZEROUPPER()
	RET()
}

func zeroTotals() {
	for _, t := range totals {
		VPXORD(t, t, t)
	}
}

// maxRows generates the maxima of rows.
func maxRows() {
	beginTile("maxRowsAVX512", "is maxRows for one row or more, on vectors. Distances are in bytes.",
		"func(most, x *float32, sees *int, rows, stride, at int, scale float32)")
	most, x, sees := load("most"), load("x"), load("sees")
	rows, stride := load("rows"), load("stride")
	lo, left := GP64(), GP64()
	broadcastParam("scale", factorReg)
	acc := []reg.VecPhysical{reg.Z8, reg.Z9, reg.Z4, reg.Z5}
	Label("row")
	loadRange(sees, lo, left)
	SUBQ(lo, left)
	LEAQ(operand.Mem{Base: x, Index: lo, Scale: 4}, lo)
	for _, a := range acc {
		VBROADCASTSS(operand.Mem{Base: most}, a)
	}
	group := func(label, next string, n int) {
		Label(label)
		CMPQ(left, operand.U32(16*n))
		JLT(operand.LabelRef(next))
		for u := range n {
			VMULPS(operand.Mem{Base: lo, Disp: 64 * u}, factorReg, scores[u%2])
			VMAXPS(acc[u], scores[u%2], acc[u]) // the accumulator stays when x is NaN
		}
		ADDQ(operand.U32(64*n), lo)
		SUBQ(operand.U32(16*n), left)
		JMP(operand.LabelRef(label))
	}
	group("group", "vectors", 4)
	group("vectors", "tail", 1)
	Label("tail")
	CMPQ(left, operand.Imm(0))
	JLE(operand.LabelRef("reduce"))
	bits := GP64()
	MOVQ(operand.U32(0xffff), bits)
	BZHIQ(left, bits, bits)
	KMOVW(bits.As32(), counts[0])
	VMOVUPS_Z(operand.Mem{Base: lo}, counts[0], scores[0])
	VMULPS(factorReg, scores[0], scores[0])
	VMAXPS(acc[0], scores[0], counts[0], acc[0])
	Label("reduce")
	VMAXPS(acc[2], acc[0], acc[0])
	VMAXPS(acc[3], acc[1], acc[1])
	VMAXPS(acc[1], acc[0], acc[0])
	reduce(VMAXPS)
	VMOVSS(reg.X8, operand.Mem{Base: most})
	ADDQ(operand.Imm(4), most)
	ADDQ(operand.Imm(16), sees)
	ADDQ(stride, x)
	DECQ(rows)
	JNZ(operand.LabelRef("row"))
	VZEROUPPER()
	RET()
}

// exp2Rows generates the weights of rows, in place or as bfloat16 in panels.
func exp2Rows(pairs bool) {
	if pairs {
		beginTile("exp2Pairs", "is exp2Rows to rows of bfloat16, 64 bytes apart, in pieces of 32 elements that lie next bytes apart.",
			"func(sums *float32, dst *uint16, x *float32, sees *int, base *float32, rows, cols, stride, at, next int, scale float32)")
	} else {
		beginTile("exp2RowsAVX512", "is exp2Rows for one row or more, on vectors. Distances are in bytes.",
			"func(sums, x *float32, sees *int, base *float32, rows, cols, stride, at int, scale float32)")
	}
	x := load("x")
	powerConstants()
	broadcastParam("scale", factorReg)
	l := newTileLoop()
	var dst, to reg.GPVirtual
	if pairs {
		dst, to = load("dst"), GP64()
	}
	l.do(func() {
		VBROADCASTSS(l.element("base"), baseReg)
		zeroTotals()
		if pairs {
			MOVQ(dst, to)
		}
	}, func() {
		for u := range 2 {
			VMOVUPS(operand.Mem{Base: x, Index: l.position, Scale: 4, Disp: 64 * u}, scores[u])
		}
		power2s()
		for u := range 2 {
			VADDPS(powers[u], totals[u], totals[u])
		}
		if pairs {
			avx512bf16.VCVTNE2PS2BF16(powers[0], powers[1], lowHalf)
			VMOVDQU64(lowHalf, operand.Mem{Base: to})
			ADDQ(parameter("next"), to)
			return
		}
		for u := range 2 {
			VMOVUPS(powers[u], operand.Mem{Base: x, Index: l.position, Scale: 4, Disp: 64 * u})
		}
	}, func() {
		storeSum(l.element("sums"))
		ADDQ(parameter("stride"), x)
		if pairs {
			ADDQ(operand.Imm(64), dst)
		}
	})
}

// gradRows generates the weights of rows and the gradients of the products.
func gradRows() {
	beginTile("gradRowsAVX512", "is gradRows for one row or more, on vectors. Distances are in bytes.",
		"func(ds, x *float32, sees *int, base, delta *float32, rows, cols, stride, at int, scale, scaleGrad float32)")
	ds, x := load("ds"), load("x")
	powerConstants()
	broadcastParam("scale", factorReg)
	broadcastParam("scaleGrad", scaleReg)
	l := newTileLoop()
	l.do(func() {
		VBROADCASTSS(l.element("base"), baseReg)
		VBROADCASTSS(l.element("delta"), deltaReg)
	}, func() {
		for u := range 2 {
			at := operand.Mem{Index: l.position, Scale: 4, Disp: 64 * u}
			at.Base = x
			VMOVUPS(at, scores[u])
			at.Base = ds
			VMOVUPS(at, others[u])
		}
		power2s()
		for u := range 2 {
			at := operand.Mem{Index: l.position, Scale: 4, Disp: 64 * u}
			VSUBPS(deltaReg, others[u], others[u])
			VMULPS(powers[u], others[u], others[u])
			VMULPS_Z(scaleReg, others[u], counts[u], others[u])
			at.Base = x
			VMOVUPS(powers[u], at)
			at.Base = ds
			VMOVUPS(others[u], at)
		}
	}, func() {
		ADDQ(parameter("stride"), x)
		ADDQ(parameter("stride"), ds)
	})
}

// gradPairs generates gradRows with results of bfloat16, two rows at a time.
func gradPairs() {
	beginTile("gradPairs", "is gradRows for one pair of rows or more. A mask has a bit for every element that counts. Distances are in bytes.",
		"func(p, dsAcross, ds *uint16, x, dp *float32, masks *uint32, base, delta *float32, rows, cols, stride, maskRow, nextAcross, next int, scale, scaleGrad float32)")
	p, across, ds := load("p"), load("dsAcross"), load("ds")
	x, dp, masks, row := load("x"), load("dp"), load("masks"), GP64()
	powerConstants()
	broadcastParam("scale", factorReg)
	broadcastParam("scaleGrad", scaleReg)
	order := reg.Z15
	VMOVDQU64(symbol("pairOrder", pairOrder()...), order)
	first := [2][2]reg.VecPhysical{{reg.Z23, reg.Z24}, {reg.Z25, reg.Z26}} // of the upper row: p, ds
	XORQ(row, row)
	Label("row")
	position, toP, toAcross, to := GP64(), GP64(), GP64(), GP64()
	XORQ(position, position)
	MOVQ(p, toP)
	MOVQ(across, toAcross)
	MOVQ(ds, to)
	Label("chunk")
	for lower := range 2 {
		table, mask := GP64(), GP64()
		MOVQ(parameter("base"), table)
		VBROADCASTSS(operand.Mem{Base: table, Index: row, Scale: 4, Disp: 4 * lower}, baseReg)
		MOVQ(parameter("delta"), table)
		VBROADCASTSS(operand.Mem{Base: table, Index: row, Scale: 4, Disp: 4 * lower}, deltaReg)
		MOVQ(position, mask)
		SHRQ(operand.Imm(3), mask)
		if lower == 1 {
			ADDQ(parameter("maskRow"), mask)
		}
		ADDQ(masks, mask)
		KMOVW(operand.Mem{Base: mask}, counts[0])
		KMOVW(operand.Mem{Base: mask, Disp: 2}, counts[1])
		from, grads := GP64(), GP64()
		LEAQ(operand.Mem{Base: x, Index: position, Scale: 4}, from)
		LEAQ(operand.Mem{Base: dp, Index: position, Scale: 4}, grads)
		if lower == 1 {
			ADDQ(parameter("stride"), from)
			ADDQ(parameter("stride"), grads)
		}
		for u := range 2 {
			VMOVUPS(operand.Mem{Base: from, Disp: 64 * u}, scores[u])
			VMOVUPS(operand.Mem{Base: grads, Disp: 64 * u}, others[u])
		}
		power2s()
		for u := range 2 {
			VSUBPS(deltaReg, others[u], others[u])
			VMULPS(powers[u], others[u], others[u])
			VMULPS_Z(scaleReg, others[u], counts[u], others[u])
		}
		avx512bf16.VCVTNE2PS2BF16(others[0], others[1], whole[0])
		VMOVDQU64(whole[0], operand.Mem{Base: to, Disp: 64 * lower})
		if lower == 0 {
			for u := range 2 {
				VMOVAPS(powers[u], first[0][u])
				VMOVAPS(others[u], first[1][u])
			}
		}
	}
	for u := range 2 {
		avx512bf16.VCVTNE2PS2BF16(first[0][u], powers[u], whole[0])
		avx512bf16.VCVTNE2PS2BF16(first[1][u], others[u], whole[1])
		VPERMW(whole[0], order, whole[0])
		VPERMW(whole[1], order, whole[1])
		VMOVDQU64(whole[0], operand.Mem{Base: toP, Disp: 1024 * u})
		VMOVDQU64(whole[1], operand.Mem{Base: toAcross, Disp: 1024 * u})
	}
	ADDQ(parameter("nextAcross"), toP)
	ADDQ(parameter("nextAcross"), toAcross)
	ADDQ(parameter("next"), to)
	ADDQ(operand.Imm(32), position)
	CMPQ(position, parameter("cols"))
	JLT(operand.LabelRef("chunk"))
	for range 2 {
		ADDQ(parameter("stride"), x)
		ADDQ(parameter("stride"), dp)
		ADDQ(parameter("maskRow"), masks)
	}
	ADDQ(operand.Imm(64), p)
	ADDQ(operand.Imm(64), across)
	ADDQ(operand.U32(128), ds)
	ADDQ(operand.Imm(2), row)
	CMPQ(row, parameter("rows"))
	JLT(operand.LabelRef("row"))
	VZEROUPPER()
	RET()
}

// pairOrder are the words that put those of the upper half between those of the lower one.
func pairOrder() (order []uint32) {
	for i := range uint32(16) {
		order = append(order, i|(i+16)<<16)
	}
	return order
}
