package main

import (
	"math"

	. "github.com/snug-ml/snug/internal/_gen/neon"
)

// logistic returns what computes s = σ(t·ln2) and its derivative s·(1 − s), as
// logistic of internal/rowwise does.
func logistic(f *Func) func(t V) (s, ds V) {
	exp2, one, zero := power2(f, -126), f.Constant(1), f.Zero()
	return func(t V) (s, ds V) {
		s, ds = f.V(), f.V()
		f.Scope(func() {
			x, d := f.V(), f.V()
			f.Do(FABS(x, t), FNEG(x, x))
			e := exp2(x)
			f.Do(FADD(d, one, e), FDIV(d, one, d), FMUL(e, e, d), FMUL(ds, e, d)) // e is σ(−|t|·ln2)
			f.Do(FSUB(d, one, e), FCMGT(s, t, zero), BSL(s, d, e))
		})
		return s, ds
	}
}

// The constants of GELU and SiLU, of internal/rowwise.
const (
	gelu1    = 2 * 0.79788456080286536
	gelu3    = gelu1 * 0.044715
	geluFlat = 16
	siluFlat = 128
)

// gate returns what computes σ(2u) and its derivative by 2u for clamped x.
func gate(f *Func) func(x V) (s, ds V) {
	sigma, c := logistic(f), constants(f, gelu3*math.Log2E, gelu1*math.Log2E)
	return func(x V) (s, ds V) {
		t := f.V()
		f.Do(FMUL(t, x, x))
		t = horner(f, t, c)
		f.Do(FMUL(t, t, x))
		return sigma(t)
	}
}

func gelu(file *File) {
	f := begin(file, "gelu", "func(dst, x, bias []float32, stream bool)")
	l := f.Loop("dst", "x", "bias")
	low, high, of := f.Constant(-geluFlat), f.Constant(geluFlat), gate(f)
	l.Each(1, func(u int) {
		z, bias, clamped := l.Load("x", u), l.Load("bias", u), f.V()
		f.Do(FADD(z, z, bias), FMAX(z, z, low), FMIN(clamped, z, high))
		s, _ := of(clamped)
		f.Do(FMUL(s, s, z))
		l.Store(s, "dst", u)
	})
	f.Return()
}

func geluGrad(file *File) {
	f := begin(file, "geluGrad", "func(dx, sums, dy, x, bias []float32, stream bool)")
	l := f.Loop("dx", "sums", "dy", "x", "bias")
	low, high, of, c := f.Constant(-geluFlat), f.Constant(geluFlat), gate(f), constants(f, 3*gelu3, gelu1)
	l.Each(1, func(u int) {
		z, bias := l.Load("x", u), l.Load("bias", u)
		f.Do(FADD(z, z, bias), FMAX(z, z, low), FMIN(z, z, high))
		s, ds := of(z)
		f.Do(FMUL(ds, ds, z), FMUL(z, z, z))
		f.Do(FMLA(s, ds, horner(f, z, c)), FMUL(s, s, l.Load("dy", u)))
		sum := l.Load("sums", u)
		f.Do(FADD(sum, sum, s))
		l.Store(sum, "sums", u)
		l.Store(s, "dx", u)
	})
	f.Return()
}

// The constants of erf GELU, of internal/rowwise.
const (
	normalScale = 0.4
	peak        = 0.3989422804014327
)

// normal returns what computes the normal distribution function of clamped x, and
// e^(−x²/2), as normal of internal/rowwise does.
func normal(f *Func) func(x V) (s, e V) {
	exp2, one := power2(f, -126), f.Constant(1)
	exponent, scale := f.Constant(-0.5*math.Log2E), f.Constant(normalScale)
	c := constants(f, 0.0235113259, 0.0110310866, -0.0492897332, -0.100837998, 0.0496571064, 0.565155149, -0.997355938, 0.5)
	return func(x V) (s, e V) {
		s, e = f.V(), f.V()
		f.Scope(func() { // registers are few
			f.Do(FMUL(e, x, x), FMUL(e, e, exponent))
			f.Do(MOV(e, exp2(e)))
		})
		f.Scope(func() {
			u := f.V()
			f.Do(FABS(u, x), FMUL(u, u, scale), FADD(u, one, u), FDIV(u, one, u), FSUB(u, one, u))
			q := horner(f, u, c)
			f.Do(FMUL(q, q, e), FSUB(u, one, q), SSHR(s, x, 31), BSL(s, q, u))
		})
		return s, e
	}
}

