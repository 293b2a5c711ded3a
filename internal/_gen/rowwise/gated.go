package main

import (
	"math"

	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
)

// siluFlat bounds x where σ(x) is 0 or 1 in float32.
const siluFlat = 128

// sigma returns what computes σ(x), and its derivative if asked, for x ≥
// −siluFlat.
func (r *rows) sigma(slope bool) func(x vectors) (s, ds vectors) {
	if r.bf16 {
		return r.shortSigma(slope)
	}
	one := r.constant(1)
	return func(x vectors) (s, ds vectors) { return r.logistic(r.times(x, math.Log2E), x, r.register(one), slope) }
}

// gated emits a layer dst = gate·factor(gate)·up.
func gated(k kind, name string, of func(r *rows) (a activation, low operand.Op, group int)) {
	r := beginRows(k, name, "func(dst, gate, up []T, stream bool)", nil, "dst", "gate", "up")
	r.loadPacking()
	r.streamed("dst")
	activation, low, group := of(r)
	r.together("main", group, func(us []int) {
		z := r.atLeasts(r.fetches("gate", us), low)
		y, _ := r.by(activation, z)
		for i := range z {
			VMULPS(y[i], z[i], y[i])
		}
		up := r.fetches("up", us)
		for i := range y {
			VMULPS(up[i], y[i], y[i])
		}
		r.puts(y, "dst", us)
	})
	r.end()
}

func siluMul(k kind) {
	gated(k, "siluMul", func(r *rows) (activation, operand.Op, int) {
		return r.sigma(false), r.constant(-siluFlat), r.abreast()
	})
}

func geluMul(k kind) {
	gated(k, "geluMul", func(r *rows) (activation, operand.Op, int) { return r.geluFactors(false) })
}

// gatedGrad emits a layer dup = dy·z·s and dgate = dy·up·slope, of z, the clamped gate.
func gatedGrad(k kind, name string, flat float32, of func(r *rows, high operand.Op) activation) {
	r := beginRows(k, name, "func(dgate, dup, dy, gate, up []T, stream bool)", nil,
		"dgate", "dup", "dy", "gate", "up")
	r.loadPacking()
	r.streamed("dgate", "dup")
	low := r.constant(-flat)
	slopes := of(r, r.constant(flat))
	r.together("main", r.abreast(), func(us []int) {
		z := r.atLeasts(r.fetches("gate", us), low)
		s, slope := r.by(slopes, z)
		for i := range z {
			VMULPS(s[i], z[i], s[i])
		}
		dy := r.fetches("dy", us)
		for i := range s {
			VMULPS(dy[i], s[i], s[i])
		}
		up := r.fetches("up", us)
		for i := range up {
			VMULPS(dy[i], up[i], up[i])
		}
		for i := range up {
			VMULPS(slope[i], up[i], up[i])
		}
		r.puts(s, "dup", us)
		r.puts(up, "dgate", us)
	})
	r.end()
}

func siluMulGrad(k kind) {
	gatedGrad(k, "siluMulGrad", siluFlat, func(r *rows, high operand.Op) activation {
		sigma := r.sigma(true)
		return func(z vectors) (s, slope vectors) {
			s, ds := sigma(z)
			x := r.atMosts(z, high)
			for i := range x {
				VFMADD213PS(s[i], x[i], ds[i]) // ds·x + s
			}
			return s, ds
		}
	})
}

func geluMulGrad(k kind) {
	gatedGrad(k, "geluMulGrad", geluFlat, func(r *rows, high operand.Op) activation {
		slope := r.newSlope()
		return func(z vectors) (vectors, vectors) { return slope(r.atMosts(z, high)) }
	})
}
