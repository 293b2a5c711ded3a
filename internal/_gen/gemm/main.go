// Gemm generates the float32 micro-kernels of internal/gemm.
//
// Each keeps an MR×NR tile of C in registers: AVX2 6×16 in 12 of 16, AVX-512
// 14×32 in 28 of 32. A step along k loads a row of B's panel, broadcasts each
// of A's values and does MR·NR multiply-adds, which is far more arithmetic
// than loads, so the multipliers are what it waits for.
package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// tier is what differs between the instruction sets.
type tier struct {
	name     string
	mr, nr   int // rows, and columns in vectors
	register func() reg.VecVirtual
	width    int // bytes of a vector
}

func main() {
	ConstraintExpr("!noasm,gc")
	tier{"add6x16", 6, 2, YMM, 32}.generate("AVX2")
	tier{"add14x32", 14, 2, ZMM, 64}.generate("AVX-512")
	Generate()
}

func (t tier) generate(set string) {
	TEXT(t.name, NOSPLIT, "func(a, b, c *float32, kc, ldc int)")
	Pragma("noescape")
	Doc(t.name + " adds aᵀb to the tile of c, with " + set + ".")
	a, b, c := Load(Param("a"), GP64()), Load(Param("b"), GP64()), Load(Param("c"), GP64())
	kc, ldc := Load(Param("kc"), GP64()), Load(Param("ldc"), GP64())
	SHLQ(Imm(2), ldc)

	acc := make([][]reg.VecVirtual, t.mr)
	for i := range acc {
		acc[i] = make([]reg.VecVirtual, t.nr)
		for j := range acc[i] {
			acc[i][j] = t.register()
			t.zero(acc[i][j])
		}
	}
	row := make([]reg.VecVirtual, t.nr)
	for j := range row {
		row[j] = t.register()
	}
	value := t.register()

	TESTQ(kc, kc)
	JZ(LabelRef("store"))
	Label("loop")
	for j := range row {
		VMOVUPS(Mem{Base: b, Disp: j * t.width}, row[j])
	}
	for i := range acc {
		VBROADCASTSS(Mem{Base: a, Disp: 4 * i}, value)
		for j := range row {
			VFMADD231PS(value, row[j], acc[i][j])
		}
	}
	ADDQ(Imm(uint64(4*t.mr)), a)
	ADDQ(Imm(uint64(t.width*t.nr)), b)
	DECQ(kc)
	JNZ(LabelRef("loop"))

	Label("store")
	for i := range acc {
		for j := range row {
			at := Mem{Base: c, Disp: j * t.width}
			VADDPS(at, acc[i][j], acc[i][j])
			VMOVUPS(acc[i][j], at)
		}
		ADDQ(ldc, c)
	}
	VZEROUPPER()
	RET()
}

func (t tier) zero(r reg.VecVirtual) {
	if t.width == 64 {
		VPXORD(r, r, r)
	} else {
		VXORPS(r, r, r)
	}
}