func geluErf(file *File) {
	f := begin(file, "geluErf", "func(dst, x, bias []float32, stream bool)")
	l := f.Loop("dst", "x", "bias")
	low, high, of := f.Constant(-geluFlat), f.Constant(geluFlat), normal(f)
	l.Each(1, func(u int) {
		z, bias, clamped := l.Load("x", u), l.Load("bias", u), f.V()
		f.Do(FADD(z, z, bias), FMAX(z, z, low), FMIN(clamped, z, high))
		s, _ := of(clamped)
		f.Do(FMUL(s, s, z))
		l.Store(s, "dst", u)
	})
	f.Return()
}

func geluErfGrad(file *File) {
	f := begin(file, "geluErfGrad", "func(dx, sums, dy, x, bias []float32, stream bool)")
	l := f.Loop("dx", "sums", "dy", "x", "bias")
	low, high, c, of := f.Constant(-geluFlat), f.Constant(geluFlat), f.Constant(peak), normal(f)
	l.Each(1, func(u int) {
		z, bias := l.Load("x", u), l.Load("bias", u)
		f.Do(FADD(z, z, bias), FMAX(z, z, low), FMIN(z, z, high))
		s, e := of(z)
		f.Do(FMUL(e, e, z), FMLA(s, e, c), FMUL(s, s, l.Load("dy", u)))
		sum := l.Load("sums", u)
		f.Do(FADD(sum, sum, s))
		l.Store(sum, "sums", u)
		l.Store(s, "dx", u)
	})
	f.Return()
}

func siluMul(file *File) {
	f := begin(file, "siluMul", "func(dst, gate, up []float32, stream bool)")
	l := f.Loop("dst", "gate", "up")
	low, log2e, sigma := f.Constant(-siluFlat), f.Constant(math.Log2E), logistic(f)
	l.Each(1, func(u int) {
		x, t := l.Load("gate", u), f.V()
		f.Do(FMAX(x, x, low), FMUL(t, x, log2e))
		s, _ := sigma(t)
		f.Do(FMUL(s, x, s), FMUL(s, s, l.Load("up", u)))
		l.Store(s, "dst", u)
	})
	f.Return()
}

func siluMulGrad(file *File) {
	f := begin(file, "siluMulGrad", "func(dgate, dup, dy, gate, up []float32, stream bool)")
	l := f.Loop("dgate", "dup", "dy", "gate", "up")
	low, high, log2e, sigma := f.Constant(-siluFlat), f.Constant(siluFlat), f.Constant(math.Log2E), logistic(f)
	l.Each(1, func(u int) {
		x, dy, up, t := l.Load("gate", u), l.Load("dy", u), l.Load("up", u), f.V()
		f.Do(FMAX(x, x, low), FMUL(t, x, log2e))
		s, ds := sigma(t)
		f.Do(FMUL(t, x, s), FMUL(t, t, dy), FMUL(up, up, dy))
		f.Do(FMIN(x, x, high), FMLA(s, x, ds), FMUL(s, s, up))
		l.Store(t, "dup", u)
		l.Store(s, "dgate", u)
	})
	f.Return()
}

func geluMul(file *File) {
	f := begin(file, "geluMul", "func(dst, gate, up []float32, stream bool)")
	l := f.Loop("dst", "gate", "up")
	low, high, of := f.Constant(-geluFlat), f.Constant(geluFlat), gate(f)
	l.Each(1, func(u int) {
		z, clamped := l.Load("gate", u), f.V()
		f.Do(FMAX(z, z, low), FMIN(clamped, z, high))
		s, _ := of(clamped)
		f.Do(FMUL(s, z, s), FMUL(s, s, l.Load("up", u)))
		l.Store(s, "dst", u)
	})
	f.Return()
}

