// Gemm generates the float32 micro-kernels and the packing of internal/gemm.
package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// tier is what differs between the instruction sets.
type tier struct {
	name     string
	rows     int // of the largest tile of C; it is two vectors wide
	register func() reg.VecVirtual
	width    int  // bytes of a vector
	unrolls  bool // its loops take several steps of the depth at a time
}

var tiers = []tier{
	{"AVX2", 6, YMM, 32, true},
	{"AVX512", 14, ZMM, 64, false},
}

// lanes returns the float32 of a vector.
func (t tier) lanes() int { return t.width / 4 }

func main() {
	ConstraintExpr("!noasm,gc")
	masks()
	for _, t := range tiers {
		t.mul()
		t.copyRows()
		for _, rows := range fewRows {
			t.dots(rows)
		}
		t.packLines()
	}
	pairs()
	Generate()
}

// masks holds 8 set and 8 clear words: a vector of them from word 8-n selects
// the first n lanes of an AVX2 vector.
func masks() {
	GLOBL("masks", RODATA|NOPTR)
	for i := range 16 {
		word := uint32(0)
		if i < 8 {
			word = 0xffffffff
		}
		DATA(4*i, U32(word))
	}
}

// first is a predicate of the first lanes of a vector.
type first struct {
	tier
	mask reg.VecVirtual // AVX2
	k    reg.OpmaskVirtual
}

// first returns the predicate for the first n lanes, n from 1 to lanes.
func (t tier) first(n reg.GPVirtual) first {
	f := first{tier: t}
	if t.width == 64 {
		f.k = K()
	} else {
		f.mask = YMM()
	}
	f.set(n)
	return f
}

// set changes the predicate to the first n lanes.
func (f first) set(n reg.GPVirtual) {
	if f.width == 64 {
		ones, count := GP64(), GP64()
		MOVQ(U32(0xffff), ones)
		MOVQ(U32(16), count)
		SUBQ(n, count)
		SHRXQ(count, ones, ones)
		KMOVW(ones.As32(), f.k)
		return
	}
	at, back := GP64(), GP64()
	LEAQ(NewDataAddr(Symbol{Name: "masks", Static: true}, 32), at)
	MOVQ(n, back)
	NEGQ(back)
	VMOVDQU(Mem{Base: at, Index: back, Scale: 4}, f.mask)
}

// load sets the lanes of r that are not selected to 0.
func (f first) load(m Mem, r reg.VecVirtual) {
	if f.width == 64 {
		VMOVUPS_Z(m, f.k, r)
	} else {
		VMASKMOVPS(m, f.mask, r)
	}
}

// store writes the selected lanes of r.
func (f first) store(r reg.VecVirtual, m Mem) {
	if f.width == 64 {
		VMOVUPS(r, f.k, m)
	} else {
		VMASKMOVPS(r, f.mask, m)
	}
}

func (t tier) zero(r reg.VecVirtual) {
	if t.width == 64 {
		VPXORD(r, r, r)
	} else {
		VXORPS(r, r, r)
	}
}
