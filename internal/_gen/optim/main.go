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
	near = 256 // how far, in elements, all vectors are fetched: what is fetched beyond a worker's piece is lost
)

// rule is one update: its factors, its states, and what it does to a vector.
type rule struct {
	name    string
	factors string // separated by blanks
	states  string
	stages  []stage // after the gradient
	coupled bool    // there is a variant with weight decay in the gradient
}

// stage is the part of an update that reads and writes one vector of memory. It goes
// through several lines of the cache before the next stage begins: the first-level cache of
// AMD's processors keeps only one of the lines whose addresses are a multiple of 256 MiB
// apart, as vectors of 2^26 parameters are. Line by line Adam then took twice as long on a
// Zen 4. The lines are fetched to the second-level cache, which keeps them all.
type stage struct {
	vector string
	do     func(l *lane)
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
	{"scheduleFree", "beta1 rest1 beta2 rest2 scale1 root size eps gradScale", "m v", scheduleFree(false), false},
	{"scheduleFreeDecay", "beta1 rest1 beta2 rest2 scale1 scale2 root size eps gradScale", "m v", scheduleFree(true), false},
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
	u       reg.VecVirtual // the update, as far as it is known
}

func generate(s vec.Set, r rule, coupled bool) {
	name, factors := r.name, strings.Fields(r.factors)
	if coupled {
		name += "L2"
		factors = append(factors, "l2")
	}
	name += s.Name
	vectors := append([]string{"p", "grad"}, strings.Fields(r.states)...)
	vec.Func(name, "func("+strings.Join(factors, ", ")+" float32, "+strings.Join(vectors, ", ")+" *float32, len int)",
		name+" updates len parameters, a multiple of 16.")
	f := map[string]reg.VecVirtual{}
	if s.Wide() { // AVX2 lacks the registers and reads them at each use
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
	stages := append([]stage{{"grad", gradient(coupled)}}, r.stages...)
	update := func(from, to int) {
		var lanes []*lane
		for i := from; i < to; i += s.Lanes {
			at := map[string]Mem{}
			for v, p := range pointers {
				at[v] = p.At(i)
			}
			lanes = append(lanes, &lane{Set: s, factors: f, at: at})
		}
		for _, x := range stages {
			for i, l := range lanes {
				if at := from + i*s.Lanes; at%step == 0 {
					PREFETCHT1(pointers[x.vector].At(near + at))
				}
				x.do(l)
			}
		}
	}
	lines := 2
	if s.Wide() {
		lines = 4
	}
	n := Load(Param("len"), GP64())
	vec.Loop("lines", n, lines*step, all, func() { update(0, lines*step) })
	vec.Loop("loop", n, step, all, func() { update(0, step) })
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

// gradient loads the gradient.
func gradient(coupled bool) func(l *lane) {
	return func(l *lane) {
		l.g = l.times(l.at["grad"], "gradScale")
		if coupled {
			plus(l.g, l.times(l.at["p"], "l2"))
		}
	}
}

// first is the first moment of Adam and its kin, times a factor if there is one.
func first(factor string) stage {
	return stage{"m", func(l *lane) {
		l.u = l.mean("m", "beta1", "rest1")
		if factor != "" {
			l.u = l.times(l.u, factor)
		}
	}}
}

// second is the second moment, by which it divides the update.
func second(root string) stage {
	return stage{"v", func(l *lane) {
		v := l.square("beta2", "rest2")
		l.root(v, root)
		VDIVPS(v, l.u, l.u)
	}}
}

// subtracted subtracts the update times size.
func subtracted(decay bool) stage {
	return stage{"p", func(l *lane) { l.subtract(l.u, decay) }}
}

var adam = []stage{first(""), second(""), subtracted(true)}

var ademamix = []stage{
	first("scale1"),
	{"n", func(l *lane) { plus(l.u, l.times(l.mean("n", "beta3", "rest3"), "scale2")) }},
	second("root"), subtracted(true),
}

var momentum = []stage{
	{"m", func(l *lane) {
		l.u = l.times(l.mean("m", "beta1", "rest1"), "scale1")
		plus(l.u, l.times(l.g, "scale2"))
	}},
	subtracted(false),
}

var lion = []stage{
	{"m", func(l *lane) {
		l.u = l.times(l.at["m"], "beta1")
		plus(l.u, l.times(l.g, "rest1"))
		l.mean("m", "beta2", "rest2")
	}},
	{"p", func(l *lane) {
		zero, sign := l.Zero(), l.And(l.Constant(1<<31), l.u)
		const notEqual = 12 // and both are numbers
		u := l.Register()
		if l.Wide() {
			some := K()
			VCMPPS(Imm(notEqual), zero, l.u, some)
			VPXORD_Z(l.factor("size"), sign, some, u)
		} else {
			some := l.Register()
			VCMPPS(Imm(notEqual), zero, l.u, some)
			VXORPS(l.factor("size"), sign, u)
			VANDPS(some, u, u)
		}
		l.move(u, true)
	}},
}

var squares = []stage{
	{"v", func(l *lane) {
		v := l.square("keep", "add")
		l.root(v, "")
		l.u = l.Register()
		VDIVPS(v, l.g, l.u)
	}},
	subtracted(false),
}

func lamb(decay bool) []stage {
	return []stage{first("scale1"), second("root"), {"p", func(l *lane) {
		if decay {
			plus(l.u, l.times(l.at["p"], "scale2"))
		}
		l.subtract(l.u, false)
	}}}
}

// scheduleFree keeps the old m, which the parameter takes, until the last stage.
func scheduleFree(decay bool) []stage {
	return []stage{
		{"v", func(l *lane) {
			v := l.square("beta2", "rest2")
			l.root(v, "root")
			l.u = l.Register()
			VDIVPS(v, l.g, l.u)
		}},
		{"p", func(l *lane) {
			if decay {
				plus(l.u, l.times(l.at["p"], "scale2"))
			}
			x := l.times(l.at["m"], "scale1")
			VADDPS(l.at["p"], x, x)
			VSUBPS(l.times(l.u, "size"), x, x)
			VMOVUPS(x, l.at["p"])
		}},
		{"m", func(l *lane) {
			m := l.times(l.at["m"], "beta1")
			VSUBPS(l.times(l.u, "rest1"), m, m)
			VMOVUPS(m, l.at["m"])
		}},
	}
}

var lars = []stage{
	{"m", func(l *lane) {
		l.u = l.times(l.at["m"], "beta1")
		plus(l.u, l.times(l.g, "size"))
		VMOVUPS(l.u, l.at["m"])
	}},
	{"p", func(l *lane) { l.move(l.u, false) }},
}
