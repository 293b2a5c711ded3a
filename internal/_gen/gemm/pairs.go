package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"

	"github.com/snug-ml/snug/internal/_gen/gemm/amx"
	"github.com/snug-ml/snug/internal/_gen/gemm/avx512bf16"
	"github.com/snug-ml/snug/internal/_gen/half/vec"
)

// The layout of bfloat16 operands that are multiplied by pairs: panels of 32
// lines, which are rows of A or columns of B, in steps of 32 deep. A step is
// two tiles of 1 KiB, 16 lines each. A tile of A has a row of 64 bytes a line,
// one of B a row for every pair of the depth, with 4 bytes a line.
const (
	tileBytes = 1024
	stepBytes = 2 * tileBytes
	stepDeep  = 32
	panel     = 32
)

// pairs generates what multiplies and packs bfloat16.
func pairs() {
	mulAMX()
	mulDot(vec.Float32)
	mulDot(vec.BFloat16)
	copyPairs()
	interleavePairs()
	transposePairs()
	transposeTiles()
	for _, e := range vec.Elems {
		finishPairs(e)
	}
}

// stepsAhead is how far ahead mulAMX prefetches.
const stepsAhead = 2

// mulAMX keeps 32 × 32 sums in 4 tiles and loads 2 of each operand a step.
func mulAMX() {
	config := GLOBL("tileConfig", RODATA|NOPTR)
	for i := range 8 {
		word := uint64(0)
		switch i {
		case 0:
			word = 1 // the palette
		case 2, 3: // bytes of a row, for 4 tiles each
			word = 64 * 0x0001_0001_0001_0001
		case 6: // rows of every tile
			word = 16 * 0x0101_0101_0101_0101
		}
		DATA(8*i, U64(word))
	}
	TEXT("mulAMX", NOSPLIT, "func(a, b *uint16, c *float32, panels, steps, nextA, nextB, nextC, rowC, add int)")
	Pragma("noescape")
	Doc("mulAMX multiplies panels of A and B, 32 rows and columns, over the depth of steps,",
		"with AMX, and does so for panels places: a, b and c move on by nextA, nextB",
		"and nextC bytes. Rows of c are rowC bytes apart. It adds to c if add is not 0.")
	a, b, c := reg.RAX, reg.RBX, reg.RDX
	stride, panels := reg.RCX, reg.R8
	atA, atB, low, left, rowC, add := reg.RSI, reg.RDI, reg.RBP, reg.R9, reg.R10, reg.R11
	LEAQ(config, atA)
	amx.LDTILECFG(atA)
	Load(Param("a"), a)
	Load(Param("b"), b)
	Load(Param("c"), c)
	Load(Param("panels"), panels)
	Load(Param("rowC"), rowC)
	Load(Param("add"), add)

	// sums calls do for every tile of c.
	sums := func(do func(t amx.Tile, base reg.GPPhysical, disp int32)) {
		MOVQ(rowC, stride)
		MOVQ(rowC, low)
		SHLQ(Imm(4), low)
		ADDQ(c, low)
		do(0, c, 0)
		do(1, c, 64)
		do(2, low, 0)
		do(3, low, 64)
	}
	Label("panel")
	TESTQ(add, add)
	JZ(LabelRef("zero"))
	sums(func(t amx.Tile, base reg.GPPhysical, disp int32) { amx.TILELOADD(base, disp, t) })
	JMP(LabelRef("multiply"))
	Label("zero")
	for t := range amx.Tile(4) {
		amx.TILEZERO(t)
	}
	Label("multiply")
	MOVQ(a, atA)
	MOVQ(b, atB)
	MOVQ(U32(64), stride)
	MOVQ(c, low)
	for range panel {
		PREFETCHT1(Mem{Base: low})
		PREFETCHT1(Mem{Base: low, Disp: 64})
		ADDQ(rowC, low)
	}
	Load(Param("steps"), left)
	Label("step")
	prefetch := func(quarter int) { // these lines would come too late by themselves
		for line := range 8 {
			PREFETCHT0(Mem{Base: atA, Disp: stepsAhead*stepBytes + 512*quarter + 64*line})
			PREFETCHT0(Mem{Base: atB, Disp: stepsAhead*stepBytes + 512*quarter + 64*line})
		}
	}
	amx.TILELOADD(atB, 0, 6)
	amx.TILELOADD(atA, 0, 4)
	amx.TDPBF16PS(4, 6, 0)
	prefetch(0)
	amx.TILELOADD(atB, tileBytes, 7)
	amx.TDPBF16PS(4, 7, 1)
	prefetch(1)
	amx.TILELOADD(atA, tileBytes, 5)
	amx.TDPBF16PS(5, 6, 2)
	prefetch(2)
	amx.TDPBF16PS(5, 7, 3)
	prefetch(3)
	ADDQ(U32(stepBytes), atA)
	ADDQ(U32(stepBytes), atB)
	DECQ(left)
	JNZ(LabelRef("step"))
	sums(func(t amx.Tile, base reg.GPPhysical, disp int32) { amx.TILESTORED(t, base, disp) })
	ADDQ(paramAddr("nextA"), a)
	ADDQ(paramAddr("nextB"), b)
	ADDQ(paramAddr("nextC"), c)
	DECQ(panels)
	JNZ(LabelRef("panel"))
	amx.TILERELEASE()
	RET()
}

