// Optim generates the NEON loops of internal/optim. Every product and sum is rounded by
// itself.
package main

import (
	"strings"

	. "github.com/snug-ml/snug/internal/_gen/neon"
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
	{"scheduleFree", "beta1 rest1 beta2 rest2 scale1 root size eps gradScale", "m v", scheduleFree(false), false},
	{"scheduleFreeDecay", "beta1 rest1 beta2 rest2 scale1 scale2 root size eps gradScale", "m v", scheduleFree(true), false},
}

func main() {
	file := NewFile()
	for _, r := range rules {
		generate(file, r, false)
		if r.coupled {
			generate(file, r, true)
		}
	}
	file.Generate()
}

// lane is a vector of parameters and what belongs to it.
type lane struct {
	*Loop
	factors    map[string]V
	sign, zero V // the sign bit, and 0
	u          int
	p, g       V
}

func generate(file *File, r rule, coupled bool) {
	name, factors := r.name, strings.Fields(r.factors)
	if coupled {
		name += "L2"
		factors = append(factors, "l2")
	}
	vectors := append([]string{"p", "g"}, strings.Fields(r.states)...)
	f := file.Func(name+"NEON", "func("+strings.Join(vectors, ", ")+" []float32, "+strings.Join(factors, ", ")+" float32)", "updates vectors of one length.")
	l := lane{Loop: f.Loop(vectors...), factors: map[string]V{}}
	for _, x := range factors {
		l.factors[x] = f.Scalar(x)
	}
	if r.name == "lion" {
		l.sign, l.zero = f.Word(1<<31), f.Zero()
	}
	l.Each(1, func(u int) {
		l.u, l.p, l.g = u, l.Load("p", u), l.Load("g", u)
		f.Do(FMUL(l.g, l.g, l.factors["gradScale"]))
		if coupled {
			l.plus(l.g, l.times(l.p, "l2"))
		}
		r.body(&l)
		l.Store(l.p, "p", u)
	})
	f.Return()
}

// times returns x times a factor.
func (l *lane) times(x V, factor string) V {
	r := l.V()
	l.Do(FMUL(r, x, l.factors[factor]))
	return r
}

// plus adds y to x.
func (l *lane) plus(x, y V) { l.Do(FADD(x, x, y)) }

// mean updates a state that is a mean of gradients, and returns it.
func (l *lane) mean(state, decay, rest string) V {
	m := l.Load(state, l.u)
	l.Do(FMUL(m, m, l.factors[decay]))
	l.plus(m, l.times(l.g, rest))
	l.Store(m, state, l.u)
	return m
}

// square updates a state that is a mean, or a sum, of squares, and returns it.
func (l *lane) square(decay, rest string) V {
	v, t := l.Load("v", l.u), l.times(l.g, rest)
	l.Do(FMUL(v, v, l.factors[decay]), FMUL(t, t, l.g))
	l.plus(v, t)
	l.Store(v, "v", l.u)
	return v
}

// over returns x over the square root of v, perhaps times a factor, plus eps.
func (l *lane) over(x, v V, factor string) V {
	t := l.V()
	l.Do(FSQRT(t, v))
	if factor != "" {
		l.Do(FMUL(t, t, l.factors[factor]))
	}
	l.plus(t, l.factors["eps"])
	l.Do(FDIV(t, x, t))
	return t
}

// move subtracts u, perhaps after and before decay.
func (l *lane) move(u V, decay bool) {
	if decay {
		l.Do(FMUL(l.p, l.p, l.factors["pre"]))
	}
	l.Do(FSUB(l.p, l.p, u))
	if decay {
		l.Do(FMUL(l.p, l.p, l.factors["post"]))
	}
}

func adam(l *lane) {
	m := l.mean("m", "beta1", "rest1")
	l.move(l.times(l.over(m, l.square("beta2", "rest2"), ""), "size"), true)
}

func ademamix(l *lane) {
	m, n := l.mean("m", "beta1", "rest1"), l.mean("n", "beta3", "rest3")
	v := l.square("beta2", "rest2")
	u := l.times(m, "scale1")
	l.plus(u, l.times(n, "scale2"))
	l.move(l.times(l.over(u, v, "root"), "size"), true)
}

func momentum(l *lane) {
	u := l.times(l.mean("m", "beta1", "rest1"), "scale1")
	l.plus(u, l.times(l.g, "scale2"))
	l.move(l.times(u, "size"), false)
}

func lion(l *lane) {
	d := l.times(l.Load("m", l.u), "beta1")
	l.plus(d, l.times(l.g, "rest1"))
	l.mean("m", "beta2", "rest2")
	above, below := l.V(), l.V()
	l.Do(FCMGT(above, d, l.zero), FCMGT(below, l.zero, d), ORR(above, above, below))
	l.Do(AND(d, d, l.sign), EOR(d, d, l.factors["size"]), AND(d, d, above))
	l.move(d, true)
}

func squares(l *lane) {
	l.move(l.times(l.over(l.g, l.square("keep", "add"), ""), "size"), false)
}

func lamb(decay bool) func(l *lane) {
	return func(l *lane) {
		u := l.times(l.mean("m", "beta1", "rest1"), "scale1")
		u = l.over(u, l.square("beta2", "rest2"), "root")
		if decay {
			l.plus(u, l.times(l.p, "scale2"))
		}
		l.move(l.times(u, "size"), false)
	}
}

func scheduleFree(decay bool) func(l *lane) {
	return func(l *lane) {
		u := l.over(l.g, l.square("beta2", "rest2"), "root")
		if decay {
			l.plus(u, l.times(l.p, "scale2"))
		}
		m := l.Load("m", l.u)
		l.plus(l.p, l.times(m, "scale1"))
		l.Do(FSUB(l.p, l.p, l.times(u, "size")), FMUL(m, m, l.factors["beta1"]))
		l.Do(FSUB(m, m, l.times(u, "rest1")))
		l.Store(m, "m", l.u)
	}
}

func lars(l *lane) {
	m := l.Load("m", l.u)
	l.Do(FMUL(m, m, l.factors["beta1"]))
	l.plus(m, l.times(l.g, "size"))
	l.Store(m, "m", l.u)
	l.move(m, false)
}
