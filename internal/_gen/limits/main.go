// Limits generates the loops of internal/limits that show what the machine can
// do: multiply-adds on registers alone, and memory that is read and copied.
package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"

	"github.com/snug-ml/snug/internal/_gen/gemm/amx"
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
		t.stream()
	}
	dot()
	tile()
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

// tileChains is how many tiles are summed: more than the latency of a product,
// 52 cycles, over the 16 that the unit is busy.
const tileChains = 6

// tile multiplies tiles of zeros.
func tile() {
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

	TEXT("tileBF16", NOSPLIT, "func(steps int)")
	Doc("tileBF16 does 6 independent TDPBF16PS a step.")
	steps := Load(Param("steps"), GP64())
	LEAQ(config, reg.RAX)
	amx.LDTILECFG(reg.RAX)
	for t := range amx.Tile(8) {
		amx.TILEZERO(t)
	}
	Label("loop")
	for t := range amx.Tile(tileChains) {
		amx.TDPBF16PS(tileChains, tileChains+1, t)
	}
	DECQ(steps)
	JNZ(LabelRef("loop"))
	amx.TILERELEASE()
	RET()
}
