// Rounding generates the vector loops of internal/rounding.
package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"

	"github.com/snug-ml/snug/internal/_gen/half/vec"
	"github.com/snug-ml/snug/internal/_gen/philox/rounds"
)

const (
	groups = 2  // of blocks, which take turns
	group  = 64 // elements of a group
	step   = groups * group
	near   = 1024 // how far, in elements, src is fetched
	less   = 1    // the predicate of VPCMPUW
)

func main() {
	ConstraintExpr("!noasm,gc")
	toBF16("toBF16AVX512", vec.Set.Write, func() {})
	toBF16("toBF16StreamAVX512", vec.Set.Stream, SFENCE)
	Generate()
}

// toBF16 adds the 16-bit halves of a stream to the halves of float32 that are cut off.
func toBF16(name string, write func(s vec.Set, x reg.Register, to Mem), end func()) {
	s := vec.AVX512
	TEXT(name, NOSPLIT, "func(dst *uint16, src *float32, n int, seed, tensor, first uint64)")
	Pragma("noescape")
	Doc(name + " rounds n elements, a multiple of 128; element i takes half i%8 of block first+i/8.")
	dst, src := vec.Point("dst", 2), vec.Point("src", 4)
	n := Load(Param("n"), GP64())
	g, h := rounds.New(s, name), vec.NewHalves()
	vec.Loop("loop", n, step, []vec.Pointer{dst, src}, func() {
		for i := 0; i < step; i += s.Lanes {
			PREFETCHT0(src.At(near + i))
		}
		for i, w := range g.Next(groups) {
			for j, draws := range w {
				at := group*i + group/2*j
				lower, upper := h.Split(s.Load(vec.Float32, src.At(at)), s.Load(vec.Float32, src.At(at+s.Lanes)))
				carry := K()
				VPADDW(lower, draws, draws)
				VPCMPUW(Imm(less), lower, draws, carry)
				h.Carry(carry, upper)
				write(s, upper, dst.At(at))
			}
		}
	})
	end()
	vec.End()
}