// dotRows is how many rows of 2 vectors mulDot has under way.
const dotRows = 8

// dotAhead is how many steps ahead mulDot fetches. Panels of a great depth come from the second cache, or
// from the third, and the kernel reads those of A in pieces, which the processor does not foresee.
const dotAhead = 2

var vectors = []reg.VecPhysical{
	reg.Z0, reg.Z1, reg.Z2, reg.Z3, reg.Z4, reg.Z5, reg.Z6, reg.Z7, reg.Z8, reg.Z9,
	reg.Z10, reg.Z11, reg.Z12, reg.Z13, reg.Z14, reg.Z15, reg.Z16, reg.Z17, reg.Z18, reg.Z19,
}

const dotSignature = "func(a, b *uint16, c *%s, rows, panels, steps, nextA, nextB, nextC, rowC, add int)"

// mulDot keeps 8 × 32 sums in registers. With C of bfloat16 it rounds them there.
func mulDot(e vec.Elem) {
	name := "mulDot" + e.Name
	TEXT(name, NOSPLIT, fmt.Sprintf(dotSignature, e.Go))
	Pragma("noescape")
	Doc(name+" multiplies panels of A and B, rows rows, rounded up to a multiple of 8, and 32 columns, over the depth",
		"of steps, with the dot product of AVX512_BF16, and does so for panels places: a, b and c",
		"move on by nextA, nextB and nextC bytes. Rows of c are rowC bytes apart. It adds to c if add is not 0.")
	a, b, c, panels := reg.RAX, reg.RBX, reg.RDX, reg.R8
	from, atA, atB, atC, low, steps, left, rows, rowC := reg.R11, reg.RSI, reg.RDI, reg.R12, reg.R10, reg.R9, reg.RCX, reg.R13, reg.R15
	ahead := reg.RBP
	acc, b0, b1, value := vectors[:2*dotRows], vectors[16], vectors[17], vectors[18]
	Load(Param("a"), a)
	Load(Param("b"), b)
	Load(Param("c"), c)
	Load(Param("panels"), panels)
	Load(Param("rowC"), rowC)
	vector := 16 * e.Size // bytes of a vector's elements in C
	eachRow := func(do func(i int, at Mem)) {
		MOVQ(atC, low)
		for i := range dotRows {
			do(i, Mem{Base: low})
			ADDQ(rowC, low)
		}
	}
	Label("panel")
	MOVQ(c, atC)
	MOVQ(a, from)
	Load(Param("rows"), rows)

	Label("rows")
	if e == vec.Float32 {
		CMPQ(paramAddr("add"), Imm(0))
		JE(LabelRef("zero"))
		eachRow(func(i int, at Mem) {
			VMOVUPS(at, acc[2*i])
			VMOVUPS(at.Offset(vector), acc[2*i+1])
		})
		JMP(LabelRef("multiply"))
		Label("zero")
	}
	eachRow(func(_ int, at Mem) {
		PREFETCHT0(at)
		PREFETCHT0(at.Offset(2*vector - 1))
	})
	for _, r := range acc {
		VPXORD(r, r, r)
	}
	Label("multiply")
	MOVQ(from, atA)
	MOVQ(b, atB)
	LEAQ(Mem{Base: from, Disp: dotAhead * stepBytes}, ahead)
	Load(Param("steps"), steps)
	Label("step")
	MOVQ(U32(stepDeep/4), left)
	Label("pairs")
	PREFETCHT0(Mem{Base: ahead}) // the rows of A
	for p := range 2 {
		PREFETCHT0(Mem{Base: atB, Disp: dotAhead*stepBytes + 64*p})
		PREFETCHT0(Mem{Base: atB, Disp: dotAhead*stepBytes + tileBytes + 64*p})
		VMOVUPS(Mem{Base: atB, Disp: 64 * p}, b0)
		VMOVUPS(Mem{Base: atB, Disp: 64*p + tileBytes}, b1)
		for i := range dotRows {
			VPBROADCASTD(Mem{Base: atA, Disp: 64*i + 4*p}, value)
			avx512bf16.VDPBF16PS(value, b0, acc[2*i])
			avx512bf16.VDPBF16PS(value, b1, acc[2*i+1])
		}
	}
	ADDQ(Imm(8), atA)
	ADDQ(Imm(64), ahead)
	ADDQ(U32(128), atB)
	DECQ(left)
	JNZ(LabelRef("pairs"))
	ADDQ(U32(stepBytes-64), atA)
	ADDQ(U32(stepBytes-64*dotRows), ahead)
	ADDQ(U32(stepBytes-tileBytes), atB)
	DECQ(steps)
	JNZ(LabelRef("step"))
	if e == vec.Float32 {
		eachRow(func(i int, at Mem) {
			VMOVUPS(acc[2*i], at)
			VMOVUPS(acc[2*i+1], at.Offset(vector))
		})
	} else {
		round := vec.AVX512.Rounder(e)
		eachRow(func(i int, at Mem) {
			for half := range 2 {
				sum := ZMM()
				VMOVAPS(acc[2*i+half], sum)
				VMOVUPS(round(sum), at.Offset(vector*half))
			}
		})
	}
	MOVQ(low, atC)
	ADDQ(U32(64*dotRows), from)
	SUBQ(Imm(dotRows), rows)
	JG(LabelRef("rows"))

	ADDQ(paramAddr("nextA"), a)
	ADDQ(paramAddr("nextB"), b)
	ADDQ(paramAddr("nextC"), c)
	DECQ(panels)
	JNZ(LabelRef("panel"))
	VZEROUPPER()
	RET()
}

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
	PREFETCHT0(Mem{Base: from, Index: far, Scale: 1})
	CMPQ(depth, Imm(1))
	JE(LabelRef("store"))
	ADDQ(stride, from)
	VMOVDQU16_Z(Mem{Base: from}, k, odd)
	PREFETCHT0(Mem{Base: from, Index: far, Scale: 1})
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
	tile := func(load func(m Mem, r reg.VecVirtual)) {
		from, next := GP64(), GP64()
		MOVQ(src, from)
		in := make([]reg.VecVirtual, 16)
		for i := range in {
			in[i] = ZMM()
			load(Mem{Base: from}, in[i])
			PREFETCHT1(Mem{Base: from, Disp: 64 * together})
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
	}
	Label("step")
	CMPQ(depth, Imm(stepDeep))
	JLT(LabelRef("rest"))
	tile(func(m Mem, r reg.VecVirtual) { VMOVUPS(m, r) })
	JMP(LabelRef("step"))
	Label("rest")
	CMPQ(depth, Imm(0))
	JLE(LabelRef("done"))
	k := words(depth)
	tile(func(m Mem, r reg.VecVirtual) { VMOVDQU16_Z(m, k, r) })
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

// finishPairs generates what brings sums to C.
func finishPairs(e vec.Elem) {
	s := vec.AVX512
	name := "finishPairs" + e.Name
	TEXT(name, NOSPLIT, "func(c *"+e.Go+", sums *float32, rows, cols, rowC int, alpha, beta float32)")
	Pragma("noescape")
	Doc(name+" sets rows of at most 32 elements of c, rowC bytes apart, to alpha times",
		"those of sums, which are 128 bytes apart, plus beta·c. It does not read c if beta is 0.")
	c, sums := Load(Param("c"), GP64()), Load(Param("sums"), GP64())
	rows, rowC := Load(Param("rows"), GP64()), Load(Param("rowC"), GP64())
	cols := Load(Param("cols"), GP64()).(reg.GPVirtual)
	bits, k := GP64(), [2]reg.OpmaskVirtual{K(), K()}
	MOVQ(U64(1<<64-1), bits)
	BZHIQ(cols, bits, bits)
	KMOVW(bits.As32(), k[0])
	SHRQ(Imm(16), bits)
	KMOVW(bits.As32(), k[1])
	alpha, beta := s.Broadcast(Param("alpha")), s.Broadcast(Param("beta"))
	round := s.Rounder(e)
	test := GP32()
	MOVL(paramAddr("beta"), test)
	SHLL(Imm(1), test) // drops the sign
	row := func(label string, sum func(i int) reg.VecVirtual) {
		Label(label)
		for i := range 2 {
			storeFirst(e, round(sum(i)), k[i], Mem{Base: c, Disp: i * s.Lanes * e.Size})
		}
		ADDQ(rowC, c)
		ADDQ(U32(4*panel), sums)
		DECQ(rows)
		JNZ(LabelRef(label))
		VZEROUPPER()
		RET()
	}
	scaled := func(i int) reg.VecVirtual {
		sum := ZMM()
		VMULPS(Mem{Base: sums, Disp: 64 * i}, alpha, sum)
		return sum
	}
	JZ(LabelRef("set"))
	row("add", func(i int) reg.VecVirtual {
		sum := scaled(i)
		VFMADD231PS(loadFirst(e, Mem{Base: c, Disp: i * s.Lanes * e.Size}, k[i]), beta, sum)
		return sum
	})
	row("set", scaled)
}

// loadFirst returns the elements that k selects as float32.
func loadFirst(e vec.Elem, m Mem, k reg.OpmaskVirtual) reg.VecVirtual {
	r, y := ZMM(), YMM()
	switch e {
	case vec.Float32:
		VMOVUPS_Z(m, k, r)
	case vec.Float16:
		VMOVDQU16_Z(m, k, y)
		VCVTPH2PS(y, r)
	case vec.BFloat16:
		VMOVDQU16_Z(m, k, y)
		VPMOVZXWD(y, r)
		VPSLLD(Imm(16), r, r)
	}
	return r
}

// storeFirst stores the elements that k selects.
func storeFirst(e vec.Elem, r reg.Register, k reg.OpmaskVirtual, m Mem) {
	if e == vec.Float32 {
		VMOVUPS(r, k, m)
	} else {
		VMOVDQU16(r, k, m)
	}
}