func geluMulGrad(file *File) {
	f := begin(file, "geluMulGrad", "func(dgate, dup, dy, gate, up []float32, stream bool)")
	l := f.Loop("dgate", "dup", "dy", "gate", "up")
	low, high, of, c := f.Constant(-geluFlat), f.Constant(geluFlat), gate(f), constants(f, 3*gelu3, gelu1)
	l.Each(1, func(u int) {
		z, dy, up, x := l.Load("gate", u), l.Load("dy", u), l.Load("up", u), f.V()
		f.Do(FMAX(z, z, low), FMIN(x, z, high))
		s, ds := of(x)
		f.Do(FMUL(z, z, s), FMUL(z, z, dy), FMUL(up, up, dy))
		f.Do(FMUL(ds, ds, x), FMUL(x, x, x))
		f.Do(FMLA(s, ds, horner(f, x, c)), FMUL(s, s, up))
		l.Store(z, "dup", u)
		l.Store(s, "dgate", u)
	})
	f.Return()
}

// clampedGate is what the gate of gpt-oss needs. With t = alpha·min(gate, limit) it is silu(t)/alpha times the
// clamped up, plus 1.
type clampedGate struct {
	*Func
	alpha, limit, inverse, flat, log2e, low, one V
	sigma                                        func(t V) (s, ds V)
}

func newClampedGate(f *Func) *clampedGate {
	c := &clampedGate{
		Func: f, alpha: f.Scalar("alpha"), limit: f.Scalar("limit"), inverse: f.V(), low: f.V(),
		flat: f.Constant(-siluFlat), log2e: f.Constant(math.Log2E), one: f.Constant(1), sigma: logistic(f),
	}
	f.Do(FDIV(c.inverse, c.one, c.alpha), FNEG(c.low, c.limit))
	return c
}

// of returns silu(t)/alpha and the derivative of silu at t, which stays finite for large gates.
func (c *clampedGate) of(gate V) (y, slope V) {
	y, slope = c.V(), c.V()
	c.Scope(func() {
		t := c.V()
		c.Do(FMIN(t, gate, c.limit), FMUL(t, t, c.alpha), FMAX(t, t, c.flat), FMUL(y, t, c.log2e))
		s, ds := c.sigma(y)
		c.Do(FMUL(y, t, s), FMUL(y, y, c.inverse), MOV(slope, s), FMLA(slope, t, ds))
	})
	return y, slope
}

// lift replaces up, clamped, plus 1.
func (c *clampedGate) lift(up V) {
	c.Do(FMIN(up, up, c.limit), FMAX(up, up, c.low), FADD(up, up, c.one))
}

func clampedMul(file *File) {
	f := begin(file, "clampedMul", "func(dst, gate, up []float32, alpha, limit float32, stream bool)")
	l := f.Loop("dst", "gate", "up")
	c := newClampedGate(f)
	l.Each(1, func(u int) {
		y, _ := c.of(l.Load("gate", u))
		up := l.Load("up", u)
		c.lift(up)
		f.Do(FMUL(y, y, up))
		l.Store(y, "dst", u)
	})
	f.Return()
}

func clampedMulGrad(file *File) {
	f := begin(file, "clampedMulGrad", "func(dgate, dup, dy, gate, up []float32, alpha, limit float32, stream bool)")
	l := f.Loop("dgate", "dup", "dy", "gate", "up")
	c := newClampedGate(f)
	l.Each(1, func(u int) {
		gate := l.Load("gate", u)
		y, slope := c.of(gate)
		up, dy, beyond := l.Load("up", u), l.Load("dy", u), f.V()
		f.Do(FMUL(y, y, dy), FABS(beyond, up), FCMGE(beyond, beyond, c.limit), BIC(y, y, beyond))
		c.lift(up)
		f.Do(FMUL(up, up, dy), FMUL(up, up, slope), FCMGE(gate, gate, c.limit), BIC(up, up, gate))
		l.Store(y, "dup", u)
		l.Store(up, "dgate", u)
	})
	f.Return()
}
