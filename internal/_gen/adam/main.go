// Adam generates the AdamW update of internal/adam. A loop does a vector of
// parameters in the order of the Go loop, with a rounding after every
// operation: no fused multiply-add. VSQRTPS and VDIVPS round correctly, as Go's
// square root and division do.
package main

import (
	. "github.com/mmcloughlin/avo/build"

	"github.com/snug-ml/snug/internal/_gen/half/vec"
)

// step is the number of parameters that n is a multiple of.
const step = 16

func main() {
	ConstraintExpr("!noasm,gc")
	for _, s := range vec.Sets {
		update(s)
	}
	Generate()
}

func update(s vec.Set) {
	name := "update" + s.Name
	TEXT(name, NOSPLIT, "func(beta1, rest1, beta2, rest2, gradScale, size, eps, pre, post float32, p, m, v, grad *float32, n int)")
	Pragma("noescape")
	Doc(name + " updates n parameters, a multiple of 16.")
	beta1, rest1 := s.Broadcast(Param("beta1")), s.Broadcast(Param("rest1"))
	beta2, rest2 := s.Broadcast(Param("beta2")), s.Broadcast(Param("rest2"))
	gradScale, size, eps := s.Broadcast(Param("gradScale")), s.Broadcast(Param("size")), s.Broadcast(Param("eps"))
	pre, post := s.Broadcast(Param("pre")), s.Broadcast(Param("post"))
	p, m, v, g := vec.Point("p", 4), vec.Point("m", 4), vec.Point("v", 4), vec.Point("grad", 4)
	n := Load(Param("n"), GP64())
	vec.Loop("loop", n, step, []vec.Pointer{p, m, v, g}, func() {
		for i := 0; i < step; i += s.Lanes {
			x, first, second, t := s.Register(), s.Register(), s.Register(), s.Register()
			VMULPS(g.At(i), gradScale, x)
			VMULPS(x, rest1, t)
			VMULPS(m.At(i), beta1, first)
			VADDPS(t, first, first)
			VMOVUPS(first, m.At(i))

			VMULPS(x, rest2, t)
			VMULPS(x, t, t)
			VMULPS(v.At(i), beta2, second)
			VADDPS(t, second, second)
			VMOVUPS(second, v.At(i))

			VSQRTPS(second, second)
			VADDPS(eps, second, second)
			VDIVPS(second, first, first)
			VMULPS(size, first, first)
			VMULPS(p.At(i), pre, t)
			VSUBPS(first, t, t)
			VMULPS(post, t, t)
			VMOVUPS(t, p.At(i))
		}
	})
	vec.End()
}
