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
	mulDot()
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
	ADDQ(vec.ParamAddr("nextA"), a)
	ADDQ(vec.ParamAddr("nextB"), b)
	ADDQ(vec.ParamAddr("nextC"), c)
	DECQ(panels)
	JNZ(LabelRef("panel"))
	amx.TILERELEASE()
	RET()
}

// dotRows are the numbers of rows of 2 vectors that mulDot has under way. The more rows, the fewer loads there are for
// a product, and the fewer times B is read.
var dotRows = [2]int{8, 12}

// dotAhead is how many steps ahead mulDot fetches. Panels of a great depth come from the second cache, or
// from the third, and the kernel reads those of A in pieces, which the processor does not foresee.
const dotAhead = 2

var vectors = []reg.VecPhysical{
	reg.Z0, reg.Z1, reg.Z2, reg.Z3, reg.Z4, reg.Z5, reg.Z6, reg.Z7, reg.Z8, reg.Z9, reg.Z10, reg.Z11, reg.Z12, reg.Z13,
	reg.Z14, reg.Z15, reg.Z16, reg.Z17, reg.Z18, reg.Z19, reg.Z20, reg.Z21, reg.Z22, reg.Z23, reg.Z24, reg.Z25, reg.Z26,
}

// What mulDot does with the sums.
const (
	setSums = iota
	addSums
	roundSums
)

// mulDot keeps up to 12 × 32 sums in registers, and rounds them there for a C of bfloat16.
func mulDot() {
	TEXT("mulDot", NOSPLIT, "func(a, b *uint16, c *byte, rows, panels, steps, nextA, nextB, nextC, rowC, mode int, ahead *[6]int)")
	Pragma("noescape")
	Doc("mulDot multiplies panels of A and B, rows rows, rounded up to a multiple of 8, and 32 columns, over the depth",
		"of steps, with the dot product of AVX512_BF16, and does so for panels places: a, b and c",
		"move on by nextA, nextB and nextC bytes. Rows of c are rowC bytes apart.",
		fmt.Sprintf("A mode of %d sets c, one of %d adds to it, and one of %d rounds the sums to bfloat16.", setSums, addSums, roundSums),
		"Meanwhile it fetches what ahead says to the second cache, unless that is nil.")
	d := dotRegs{a: reg.RAX, b: reg.RBX, c: reg.RDX, panels: reg.R8, from: reg.R11, atA: reg.RSI, atB: reg.RDI,
		atC: reg.R12, low: reg.R10, steps: reg.R9, left: reg.RCX, rows: reg.R13, rowC: reg.R15, ahead: reg.RBP}
	Load(Param("a"), d.a)
	Load(Param("b"), d.b)
	Load(Param("c"), d.c)
	Load(Param("panels"), d.panels)
	Load(Param("rowC"), d.rowC)
	Label("panel")
	MOVQ(d.c, d.atC)
	MOVQ(d.a, d.from)
	few, many := dotRows[0], dotRows[1]
	Load(Param("rows"), d.rows)
	ADDQ(Imm(uint64(few-1)), d.rows) // other numbers of rows would end behind the panel
	ANDQ(I8(-few), d.rows)
	Label("rows")
	CMPQ(d.rows, Imm(uint64(2*many))) // of these, of 12 and of 20 rows, many go together
	JGE(LabelRef("many"))
	TESTQ(U32(uint32(few-1)), d.rows)
	JNZ(LabelRef("many"))
	d.tile(few, "few")
	JMP(LabelRef("next"))
	Label("many")
	d.tile(many, "many")
	Label("next")
	TESTQ(d.rows, d.rows)
	JG(LabelRef("rows"))
	ADDQ(vec.ParamAddr("nextA"), d.a)
	ADDQ(vec.ParamAddr("nextB"), d.b)
	ADDQ(vec.ParamAddr("nextC"), d.c)
	DECQ(d.panels)
	JNZ(LabelRef("panel"))
	VZEROUPPER()
	RET()
}

// dotRegs are the registers of mulDot.
type dotRegs struct {
	a, b, c, panels, from, atA, atB, atC, low, steps, left, rows, rowC, ahead reg.GPPhysical
}

