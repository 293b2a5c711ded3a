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
	groups = 4  // of blocks, which take turns
	group  = 64 // elements of a group
	step   = groups * group
	near   = 1024 // how far, in elements, src is fetched
	less   = 1    // the predicate of VPCMPUW
)

func main() {
	ConstraintExpr("!noasm,gc")
	toBF16("toBF16AVX512", vec.Set.Write, func() {})
	toBF16("toBF16StreamAVX512", vec.Set.Stream, SFENCE)
	for _, e := range vec.Elems {
		accumulate(e)
	}
	Generate()
}

// halves returns the lower and the upper halves of 32 elements of float32 that begin at an element.
type halves func(at int) (lower, upper reg.VecVirtual)

// toBF16 rounds src.
func toBF16(name string, write writer, end func()) {
	s := vec.AVX512
	vec.Func(name, "func(dst *uint16, src *float32, n int, seed, tensor, first uint64)",
		name+" rounds n elements, a multiple of 256; element i takes half i%8 of block first+i/8.")
	dst, src, h := vec.Point("dst", 2), vec.Point("src", 4), vec.NewHalves()
	fetch := func() {
		for i := 0; i < step; i += 16 {
			PREFETCHT0(src.At(near + i))
		}
	}
	load := func(at int) (lower, upper reg.VecVirtual) {
		return h.Split(s.Load(vec.Float32, src.At(at)), s.Load(vec.Float32, src.At(at+s.Lanes)))
	}
	round(name, dst, []vec.Pointer{dst, src}, h, fetch, load, write)
	end()
	vec.End()
}

// accumulate rounds alpha·x + beta·acc, whose products and sum are rounded too, to acc.
func accumulate(e vec.Elem) {
	s, name := vec.AVX512, "accumulate"+e.Name+"AVX512"
	vec.Func(name, "func(acc *uint16, x *"+e.Go+", n int, alpha, beta float32, seed, tensor, first uint64)",
		name+" is for n elements, a multiple of 256; element i takes half i%8 of block first+i/8.")
	acc, x, h := vec.Point("acc", 2), vec.Point("x", e.Size), vec.NewHalves()
	alpha, beta := s.Broadcast(Param("alpha")), s.Broadcast(Param("beta"))
	fetch := func() {
		for i := 0; i < step; i += 32 {
			PREFETCHT0(acc.At(near + i))
		}
		for i := 0; i < step; i += 64 / e.Size {
			PREFETCHT0(x.At(near + i))
		}
	}
	sum := func(v, old reg.VecVirtual) {
		VMULPS(alpha, v, v)
		VMULPS(old, beta, old)
		VADDPS(old, v, v)
	}
	inOdd := vec.OddWords()
	load := func(at int) (lower, upper reg.VecVirtual) {
		if e == vec.BFloat16 { // in turn, which takes fewer shuffles, of which the random numbers need many
			even, odd := h.Turns(x.At(at))
			oldEven, oldOdd := h.Turns(acc.At(at))
			sum(even, oldEven)
			sum(odd, oldOdd)
			return h.SplitTurns(even, odd, inOdd)
		}
		var v [2]reg.VecVirtual
		for i := range v {
			v[i] = s.Load(e, x.At(at+i*s.Lanes))
			sum(v[i], vec.Widen(acc.At(at), i, inOdd))
		}
		return h.Split(v[0], v[1])
	}
	round(name, acc, []vec.Pointer{acc, x}, h, fetch, load, vec.Set.Write)
	vec.End()
}

// writer writes a vector to memory.
type writer func(s vec.Set, x reg.Register, to Mem)

// round adds the 16-bit halves of a stream to the halves of float32 that are cut off, for n
// elements.
func round(name string, dst vec.Pointer, all []vec.Pointer, h vec.Halves, fetch func(), load halves, write writer) {
	s, n := vec.AVX512, Load(Param("n"), GP64())
	g := rounds.New(s, name)
	vec.Loop("loop", n, step, all, func() {
		fetch()
		for i, w := range g.Next(groups) {
			for j, draws := range w {
				at := group*i + group/2*j
				lower, upper := load(at)
				carry := K()
				VPADDW(lower, draws, draws)
				VPCMPUW(Imm(less), lower, draws, carry)
				h.Carry(carry, upper)
				write(s, upper, dst.At(at))
			}
		}
	})
}
