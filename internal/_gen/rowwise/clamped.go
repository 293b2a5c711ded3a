package main

import (
	"math"

	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/reg"
)

// The gate of gpt-oss. With t = alpha·min(gate, limit) it is silu(t)/alpha times the clamped up, plus 1. Parameters
// are read from memory where they are used: with AVX2 registers are few.

// steeper returns t, at least −siluFlat, of gates that it clamps.
func (r *rows) steeper(gate vectors) vectors {
	limit := r.scalar("limit")
	for i := range gate {
		VMINPS(gate[i], limit, gate[i])
	}
	alpha := r.scalar("alpha")
	for i := range gate {
		VMULPS(alpha, gate[i], gate[i])
	}
	return r.atLeasts(gate, r.constant(-siluFlat))
}

// lifted clamps ups and adds 1.
func (r *rows) lifted(up vectors) vectors {
	limit, low, one := r.scalar("limit"), r.vec(), r.register(r.constant(1))
	r.withConstant(VXORPS, VXORPS_BCST, float32(math.Copysign(0, -1)), limit, low)
	for i := range up {
		VMINPS(up[i], limit, up[i])
	}
	for i := range up {
		VMAXPS(up[i], low, up[i])
	}
	for i := range up {
		VADDPS(one, up[i], up[i])
	}
	return up
}

// unscaled multiplies by 1/alpha.
func (r *rows) unscaled(x vectors, inverse reg.VecVirtual) {
	for i := range x {
		VMULPS(inverse, x[i], x[i])
	}
}

// inverse returns 1/alpha.
func (r *rows) inverse() reg.VecVirtual {
	v := r.vec()
	VDIVPS(r.scalar("alpha"), r.register(r.constant(1)), v)
	return v
}

// within sets x to 0 where v is at the limit or above.
func (r *rows) within(x, v vectors) {
	limit := r.scalar("limit")
	for i := range x {
		if r.wide {
			k := K()
			VCMPPS(notReach, limit, v[i], k)
			VMOVAPS_Z(x[i], k, x[i])
		} else {
			VCMPPS(notReach, limit, v[i], v[i])
			VANDPS(v[i], x[i], x[i])
		}
	}
}

func clampedMul(k kind) {
	r := beginRows(k, "clampedMul", "func(dst, gate, up []T, alpha, limit float32, stream bool)", nil, "dst", "gate", "up")
	r.loadPacking()
	r.streamed("dst")
	sigma, inverse := r.sigma(false), r.inverse()
	r.together("main", r.abreast(), func(us []int) {
		t := r.steeper(r.fetches("gate", us))
		y, _ := r.by(sigma, t)
		for i := range t {
			VMULPS(t[i], y[i], y[i])
		}
		r.unscaled(y, inverse)
		up := r.lifted(r.fetches("up", us))
		for i := range y {
			VMULPS(up[i], y[i], y[i])
		}
		r.puts(y, "dst", us)
	})
	r.end()
}

func clampedMulGrad(k kind) {
	r := beginRows(k, "clampedMulGrad", "func(dgate, dup, dy, gate, up []T, alpha, limit float32, stream bool)", nil,
		"dgate", "dup", "dy", "gate", "up")
	r.loadPacking()
	r.streamed("dgate", "dup")
	sigma, inverse := r.sigma(true), r.inverse()
	r.together("main", r.abreast(), func(us []int) {
		t := r.steeper(r.fetches("gate", us))
		s, slope := r.by(sigma, t)
		y := r.vecs(len(t))
		for i := range t {
			VMULPS(t[i], s[i], y[i])
		}
		for i := range t {
			VFMADD213PS(s[i], t[i], slope[i]) // slope·t + s; t is not +Inf
		}
		dy := r.fetches("dy", us)
		for i := range y {
			VMULPS(dy[i], y[i], y[i])
		}
		r.unscaled(y, inverse)
		up := r.lifted(r.fetches("up", us))
		for i := range up {
			VMULPS(dy[i], up[i], up[i])
		}
		for i := range up {
			VMULPS(slope[i], up[i], up[i])
		}
		r.within(up, r.gets("gate", us))
		sizes := r.gets("up", us)
		for i := range sizes {
			r.withConstant(VANDPS, VANDPS_BCST, math.Float32frombits(math.MaxInt32), sizes[i], sizes[i])
		}
		r.within(y, sizes)
		r.puts(y, "dup", us)
		r.puts(up, "dgate", us)
	})
	r.end()
}