// tile multiplies n rows of a panel of A.
func (d dotRegs) tile(n int, label string) {
	acc, b0, b1, value := vectors[:2*n], vectors[2*n], vectors[2*n+1], vectors[2*n+2]
	eachRow := func(do func(i int, at Mem)) {
		MOVQ(d.atC, d.low)
		for i := range n {
			do(i, Mem{Base: d.low})
			ADDQ(d.rowC, d.low)
		}
	}
	CMPQ(vec.ParamAddr("mode"), Imm(addSums))
	JNE(LabelRef(label + "Zero"))
	eachRow(func(i int, at Mem) {
		VMOVUPS(at, acc[2*i])
		VMOVUPS(at.Offset(64), acc[2*i+1])
	})
	MOVQ(d.c, d.ahead) // the rows that come next
	ADDQ(vec.ParamAddr("nextC"), d.ahead)
	CMPQ(d.rows, Imm(uint64(n)))
	CMOVQLE(d.ahead, d.low)
	for range dotRows[1] {
		PREFETCHT0(Mem{Base: d.low})
		PREFETCHT0(Mem{Base: d.low, Disp: 127})
		ADDQ(d.rowC, d.low)
	}
	JMP(LabelRef(label + "Multiply"))
	Label(label + "Zero")
	end := d.atA // the last byte of a row of 32 float32 or bfloat16
	Load(Param("mode"), end)
	SHLQ(Imm(5), end)
	XORQ(Imm(127), end)
	eachRow(func(_ int, at Mem) {
		PREFETCHT0(at)
		PREFETCHT0(at.Idx(end, 1))
	})
	for _, r := range acc {
		VPXORD(r, r, r)
	}
	Label(label + "Multiply")
	MOVQ(d.from, d.atA)
	MOVQ(d.b, d.atB)
	LEAQ(Mem{Base: d.from, Disp: dotAhead * stepBytes}, d.ahead)
	Load(Param("steps"), d.steps)
	Label(label + "Step")
	d.fetch(label)
	MOVQ(U32(stepDeep/4), d.left)
	Label(label + "Pairs")
	PREFETCHT0(Mem{Base: d.ahead}) // the rows of A
	for p := range 2 {
		PREFETCHT0(Mem{Base: d.atB, Disp: dotAhead*stepBytes + 64*p})
		PREFETCHT0(Mem{Base: d.atB, Disp: dotAhead*stepBytes + tileBytes + 64*p})
		VMOVUPS(Mem{Base: d.atB, Disp: 64 * p}, b0)
		VMOVUPS(Mem{Base: d.atB, Disp: 64*p + tileBytes}, b1)
		for i := range n {
			VPBROADCASTD(Mem{Base: d.atA, Disp: 64*i + 4*p}, value)
			avx512bf16.VDPBF16PS(value, b0, acc[2*i])
			avx512bf16.VDPBF16PS(value, b1, acc[2*i+1])
		}
	}
	ADDQ(Imm(8), d.atA)
	ADDQ(Imm(64), d.ahead)
	ADDQ(U32(128), d.atB)
	DECQ(d.left)
	JNZ(LabelRef(label + "Pairs"))
	ADDQ(U32(stepBytes-64), d.atA)
	ADDQ(U32(stepBytes-64*8), d.ahead)
	ADDQ(U32(stepBytes-tileBytes), d.atB)
	DECQ(d.steps)
	JNZ(LabelRef(label + "Step"))
	CMPQ(vec.ParamAddr("mode"), Imm(roundSums))
	JE(LabelRef(label + "Round"))
	eachRow(func(i int, at Mem) {
		VMOVUPS(acc[2*i], at)
		VMOVUPS(acc[2*i+1], at.Offset(64))
	})
	JMP(LabelRef(label + "Stored"))
	Label(label + "Round")
	round := vec.AVX512.Rounder(vec.BFloat16)
	eachRow(func(i int, at Mem) {
		for half := range 2 {
			sum := ZMM()
			VMOVAPS(acc[2*i+half], sum)
			VMOVUPS(round(sum), at.Offset(32*half))
		}
	})
	Label(label + "Stored")
	MOVQ(d.low, d.atC)
	ADDQ(U32(uint32(64*n)), d.from)
	SUBQ(Imm(uint64(n)), d.rows)
}

// fetch fetches 4 lines at 2 places of an Ahead.
func (d dotRegs) fetch(label string) {
	field := func(name string) Mem { return Mem{Base: d.low, Disp: aheadFields[name]} }
	ahead, at, n := d.low, d.left, reg.R14
	MOVQ(vec.ParamAddr("ahead"), ahead)
	TESTQ(ahead, ahead)
	JZ(LabelRef(label + "Fetched"))
	MOVQ(field("at"), at)
	for range 2 {
		PREFETCHT1(Mem{Base: at})
		PREFETCHT1(Mem{Base: at, Disp: 64})
		ADDQ(field("next"), at)
	}
	DECQ(field("left"))
	JNZ(LabelRef(label + "Walked"))
	ADDQ(field("back"), at)
	MOVQ(field("pairs"), n)
	MOVQ(n, field("left"))
	DECQ(field("rows"))
	JNZ(LabelRef(label + "Walked"))
	MOVQ(U32(0), n)
	MOVQ(n, field("next")) // the end: it stays where it is
	MOVQ(n, field("back"))
	Label(label + "Walked")
	MOVQ(at, field("at"))
	Label(label + "Fetched")
}

// aheadFields are the offsets of the fields of Ahead.
var aheadFields = map[string]int{"at": 0, "next": 8, "left": 16, "back": 24, "pairs": 32, "rows": 40}

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
	MOVL(vec.ParamAddr("beta"), test)
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
