// Optim generates the updates of internal/optim. A loop does a vector of parameters
// in the order of the Go loop, with a rounding after every operation: no fused
// multiply-add. VSQRTPS and VDIVPS round correctly, as Go's square root and division do.
package main

import (
	"strings"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"

	"github.com/snug-ml/snug/internal/_gen/half/vec"
)

const (
	step = 16  // parameters that n is a multiple of
	near = 256 // how far, in elements, all vectors are fetched
	most = 9   // factors that AVX2 has registers for; more are read at each use
)

// rule is one update: its factors, its states, and what it does to a vector.
type rule struct {
	name    string
	factors string // separated by blanks
	states  string
	body    func(l *lane)
	coupled bool // there is a variant with weight decay in the gradient
}

var rules = []rule{
	{"adam", "beta1 rest1 beta2 rest2 size eps gradScale pre post", "m v", adam, true},
	{"ademamix", "beta1 rest1 beta2 rest2 beta3 rest3 scale1 scale2 root size eps gradScale pre post", "m n v", ademamix, false},
	{"momentum", "beta1 rest1 scale1 scale2 size gradScale", "m", momentum, true},
	{"lion", "beta1 rest1 beta2 rest2 size gradScale pre post", "m", lion, false},
	{"squares", "keep add size eps gradScale", "v", squares, true},
	{"lamb", "beta1 rest1 beta2 rest2 scale1 root size eps gradScale", "m v", lamb(false), false},
	{"lambDecay", "beta1 rest1 beta2 rest2 scale1 scale2 root size eps gradScale", "m v", lamb(true), false},
	{"lars", "beta1 size gradScale", "m", lars, true},
}

func main() {
	ConstraintExpr("!noasm,gc")
	for _, s := range vec.Sets {
		for _, r := range rules {
			generate(s, r, false)
			if r.coupled {
				generate(s, r, true)
			}
		}
	}
	adam8()
	Generate()
}

// lane is a vector of parameters and what belongs to it, in registers.
type lane struct {
	vec.Set
	factors map[string]reg.VecVirtual
	at      map[string]Mem // p and the states
	g       reg.VecVirtual // the gradient, scaled
}

func generate(s vec.Set, r rule, coupled bool) {
	name, factors := r.name, strings.Fields(r.factors)
	if coupled {
		name += "L2"
		factors = append(factors, "l2")
	}
	name += s.Name
	vectors := append([]string{"p", "grad"}, strings.Fields(r.states)...)
	TEXT(name, NOSPLIT, "func("+strings.Join(factors, ", ")+" float32, "+strings.Join(vectors, ", ")+" *float32, len int)")
	Pragma("noescape")
	Doc(name + " updates len parameters, a multiple of 16.")
	f := map[string]reg.VecVirtual{}
	if s.Wide() || len(factors) <= most {
		for _, x := range factors {
			f[x] = s.Broadcast(Param(x))
		}
	}
	pointers := map[string]vec.Pointer{}
	var all []vec.Pointer
	for _, v := range vectors {
		pointers[v] = vec.Point(v, 4)
		all = append(all, pointers[v])
	}
	n := Load(Param("len"), GP64())
	vec.Loop("loop", n, step, all, func() {
		for _, x := range all {
			PREFETCHT0(x.At(near))
		}
		for i := 0; i < step; i += s.Lanes {
			l := lane{s, f, map[string]Mem{}, s.Register()}
			for v, p := range pointers {
				l.at[v] = p.At(i)
			}
			VMULPS(l.at["grad"], l.factor("gradScale"), l.g)
			if coupled {
				VADDPS(l.times(l.at["p"], "l2"), l.g, l.g)
			}
			r.body(&l)
		}
	})
	vec.End()
}

// factor returns a factor in every lane.
func (l *lane) factor(name string) reg.VecVirtual {
	if r, ok := l.factors[name]; ok {
		return r
	}
	return l.Broadcast(Param(name))
}

// times returns x times a factor.
func (l *lane) times(x Op, factor string) reg.VecVirtual {
	r := l.Register()
	VMULPS(x, l.factor(factor), r)
	return r
}

