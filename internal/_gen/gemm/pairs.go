package main

import (
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

// mulDot keeps 8 × 32 sums in registers, and rounds them there for a C of bfloat16.
func mulDot(e vec.Elem) {
	name, add, adds := "mulDot"+e.Name, "", "It rounds the sums to bfloat16."
	if e == vec.Float32 {
		add, adds = ", add", "It adds to c if add is not 0."
	}
	TEXT(name, NOSPLIT, "func(a, b *uint16, c *"+e.Go+", rows, panels, steps, nextA, nextB, nextC, rowC"+add+" int)")
	Pragma("noescape")
	Doc(name+" multiplies panels of A and B, rows rows, rounded up to a multiple of 8, and 32 columns, over the depth",
		"of steps, with the dot product of AVX512_BF16, and does so for panels places: a, b and c",
		"move on by nextA, nextB and nextC bytes. Rows of c are rowC bytes apart. "+adds)
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
		MOVQ(c, ahead) // the rows that come next
		ADDQ(paramAddr("nextC"), ahead)
		CMPQ(rows, Imm(dotRows))
		CMOVQLE(ahead, low)
		for range dotRows {
			PREFETCHT0(Mem{Base: low})
			PREFETCHT0(Mem{Base: low, Disp: 2*vector - 1})
			ADDQ(rowC, low)
		}
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
