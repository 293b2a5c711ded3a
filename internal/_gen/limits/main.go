// Limits generates the loops of internal/limits that show what the machine can
// do: multiply-adds on registers alone, and memory that is read and copied.
package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"

	"github.com/snug-ml/snug/internal/_gen/gemm/avx512bf16"
)

// tier is what differs between the instruction sets.
type tier struct {
	name     string
	register func() reg.VecVirtual
	zero     func(r reg.VecVirtual)
	width    int // bytes of a vector
}

func main() {
	ConstraintExpr("!noasm,gc")
	for _, t := range []tier{
		{"AVX2", YMM, func(r reg.VecVirtual) { VXORPS(r, r, r) }, 32},
		{"AVX512", ZMM, func(r reg.VecVirtual) { VPXORD(r, r, r) }, 64},
	} {
		t.fma()
		t.read()
		t.stream()
	}
	dot()
	Generate()
}

// chains is how many sums are under way in the arithmetic loops: more than
// latency times multipliers, 4·2 on the processors of today.
const chains = 12

func (t tier) fma() {
	TEXT("fma"+t.name, NOSPLIT, "func(steps int)")
	Doc("fma" + t.name + " does 12 independent vector multiply-adds a step.")
	steps := Load(Param("steps"), GP64())
	x := t.register()
	t.zero(x)
	acc := make([]reg.VecVirtual, chains)
	for i := range acc {
		acc[i] = t.register()
		t.zero(acc[i])
	}
	Label("loop")
	for _, r := range acc {
		VFMADD231PS(x, x, r)
	}
	DECQ(steps)
	JNZ(LabelRef("loop"))
	VZEROUPPER()
	RET()
}

func dot() {
	TEXT("dotBF16", NOSPLIT, "func(steps int)")
	Doc("dotBF16 does 12 independent VDPBF16PS a step.")
	steps := Load(Param("steps"), GP64())
	registers := []reg.VecPhysical{reg.Z0, reg.Z1, reg.Z2, reg.Z3, reg.Z4, reg.Z5, reg.Z6, reg.Z7, reg.Z8, reg.Z9, reg.Z10, reg.Z11, reg.Z12}
	for _, r := range registers {
		VPXORD(r, r, r)
	}
	Label("loop")
	for _, r := range registers[:chains] {
		avx512bf16.VDPBF16PS(registers[chains], registers[chains], r)
	}
	DECQ(steps)
	JNZ(LabelRef("loop"))
	VZEROUPPER()
	RET()
}

const unroll = 8 // vectors of a step of the memory loops

func (t tier) read() {
	TEXT("read"+t.name, NOSPLIT, "func(src *byte, n int)")
	Pragma("noescape")
	Doc("read" + t.name + " reads n bytes, a positive multiple of 512.")
	src, n := Load(Param("src"), GP64()), Load(Param("n"), GP64())
	Label("loop")
	for i := range unroll {
		VMOVUPS(Mem{Base: src, Disp: i * t.width}, t.register())
	}
	ADDQ(U32(unroll*t.width), src)
	SUBQ(U32(unroll*t.width), n)
	JNZ(LabelRef("loop"))
	VZEROUPPER()
	RET()
}

func (t tier) stream() {
	TEXT("stream"+t.name, NOSPLIT, "func(dst, src *byte, n int)")
	Pragma("noescape")
	Doc("stream"+t.name+" copies n bytes, a positive multiple of 512, around the caches.",
		"dst is aligned to 64 bytes.")
	dst, src, n := Load(Param("dst"), GP64()), Load(Param("src"), GP64()), Load(Param("n"), GP64())
	Label("loop")
	var r [unroll]reg.VecVirtual
	for i := range r {
		r[i] = t.register()
		VMOVUPS(Mem{Base: src, Disp: i * t.width}, r[i])
	}
	for i := range r {
		VMOVNTPS(r[i], Mem{Base: dst, Disp: i * t.width})
	}
	ADDQ(U32(unroll*t.width), src)
	ADDQ(U32(unroll*t.width), dst)
	SUBQ(U32(unroll*t.width), n)
	JNZ(LabelRef("loop"))
	SFENCE()
	VZEROUPPER()
	RET()
}
