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

// near is how far, in elements, all four vectors are fetched.
const near = 256

func main() {
	ConstraintExpr("!noasm,gc")
	for _, s := range vec.Sets {
		update(s)
	}
	for _, e := range vec.Elems {
		step8("step", e, false)
		step8("stepEncode", e, true)
	}
	encode8()
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
		for _, x := range []vec.Pointer{p, m, v, grad} {
			PREFETCHT0(x.At(near))
		}
		for i := 0; i < step; i += s.Lanes {
			first, second := s.Register(), s.Register()
			VMULPS(m.At(i), f.beta1, first)
			VMULPS(v.At(i), f.beta2, second)
			g := s.Register()
			VMULPS(grad.At(i), f.gradScale, g)
			f.moments(first, second, g)
			VMOVUPS(first, m.At(i))
			VMOVUPS(second, v.At(i))
			VMOVUPS(f.parameters(first, second, p.At(i)), p.At(i))
		}
	})
	vec.End()
}

// moments adds a scaled gradient, which it overwrites, to moments that are
// decayed already.
func (f factors) moments(first, second, g reg.VecVirtual) {
	t := f.Register()
	VMULPS(g, f.rest1, t)
	VADDPS(t, first, first)
	VMULPS(g, f.rest2, t)
	VMULPS(g, t, t)
	VADDPS(t, second, second)
}

// parameters returns p updated by the moments, which it overwrites.
func (f factors) parameters(first, second reg.VecVirtual, p Op) reg.VecVirtual {
	x := f.Register()
	VSQRTPS(second, second)
	VADDPS(f.eps, second, second)
	VDIVPS(second, first, first)
	VMULPS(f.size, first, first)
	VMULPS(p, f.pre, x)
	VSUBPS(first, x, x)
	VMULPS(f.post, x, x)
	return x
}
