package main

import (
	"math"

	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// logistic is σ as logistic of internal/vexp computes it.
type logistic struct {
	*power2
	sign, one operand.Op
}

func (f *function) newLogistic() *logistic {
	return &logistic{f.newPower2(), f.constant(float32(math.Copysign(0, -1))), f.constant(1)}
}

// of returns s = σ(t·ln2) and, if asked, its derivative s·(1 − s).
func (l *logistic) of(t reg.VecVirtual, slope bool) (s, ds reg.VecVirtual) {
	x, s := l.vec(), l.vec()
	one := l.register(l.one)
	VORPS(l.sign, t, x)
	e := l.power2.of(x)
	d := l.inverse(e, one)
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

// inverse returns 1/(1 + e) for 0 ≤ e ≤ 1. With AVX-512 it is an approximation
// to 14 bits and a step of Newton's method, which take less time than a division.
func (l *logistic) inverse(e, one reg.VecVirtual) reg.VecVirtual {
	d := l.vec()
	VADDPS(one, e, d)
	if !l.wide {
		VDIVPS(d, one, d)
		return d
	}
	r := l.vec()
	VRCP14PS(d, r)
	VFNMADD213PS(one, r, d) // 1 − d·r
	VFMADD213PS(r, r, d)    // r + r·(1 − d·r)
	return d
}

// The constants of GELU, of internal/vexp.
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

func gelu(wide bool) {
	f := begin(wide, "gelu", "is gelu, on vectors.", "func(dst, x, bias []float32)", "dst", "x", "bias")
	low, high, gate := f.constant(-geluFlat), f.constant(geluFlat), f.newGate()
	f.loop(1, func(u int) {
		z := f.load("x", u)
		VADDPS(f.load("bias", u), z, z)
		z = f.atLeast(z, low)
		s, _ := gate(f.atMost(z, high), false)
		VMULPS(z, s, s)
		f.store(s, "dst", u)
	})
	f.end()
}

func geluGrad(wide bool) {
	f := begin(wide, "geluGrad", "is geluGrad, on vectors.",
		"func(dx, sums, dy, x, bias []float32)", "dx", "sums", "dy", "x", "bias")
	low, high, gate := f.constant(-geluFlat), f.constant(geluFlat), f.newGate()
	slope := f.constants(3*gelu3, gelu1)
	f.loop(1, func(u int) {
		z := f.load("x", u)
		VADDPS(f.load("bias", u), z, z)
		z = f.atMost(f.atLeast(z, low), high)
		s, ds := gate(z, true)
		square := f.vec()
		VMULPS(z, z, square)
		VMULPS(z, ds, ds)
		VFMADD231PS(f.horner(square, slope), ds, s)
		VMULPS(f.load("dy", u), s, s)
		f.store(s, "dx", u)
		sums := f.load("sums", u)
		VADDPS(s, sums, sums)
		f.store(sums, "sums", u)
	})
	f.end()
}

// siluFlat bounds x where σ(x) is 0 or 1 in float32.
const siluFlat = 128

func siluMul(wide bool) {
	f := begin(wide, "siluMul", "is siluMul, on vectors.",
		"func(dst, gate, up []float32)", "dst", "gate", "up")
	low, log2e, l := f.constant(-siluFlat), f.constant(math.Log2E), f.newLogistic()
	f.loop(1, func(u int) {
		x := f.atLeast(f.load("gate", u), low)
		t := f.vec()
		VMULPS(log2e, x, t)
		s, _ := l.of(t, false)
		VMULPS(x, s, s)
		VMULPS(f.load("up", u), s, s)
		f.store(s, "dst", u)
	})
	f.end()
}

func siluMulGrad(wide bool) {
	f := begin(wide, "siluMulGrad", "is siluMulGrad, on vectors.",
		"func(dgate, dup, dy, gate, up []float32)", "dgate", "dup", "dy", "gate", "up")
	low, high, log2e, l := f.constant(-siluFlat), f.constant(siluFlat), f.constant(math.Log2E), f.newLogistic()
	f.loop(1, func(u int) {
		x, up, dy := f.atLeast(f.load("gate", u), low), f.load("up", u), f.load("dy", u)
		t := f.vec()
		VMULPS(log2e, x, t)
		s, ds := l.of(t, true)
		silu := f.vec()
		VMULPS(x, s, silu)
		VMULPS(dy, silu, silu)
		VMULPS(up, dy, dy)
		VFMADD231PS(f.atMost(x, high), ds, s)
		VMULPS(dy, s, s)
		f.store(silu, "dup", u)
		f.store(s, "dgate", u)
	})
	f.end()
}
