// Philox generates the vector loops of internal/philox.
package main

import (
	. "github.com/mmcloughlin/avo/build"

	"github.com/snug-ml/snug/internal/_gen/half/vec"
	"github.com/snug-ml/snug/internal/_gen/philox/rounds"
)

// together is how many groups of blocks take turns: with one, the rounds wait for one
// another. AVX2 has no registers for more.
var together = map[bool]int{false: 1, true: 4}

func main() {
	ConstraintExpr("!noasm,gc")
	for _, s := range vec.Sets {
		words(s)
	}
	Generate()
}

func words(s vec.Set) {
	name := "blocks" + s.Name
	vec.Func(name, "func(dst *uint32, n int, seed, tensor, first uint64)", name+" is blocks for n words, a multiple of 32.")
	dst, n := vec.Point("dst", 4), Load(Param("n"), GP64())
	g := rounds.New(s, name)
	part := 4 * g.Blocks()
	write := func(groups int) func() {
		return func() {
			for i, w := range g.Next(groups) {
				for j, v := range w {
					s.Write(v, dst.At(part*i+part/2*j))
				}
			}
		}
	}
	if k := together[s.Wide()]; k > 1 {
		vec.Loop("several", n, k*part, []vec.Pointer{dst}, write(k))
	}
	vec.Loop("one", n, part, []vec.Pointer{dst}, write(1))
	vec.End()
}
