// Half generates the conversions of internal/half: float32 to and from
// binary16 and bfloat16. Every function converts n elements, a multiple of 16.
//
// binary16 has instructions of its own (F16C, AVX-512F). bfloat16 is the upper
// half of a float32: widening is a shift; narrowing adds 0x7fff and the lowest
// bit that stays, which rounds to nearest even, and NaNs are set quiet instead.
package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

const step = 16 // elements of a loop

// unordered is the predicate of VCMPPS that finds NaNs, nearest the rounding
// of VCVTPS2PH.
const (
	unordered = 3
	nearest   = 0
)

func main() {
	ConstraintExpr("!noasm,gc")
	loop("f16ToF32AVX2", "uint16", "float32", func(dst, src reg.GPVirtual) {
		for i := range 2 {
			y := YMM()
			VCVTPH2PS(Mem{Base: src, Disp: 16 * i}, y)
			VMOVUPS(y, Mem{Base: dst, Disp: 32 * i})
		}
	})
	loop("f32ToF16AVX2", "float32", "uint16", func(dst, src reg.GPVirtual) {
		for i := range 2 {
			y := YMM()
			VMOVUPS(Mem{Base: src, Disp: 32 * i}, y)
			VCVTPS2PH(Imm(nearest), y, Mem{Base: dst, Disp: 16 * i})
		}
	})
	loop("bf16ToF32AVX2", "uint16", "float32", func(dst, src reg.GPVirtual) {
		for i := range 2 {
			y := YMM()
			VPMOVZXWD(Mem{Base: src, Disp: 16 * i}, y)
			VPSLLD(Imm(16), y, y)
			VMOVDQU(y, Mem{Base: dst, Disp: 32 * i})
		}
	})
	narrowAVX2()
	loop("f16ToF32AVX512", "uint16", "float32", func(dst, src reg.GPVirtual) {
		z := ZMM()
		VCVTPH2PS(Mem{Base: src}, z)
		VMOVUPS(z, Mem{Base: dst})
	})
	loop("f32ToF16AVX512", "float32", "uint16", func(dst, src reg.GPVirtual) {
		z := ZMM()
		VMOVUPS(Mem{Base: src}, z)
		VCVTPS2PH(Imm(nearest), z, Mem{Base: dst})
	})
	loop("bf16ToF32AVX512", "uint16", "float32", func(dst, src reg.GPVirtual) {
		z := ZMM()
		VPMOVZXWD(Mem{Base: src}, z)
		VPSLLD(Imm(16), z, z)
		VMOVDQU32(z, Mem{Base: dst})
	})
	narrowAVX512()
	Generate()
}

// sizes of the element types in bytes.
var sizes = map[string]int{"uint16": 2, "float32": 4}

// loop makes func name(dst *to, src *from, n int) of a body for step elements.
func loop(name, from, to string, body func(dst, src reg.GPVirtual), setup ...func()) {
	TEXT(name, NOSPLIT, "func(dst *"+to+", src *"+from+", n int)")
	Pragma("noescape")
	dst, src, n := GP64(), GP64(), GP64()
	Load(Param("dst"), dst)
	Load(Param("src"), src)
	Load(Param("n"), n)
	for _, do := range setup {
		do()
	}
	Label("loop")
	CMPQ(n, Imm(step))
	JLT(LabelRef("done"))
	body(dst, src)
	ADDQ(Imm(uint64(step*sizes[to])), dst)
	ADDQ(Imm(uint64(step*sizes[from])), src)
	SUBQ(Imm(step), n)
	JMP(LabelRef("loop"))
	Label("done")
	VZEROUPPER()
	RET()
}

func narrowAVX2() {
	one, bias, quiet := YMM(), YMM(), YMM()
	constants := func() {
		for _, c := range []struct {
			bits uint32
			to   reg.VecVirtual
		}{{1, one}, {0x7fff, bias}, {0x40, quiet}} {
			r, x := GP32(), XMM()
			MOVL(U32(c.bits), r)
			MOVD(r, x)
			VPBROADCASTD(x, c.to)
		}
	}
	loop("f32ToBF16AVX2", "float32", "uint16", func(dst, src reg.GPVirtual) {
		var out [2]reg.VecVirtual
		for i := range out {
			x, high, rounded, nan := YMM(), YMM(), YMM(), YMM()
			VMOVDQU(Mem{Base: src, Disp: 32 * i}, x)
			VPSRLD(Imm(16), x, high)
			VPAND(one, high, rounded)
			VPADDD(bias, rounded, rounded)
			VPADDD(x, rounded, rounded)
			VPSRLD(Imm(16), rounded, rounded)
			VPOR(quiet, high, high)
			VCMPPS(Imm(unordered), x, x, nan)
			out[i] = YMM()
			VBLENDVPS(nan, high, rounded, out[i])
		}
		VPACKUSDW(out[1], out[0], out[0]) // packs within halves of 128 bits
		VPERMQ(Imm(0xd8), out[0], out[0])
		VMOVDQU(out[0], Mem{Base: dst})
	}, constants)
}

func narrowAVX512() {
	one, bias, quiet := ZMM(), ZMM(), ZMM()
	constants := func() {
		for _, c := range []struct {
			bits uint32
			to   reg.VecVirtual
		}{{1, one}, {0x7fff, bias}, {0x40, quiet}} {
			r := GP32()
			MOVL(U32(c.bits), r)
			VPBROADCASTD(r, c.to)
		}
	}
	loop("f32ToBF16AVX512", "float32", "uint16", func(dst, src reg.GPVirtual) {
		x, high, rounded, nan := ZMM(), ZMM(), ZMM(), K()
		VMOVDQU32(Mem{Base: src}, x)
		VPSRLD(Imm(16), x, high)
		VPANDD(one, high, rounded)
		VPADDD(bias, rounded, rounded)
		VPADDD(x, rounded, rounded)
		VPSRLD(Imm(16), rounded, rounded)
		VCMPPS(Imm(unordered), x, x, nan)
		VPORD(quiet, high, nan, rounded)
		VPMOVDW(rounded, Mem{Base: dst})
	}, constants)
}
