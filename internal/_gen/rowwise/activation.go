package main

import (
	"math"

	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// logistic is σ as logistic of internal/rowwise computes it.
type logistic struct {
	*power2
	sign, one operand.Op
}

func (f *function) newLogistic() *logistic {
	return &logistic{f.newPower2(-126), f.constant(float32(math.Copysign(0, -1))), f.constant(1)}
}

// of returns s = σ(t·ln2) and, if asked, its derivative s·(1 − s).
func (l *logistic) of(t reg.VecVirtual, slope bool) (s, ds reg.VecVirtual) {
	x, s := l.vec(), l.vec()
	one := l.register(l.one)
	VORPS(l.sign, t, x)
	e := l.power2.of(x)
	d := l.vec()
	VADDPS(one, e, d)
	l.inverse(d, one)
	VMULPS(d, e, e) // σ(−|t|·ln2)
	if slope {
		ds = l.vec()
		VMULPS(d, e, ds)
	}
	VSUBPS(e, one, s)
	if l.wide {
		negative := K()
		VPMOVD2M(t, negative)
		VMOVAPS(e, negative, s)
	} else {
		VBLENDVPS(t, e, s, s)
	}
	return s, ds
}

// inverse replaces d, a normal number, by 1/d. With AVX-512 that is an approximation
// to 14 bits and a step of Newton's method, which take less time than a division.
func (f *function) inverse(d, one reg.VecVirtual) {
	if !f.wide {
		VDIVPS(d, one, d)
		return
	}
	r := f.vec()
	VRCP14PS(d, r)
	VFNMADD213PS(one, r, d) // 1 − d·r
	VFMADD213PS(r, r, d)    // r + r·(1 − d·r)
}

// The constants of GELU, of internal/rowwise.
const (
	gelu1    = 2 * 0.79788456080286536
	gelu3    = gelu1 * 0.044715
	geluFlat = 16
)

// newGate returns σ(2u) and its derivative by 2u for clamped x.
func (f *function) newGate() func(x reg.VecVirtual, slope bool) (s, ds reg.VecVirtual) {
	l, c1, c3 := f.newLogistic(), f.constant(gelu1*math.Log2E), f.constant(gelu3*math.Log2E)
	return func(x reg.VecVirtual, slope bool) (s, ds reg.VecVirtual) {
		t := f.vec()
		VMULPS(x, x, t)
		t = f.horner(t, []operand.Op{c3, c1})
		VMULPS(x, t, t)
		return l.of(t, slope)
	}
}

// factor and slope return what computes gelu's factor of z = x + bias, clamped
// from below, and its derivative.
func (r *rows) factor() func(z reg.VecVirtual) reg.VecVirtual {
	high := r.constant(geluFlat)
	gate := r.newGate()
	return func(z reg.VecVirtual) reg.VecVirtual {
		s, _ := gate(r.atMost(z, high), false)
		return s
	}
}

func (r *rows) slope() func(z reg.VecVirtual) reg.VecVirtual {
	high, gate, c := r.constant(geluFlat), r.newGate(), r.constants(3*gelu3, gelu1)
	return func(z reg.VecVirtual) reg.VecVirtual {
		z = r.atMost(z, high)
		s, ds := gate(z, true)
		square := r.vec()
		VMULPS(z, z, square)
		VMULPS(z, ds, ds)
		VFMADD231PS(r.horner(square, c), ds, s)
		return s
	}
}

func gelu(k kind) {
	r := beginRows(k, "gelu", "func(dst, x, bias []T, stream bool)", nil, "dst", "x", "bias")
	r.loadPacking()
	r.streamed("dst")
	low, of := r.constant(-geluFlat), r.factor
	switch {
	case k.bf16:
		low, of = r.constant(-tableFlat), r.newTable("gelu", shortFactors)
	case k.wide:
		low, of = r.constant(-tableFlat), r.newTable("gelu32", factors)
	}
	factor := of()
	r.pass("main", 1, func(u int) {
		x, bias := r.fetch("x", u), r.get("bias", u)
		each(x, func(v int, z reg.VecVirtual) { VADDPS(bias[v], z, z) })
		for v := range x {
			x[v] = r.atLeast(x[v], low)
			VMULPS(factor(x[v]), x[v], x[v])
		}
		r.put(x, "dst", u)
	})
	r.end()
}

func geluGrad(k kind) {
	r := beginRows(k, "geluGrad", "func(dx []T, sums []float32, dy, x, bias []T, stream bool)", []string{"sums"},
		"dx", "sums", "dy", "x", "bias")
	r.loadPacking()
	r.streamed("dx")
	low, of := r.constant(-geluFlat), r.slope
	switch {
	case k.bf16:
		low, of = r.constant(-tableFlat), r.newTable("geluSlope", shortSlopes)
	case k.wide:
		low, of = r.constant(-tableFlat), r.newTable("geluSlope32", slopes)
	}
	slope := of()
	r.pass("main", 1, func(u int) {
		x, bias := r.fetch("x", u), r.get("bias", u)
		each(x, func(v int, z reg.VecVirtual) { VADDPS(bias[v], z, z) })
		for v := range x {
			x[v] = slope(r.atLeast(x[v], low))
		}
		dy := r.fetch("dy", u)
		each(x, func(v int, s reg.VecVirtual) { VMULPS(dy[v], s, s) })
		total := r.get("sums", u)
		each(total, func(v int, sum reg.VecVirtual) { VADDPS(x[v], sum, sum) })
		r.put(total, "sums", u)
		r.put(x, "dx", u)
	})
	r.end()
}

// The constants of erf GELU, of internal/rowwise.
const (
	normalScale = 0.4
	peak        = 0.3989422804014327
)

var normalTail = []float32{
	0.0235113259, 0.0110310866, -0.0492897332, -0.100837998, 0.0496571064, 0.565155149, -0.997355938, 0.5,
}

// polynomial evaluates a polynomial as horner does, with coefficients in memory also
// for AVX-512, whose registers others need.
func (f *function) polynomial(r reg.VecVirtual, coefficients []float32) reg.VecVirtual {
	p := f.vec()
	for i, c := range coefficients {
		at := lanesOf(math.Float32bits(c))
		switch {
		case i == 0:
			VBROADCASTSS(at, p)
		case f.wide:
			VFMADD213PS_BCST(at, r, p)
		default:
			VFMADD213PS(at, r, p)
		}
	}
	return p
}

// newNormal returns what computes the normal distribution function of clamped x, and
// e^(−x²/2), as normal of internal/rowwise does.
func (f *function) newNormal() func(x reg.VecVirtual) (s, e reg.VecVirtual) {
	power, one, sign := f.newPower2(-126), f.constant(1), f.constant(float32(math.Copysign(0, -1)))
	exponent, scale := f.constant(-0.5*math.Log2E), f.constant(normalScale)
	return func(x reg.VecVirtual) (s, e reg.VecVirtual) {
		y, s := f.vec(), f.vec()
		VMULPS(x, x, y)
		VMULPS(exponent, y, y)
		e = power.of(y)
		one := f.register(one)
		u, d := f.vec(), f.vec()
		VORPS(sign, x, u)
		VMOVAPS(one, d)
		VFNMADD231PS(scale, u, d) // 1 + scale·|x|
		f.inverse(d, one)
		VSUBPS(d, one, u)
		q := f.polynomial(u, normalTail)
		VMULPS(e, q, q)
		VSUBPS(q, one, s)
		if f.wide {
			negative := K()
			VPMOVD2M(x, negative)
			VMOVAPS(q, negative, s)
		} else {
			VBLENDVPS(x, q, s, s)
		}
		return s, e
	}
}

func geluErf(k kind) {
	r := beginRows(k, "geluErf", "func(dst, x, bias []T, stream bool)", nil, "dst", "x", "bias")
	r.loadPacking()
	r.streamed("dst")
	low, high, normal := r.constant(-geluFlat), r.constant(geluFlat), r.newNormal()
	r.pass("main", 1, func(u int) {
		x, bias := r.fetch("x", u), r.get("bias", u)
		each(x, func(v int, z reg.VecVirtual) { VADDPS(bias[v], z, z) })
		for v := range x {
			x[v] = r.atLeast(x[v], low)
			s, _ := normal(r.atMost(x[v], high))
			VMULPS(s, x[v], x[v])
		}
		r.put(x, "dst", u)
	})
	r.end()
}

func geluErfGrad(k kind) {
	r := beginRows(k, "geluErfGrad", "func(dx []T, sums []float32, dy, x, bias []T, stream bool)", []string{"sums"},
		"dx", "sums", "dy", "x", "bias")
	r.loadPacking()
	r.streamed("dx")
	low, high, c, normal := r.constant(-geluFlat), r.constant(geluFlat), r.constant(peak), r.newNormal()
	r.pass("main", 1, func(u int) {
		x, bias := r.fetch("x", u), r.get("bias", u)
		each(x, func(v int, z reg.VecVirtual) { VADDPS(bias[v], z, z) })
		for v := range x {
			z := r.atMost(r.atLeast(x[v], low), high)
			s, e := normal(z)
			VMULPS(z, e, e)
			VFMADD231PS(c, e, s)
			x[v] = s
		}
		dy := r.fetch("dy", u)
		each(x, func(v int, s reg.VecVirtual) { VMULPS(dy[v], s, s) })
		total := r.get("sums", u)
		each(total, func(v int, sum reg.VecVirtual) { VADDPS(x[v], sum, sum) })
		r.put(total, "sums", u)
		r.put(x, "dx", u)
	})
	r.end()
}

// siluFlat bounds x where σ(x) is 0 or 1 in float32.
const siluFlat = 128

// sigma returns what computes σ(x), and its derivative if asked, for x ≥
// −siluFlat.
func (r *rows) sigma(slope bool) func(x reg.VecVirtual) (s, ds reg.VecVirtual) {
	if r.bf16 {
		return r.shortSigma(slope)
	}
	log2e, l := r.constant(math.Log2E), r.newLogistic()
	return func(x reg.VecVirtual) (s, ds reg.VecVirtual) {
		t := r.vec()
		VMULPS(log2e, x, t)
		return l.of(t, slope)
	}
}

func siluMul(k kind) {
	r := beginRows(k, "siluMul", "func(dst, gate, up []T, stream bool)", nil, "dst", "gate", "up")
	r.loadPacking()
	r.streamed("dst")
	low, of := r.constant(-siluFlat), r.sigma(false)
	r.pass("main", 1, func(u int) {
		x := r.fetch("gate", u)
		for v := range x {
			z := r.atLeast(x[v], low)
			s, _ := of(z)
			VMULPS(z, s, x[v])
		}
		up := r.fetch("up", u)
		each(x, func(v int, y reg.VecVirtual) { VMULPS(up[v], y, y) })
		r.put(x, "dst", u)
	})
	r.end()
}

func siluMulGrad(k kind) {
	r := beginRows(k, "siluMulGrad", "func(dgate, dup, dy, gate, up []T, stream bool)", nil,
		"dgate", "dup", "dy", "gate", "up")
	r.loadPacking()
	r.streamed("dgate", "dup")
	low, high, of := r.constant(-siluFlat), r.constant(siluFlat), r.sigma(true)
	r.pass("main", 1, func(u int) {
		var silu, slope unit
		x := r.fetch("gate", u)
		for v := range x {
			z := r.atLeast(x[v], low)
			s, ds := of(z)
			silu[v], slope[v] = r.vec(), s
			VMULPS(z, s, silu[v])
			VFMADD231PS(r.atMost(z, high), ds, s)
		}
		dy := r.fetch("dy", u)
		up := r.fetch("up", u)
		each(silu, func(v int, y reg.VecVirtual) { VMULPS(dy[v], y, y) })
		each(up, func(v int, y reg.VecVirtual) {
			VMULPS(dy[v], y, y)
			VMULPS(slope[v], y, y)
		})
		r.put(silu, "dup", u)
		r.put(up, "dgate", u)
	})
	r.end()
}

func geluMul(k kind) {
	r := beginRows(k, "geluMul", "func(dst, gate, up []T, stream bool)", nil, "dst", "gate", "up")
	r.loadPacking()
	r.streamed("dst")
	low, factor := r.constant(-geluFlat), r.factor()
	r.pass("main", 1, func(u int) {
		x := r.fetch("gate", u)
		for v := range x {
			x[v] = r.atLeast(x[v], low)
			VMULPS(x[v], factor(x[v]), x[v])
		}
		up := r.fetch("up", u)
		each(x, func(v int, y reg.VecVirtual) { VMULPS(up[v], y, y) })
		r.put(x, "dst", u)
	})
	r.end()
}

func geluMulGrad(k kind) {
	r := beginRows(k, "geluMulGrad", "func(dgate, dup, dy, gate, up []T, stream bool)", nil,
		"dgate", "dup", "dy", "gate", "up")
	r.loadPacking()
	r.streamed("dgate", "dup")
	low, high, gate, c := r.constant(-geluFlat), r.constant(geluFlat), r.newGate(), r.constants(3*gelu3, gelu1)
	r.pass("main", 1, func(u int) {
		var gelu, slope unit
		x := r.fetch("gate", u)
		for v := range x {
			z := r.atLeast(x[v], low)
			x := r.atMost(z, high)
			s, ds := gate(x, true)
			gelu[v], slope[v] = r.vec(), s
			VMULPS(z, s, gelu[v])
			square := r.vec()
			VMULPS(x, x, square)
			VMULPS(x, ds, ds)
			VFMADD231PS(r.horner(square, c), ds, s)
		}
		dy := r.fetch("dy", u)
		up := r.fetch("up", u)
		each(gelu, func(v int, y reg.VecVirtual) { VMULPS(dy[v], y, y) })
		each(up, func(v int, y reg.VecVirtual) {
			VMULPS(dy[v], y, y)
			VMULPS(slope[v], y, y)
		})
		r.put(gelu, "dup", u)
		r.put(up, "dgate", u)
	})
	r.end()
}
