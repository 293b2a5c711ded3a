package main

import (
	"math"

	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// logistic is σ(v) by e^−|v|, which is at most 1.
type logistic struct {
	*exponential
	sign operand.Op
}

func (f *function) newLogistic() *logistic {
	return &logistic{f.newExponential(), f.constant(float32(math.Copysign(0, -1)))}
}

// of returns σ(v), and its derivative σ(v)(1 − σ(v)).
func (l *logistic) of(v reg.VecVirtual) (s, ds reg.VecVirtual) {
	x, d, s, ds := l.vec(), l.vec(), l.vec(), l.vec()
	one := l.register(l.one)
	VORPS(l.sign, v, x)
	e := l.exponential.of(x)
	VADDPS(one, e, d)
	VDIVPS(d, one, d)
	VMULPS(d, e, e) // σ(−|v|)
	VMULPS(d, e, ds)
	VSUBPS(e, one, s)
	if l.wide {
		negative := K()
		VPMOVD2M(v, negative)
		VMOVAPS(e, negative, s)
	} else {
		VBLENDVPS(v, e, s, s)
	}
	return s, ds
}

// The constants of GELU, of internal/vexp.
const (
	gelu1    = 2 * 0.79788456080286536
	gelu3    = gelu1 * 0.044715
	geluFlat = 16
)

// newGate returns σ(2u) and its derivative by 2u for clamped x.
func (f *function) newGate() func(x reg.VecVirtual) (s, ds reg.VecVirtual) {
	l, c1, c3 := f.newLogistic(), f.constant(gelu1), f.constant(gelu3)
	return func(x reg.VecVirtual) (s, ds reg.VecVirtual) {
		v := f.vec()
		VMULPS(x, x, v)
		v = f.horner(v, []operand.Op{c3, c1})
		VMULPS(x, v, v)
		return l.of(v)
	}
}

func gelu(wide bool) {
	f := begin(wide, "gelu", "is gelu, on vectors.", "func(dst, x, bias []float32)", "dst", "x", "bias")
	low, high, gate := f.constant(-geluFlat), f.constant(geluFlat), f.newGate()
	f.loop(1, func(u int) {
		z := f.load("x", u)
		VADDPS(f.load("bias", u), z, z)
		z = f.atLeast(z, low)
		s, _ := gate(f.atMost(z, high))
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
		s, ds := gate(z)
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
	low, l := f.constant(-siluFlat), f.newLogistic()
	f.loop(1, func(u int) {
		x := f.atLeast(f.load("gate", u), low)
		s, _ := l.of(x)
		VMULPS(x, s, s)
		VMULPS(f.load("up", u), s, s)
		f.store(s, "dst", u)
	})
	f.end()
}

func siluMulGrad(wide bool) {
	f := begin(wide, "siluMulGrad", "is siluMulGrad, on vectors.",
		"func(dgate, dup, dy, gate, up []float32)", "dgate", "dup", "dy", "gate", "up")
	low, high, l := f.constant(-siluFlat), f.constant(siluFlat), f.newLogistic()
	f.loop(1, func(u int) {
		x, up, dy := f.atLeast(f.load("gate", u), low), f.load("up", u), f.load("dy", u)
		s, ds := l.of(x)
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