// plus adds y to x.
func plus(x, y reg.VecVirtual) { VADDPS(y, x, x) }

// mean updates a state that is a mean of gradients, and returns it.
func (l *lane) mean(state, decay, rest string) reg.VecVirtual {
	m := l.times(l.at[state], decay)
	plus(m, l.times(l.g, rest))
	VMOVUPS(m, l.at[state])
	return m
}

// square updates a state that is a mean, or a sum, of squares, and returns it.
func (l *lane) square(decay, rest string) reg.VecVirtual {
	v, t := l.times(l.at["v"], decay), l.times(l.g, rest)
	VMULPS(l.g, t, t)
	plus(v, t)
	VMOVUPS(v, l.at["v"])
	return v
}

// root turns v into its square root, perhaps times a factor, plus eps.
func (l *lane) root(v reg.VecVirtual, factor string) {
	VSQRTPS(v, v)
	if factor != "" {
		VMULPS(l.factor(factor), v, v)
	}
	VADDPS(l.factor("eps"), v, v)
}

// subtract subtracts size·u, perhaps after and before decay.
func (l *lane) subtract(u reg.VecVirtual, decay bool) {
	VMULPS(l.factor("size"), u, u)
	l.move(u, decay)
}

// move subtracts u.
func (l *lane) move(u reg.VecVirtual, decay bool) {
	x := l.Register()
	if decay {
		x = l.times(l.at["p"], "pre")
	} else {
		VMOVUPS(l.at["p"], x)
	}
	VSUBPS(u, x, x)
	if decay {
		VMULPS(l.factor("post"), x, x)
	}
	VMOVUPS(x, l.at["p"])
}

func adam(l *lane) {
	m, v := l.mean("m", "beta1", "rest1"), l.square("beta2", "rest2")
	l.root(v, "")
	u := l.Register()
	VDIVPS(v, m, u)
	l.subtract(u, true)
}

func ademamix(l *lane) {
	m, n, v := l.mean("m", "beta1", "rest1"), l.mean("n", "beta3", "rest3"), l.square("beta2", "rest2")
	u := l.times(m, "scale1")
	plus(u, l.times(n, "scale2"))
	l.root(v, "root")
	VDIVPS(v, u, u)
	l.subtract(u, true)
}

func momentum(l *lane) {
	u := l.times(l.mean("m", "beta1", "rest1"), "scale1")
	plus(u, l.times(l.g, "scale2"))
	l.subtract(u, false)
}

func lion(l *lane) {
	d := l.times(l.at["m"], "beta1")
	plus(d, l.times(l.g, "rest1"))
	l.mean("m", "beta2", "rest2")
	zero, sign := l.Zero(), l.And(l.Constant(1<<31), d)
	const notEqual = 12 // and both are numbers
	u := l.Register()
	if l.Wide() {
		some := K()
		VCMPPS(Imm(notEqual), zero, d, some)
		VPXORD_Z(l.factor("size"), sign, some, u)
	} else {
		some := l.Register()
		VCMPPS(Imm(notEqual), zero, d, some)
		VXORPS(l.factor("size"), sign, u)
		VANDPS(some, u, u)
	}
	l.move(u, true)
}

func squares(l *lane) {
	v := l.square("keep", "add")
	l.root(v, "")
	u := l.Register()
	VDIVPS(v, l.g, u)
	l.subtract(u, false)
}

func lamb(decay bool) func(l *lane) {
	return func(l *lane) {
		u, v := l.times(l.mean("m", "beta1", "rest1"), "scale1"), l.square("beta2", "rest2")
		l.root(v, "root")
		VDIVPS(v, u, u)
		if decay {
			plus(u, l.times(l.at["p"], "scale2"))
		}
		l.subtract(u, false)
	}
}

func lars(l *lane) {
	m := l.times(l.at["m"], "beta1")
	plus(m, l.times(l.g, "size"))
	VMOVUPS(m, l.at["m"])
	l.move(m, false)
}
