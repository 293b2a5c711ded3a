// Adam generates the AdamW update of internal/adam. A loop does a vector of
// parameters in the order of the Go loop, with a rounding after every
// operation: no fused multiply-add. VSQRTPS and VDIVPS round correctly, as Go's
// square root and division do.
package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"

	"github.com/snug-ml/snug/internal/_gen/half/vec"
)

// step is the number of parameters that n is a multiple of.
const step = 16

func main() {
	ConstraintExpr("!noasm,gc")
	for _, s := range vec.Sets {
		update(s)
	}
	update8(vec.AVX512)
	Generate()
}

const factorParams = "beta1, rest1, beta2, rest2, gradScale, size, eps, pre, post float32"

// factors are those of adam.Coef, in every lane.
type factors struct {
	vec.Set
	beta1, rest1, beta2, rest2, gradScale, size, eps, pre, post reg.VecVirtual
}

func loadFactors(s vec.Set) factors {
	get := func(name string) reg.VecVirtual { return s.Broadcast(Param(name)) }
	return factors{
		s, get("beta1"), get("rest1"), get("beta2"), get("rest2"),
		get("gradScale"), get("size"), get("eps"), get("pre"), get("post"),
	}
}

func update(s vec.Set) {
	name := "update" + s.Name
	TEXT(name, NOSPLIT, "func("+factorParams+", p, m, v, grad *float32, n int)")
	Pragma("noescape")
	Doc(name + " updates n parameters, a multiple of 16.")
	f := loadFactors(s)
	p, m, v, grad := vec.Point("p", 4), vec.Point("m", 4), vec.Point("v", 4), vec.Point("grad", 4)
	n := Load(Param("n"), GP64())
	vec.Loop("loop", n, step, []vec.Pointer{p, m, v, grad}, func() {
		for i := 0; i < step; i += s.Lanes {
			first, second := s.Register(), s.Register()
			VMULPS(m.At(i), f.beta1, first)
			VMULPS(v.At(i), f.beta2, second)
			f.moments(first, second, grad.At(i))
			VMOVUPS(first, m.At(i))
			VMOVUPS(second, v.At(i))
			f.parameters(first, second, p.At(i))
		}
	})
	vec.End()
}

// moments adds a gradient to moments that are decayed already.
func (f factors) moments(first, second reg.VecVirtual, grad Mem) {
	g, t := f.Register(), f.Register()
	VMULPS(grad, f.gradScale, g)
	VMULPS(g, f.rest1, t)
	VADDPS(t, first, first)
	VMULPS(g, f.rest2, t)
	VMULPS(g, t, t)
	VADDPS(t, second, second)
}

// parameters updates p by the moments, which it overwrites.
func (f factors) parameters(first, second reg.VecVirtual, p Mem) {
	x := f.Register()
	VSQRTPS(second, second)
	VADDPS(f.eps, second, second)
	VDIVPS(second, first, first)
	VMULPS(f.size, first, first)
	VMULPS(p, f.pre, x)
	VSUBPS(first, x, x)
	VMULPS(f.post, x, x)
	VMOVUPS(x, p)
}

// update8 looks the values of codes up while it waits for the square root and
// the division.
func update8(s vec.Set) {
	name := "update8" + s.Name
	TEXT(name, NOSPLIT, "func("+factorParams+`, p, m, v, grad *float32, n int,
		codes1, codes2 *uint8, map1, map2 *[256]float32, absmax1, absmax2 float32) (top1, top2 uint32)`)
	Pragma("noescape")
	Doc(name+" is update of moments of which codes are given, n a multiple of 16. It writes the new ones to m and v",
		"and returns the bits of their largest magnitudes.")
	f := loadFactors(s)
	p, m, v, grad := vec.Point("p", 4), vec.Point("m", 4), vec.Point("v", 4), vec.Point("grad", 4)
	codes1, codes2 := vec.Point("codes1", 1), vec.Point("codes2", 1)
	map1, map2 := Load(Param("map1"), GP64()), Load(Param("map2"), GP64())
	absmax1, absmax2 := s.Broadcast(Param("absmax1")), s.Broadcast(Param("absmax2"))
	magnitude, top1, top2 := s.Constant(0x7fffffff), s.Zero(), s.Zero()
	n := Load(Param("n"), GP64())
	vec.Loop("loop", n, step, []vec.Pointer{p, m, v, grad, codes1, codes2}, func() {
		for i := 0; i < step; i += s.Lanes {
			first, second := s.Lookup(map1, codes1.At(i)), s.Lookup(map2, codes2.At(i))
			VMULPS(absmax1, first, first)
			VMULPS(f.beta1, first, first)
			VMULPS(absmax2, second, second)
			VMULPS(f.beta2, second, second)
			f.moments(first, second, grad.At(i))
			VMOVUPS(first, m.At(i))
			VMOVUPS(second, v.At(i))
			VPMAXUD(s.And(magnitude, first), top1, top1)
			VPMAXUD(s.And(magnitude, second), top2, top2)
			f.parameters(first, second, p.At(i))
		}
	})
	Store(s.Largest(top1), Return("top1"))
	Store(s.Largest(top2), Return("top2"))
	vec.End()
}
