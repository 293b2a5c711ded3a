// Rounding generates the vector loops of internal/rounding.
package main

import (
	"github.com/mmcloughlin/avo/attr"
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"

	"github.com/snug-ml/snug/internal/_gen/half/vec"
	"github.com/snug-ml/snug/internal/_gen/philox/rounds"
)

const (
	groups = 2        // of blocks, which take turns
	group  = 64       // elements of a group
	step   = 128      // elements of a loop
	ahead  = 1024     // how far, in elements, src is fetched
	andOr  = U8(0xa8) // the table of VPTERNLOGD for (a | b) & c
)

func main() {
	ConstraintExpr("!noasm,gc")
	toBF16("toBF16AVX512", vec.Set.Write)
	toBF16("toBF16StreamAVX512", vec.Set.Stream)
	Generate()
}

// toBF16 adds the 16-bit halves of a stream to those of float32 which are cut off: where
// that carries, the half that stays is one more. A NaN becomes quiet, and its lower half 0, to which
// nothing that is added carries.
func toBF16(name string, write func(s vec.Set, x reg.Register, to Mem)) {
	s := vec.AVX512
	TEXT(name, NOSPLIT, "func(dst *uint16, src *float32, n int, seed, tensor, first uint64)")
	Pragma("noescape")
	dst, src := vec.Point("dst", 2), vec.Point("src", 4)
	n := Load(Param("n"), GP64())
	g := rounds.New(s, name)
	even, odd := words(name+"Even", 0), words(name+"Odd", 1)
	quiet, upper := s.Constant(0x400000), s.Constant(0xffff0000)
	minus := s.Constant(0xffffffff)
	vec.Loop("loop", n, step, []vec.Pointer{dst, src}, func() {
		for i := 0; i < step; i += 16 {
			PREFETCHT0(src.At(ahead + i))
		}
		for i, w := range g.Next(groups) {
			for j, draws := range w {
				at := group*i + group/2*j
				x, y := s.Load(vec.Float32, src.At(at)), s.Load(vec.Float32, src.At(at+16))
				for _, v := range []reg.VecVirtual{x, y} {
					nan := K()
					VCMPPS(Imm(3), v, v, nan)
					VPTERNLOGD(andOr, upper, quiet, nan, v)
				}
				low, carry := ZMM(), K()
				VMOVDQA64(x, low)
				VPERMT2W(y, even, low)
				VPERMT2W(y, odd, x)
				VPADDW(low, draws, draws)
				VPCMPUW(Imm(1), low, draws, carry)
				VPSUBW(minus, x, carry, x)
				write(s, x, dst.At(at))
			}
		}
	})
	if name == "toBF16StreamAVX512" {
		SFENCE()
	}
	vec.End()
}

// words returns the numbers of every other one of 64 words.
func words(name string, first int) reg.VecVirtual {
	m := GLOBL(name, attr.RODATA|attr.NOPTR)
	for i := range 32 {
		DATA(2*i, U16(first+2*i))
	}
	r := ZMM()
	VMOVDQU64(m, r)
	return r
}
