package main

import (
	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// Activations that are made of pieces, of internal/rowwise. VMAXPS and VMINPS return their second source, in Intel's order,
// where neither is greater or one is a NaN: x.

const atOrBelow = operand.U8(18) // VCMPPS: less than or equal, false for NaN

// replace puts with into s where x compares so to bound.
func (r *rows) replace(s, x reg.VecVirtual, compare operand.U8, bound, with reg.VecVirtual) {
	if r.wide {
		k := K()
		VCMPPS(compare, bound, x, k)
		VMOVAPS(with, k, s)
		return
	}
	mask := r.vec()
	VCMPPS(compare, bound, x, mask)
	VBLENDVPS(mask, with, s, s)
}

// newRamp returns what replaces x by its ramp.
func (r *rows) newRamp() func(x reg.VecVirtual) {
	shift, high, scale, zero := r.scalar("shift"), r.scalar("high"), r.scalar("scale"), r.zero()
	return func(x reg.VecVirtual) {
		VADDPS(shift, x, x)
		VMAXPS(x, zero, x)
		VMINPS(x, high, x)
		VMULPS(scale, x, x)
	}
}

func ramp(k kind) {
	r := beginRows(k, "ramp", "func(dst, x []T, shift, high, scale float32, stream bool)", nil, "dst", "x")
	r.loadPacking()
	r.streamed("dst")
	ramp := r.newRamp()
	r.pass("main", 1, func(u int) {
		r.put(each(r.fetch("x", u), func(_ int, x reg.VecVirtual) { ramp(x) }), "dst", u)
	})
	r.end()
}

func rampMul(k kind) {
	r := beginRows(k, "rampMul", "func(dst, x []T, floor, shift, high, scale float32, stream bool)", nil, "dst", "x")
	r.loadPacking()
	r.streamed("dst")
	ramp, floor := r.newRamp(), r.scalar("floor")
	r.pass("main", 1, func(u int) {
		r.put(each(r.fetch("x", u), func(_ int, x reg.VecVirtual) {
			y := r.vec()
			VMAXPS(x, floor, y)
			ramp(x)
			VMULPS(y, x, x)
		}), "dst", u)
	})
	r.end()
}

func leaky(k kind) {
	r := beginRows(k, "leaky", "func(dst, x []T, slope float32, stream bool)", nil, "dst", "x")
	r.loadPacking()
	r.streamed("dst")
	slope, zero := r.scalar("slope"), r.zero()
	r.pass("main", 1, func(u int) {
		x := r.fetch("x", u)
		r.put(each(unit{r.vec(), r.vec()}, func(v int, y reg.VecVirtual) {
			VMULPS(slope, x[v], y)
			r.replace(y, x[v], greater, zero, x[v])
		}), "dst", u)
	})
	r.end()
}

func sigmoid(k kind) {
	r := beginRows(k, "sigmoid", "func(dst, x []T, stream bool)", nil, "dst", "x")
	r.loadPacking()
	r.streamed("dst")
	sigma, low := r.sigma(false), r.constant(-siluFlat)
	r.together("main", r.abreast(), func(us []int) {
		y, _ := r.by(sigma, r.atLeasts(r.fetches("x", us), low))
		r.puts(y, "dst", us)
	})
	r.end()
}

func pieceSlopes(k kind) {
	r := beginRows(k, "pieceSlopes", "func(dx, dy, x []T, low, last, below, a, b, above float32, stream bool)", nil, "dx", "dy", "x")
	r.loadPacking()
	r.streamed("dx")
	low, last, below := r.scalar("low"), r.scalar("last"), r.scalar("below")
	a, b, above := r.scalar("a"), r.scalar("b"), r.scalar("above")
	r.pass("main", 1, func(u int) {
		x, dy := r.fetch("x", u), r.fetch("dy", u)
		r.put(each(unit{r.vec(), r.vec()}, func(v int, s reg.VecVirtual) {
			VMULPS(a, x[v], s)
			VADDPS(b, s, s)
			r.replace(s, x[v], atOrBelow, low, below)
			r.replace(s, x[v], greater, last, above)
			VMULPS(dy[v], s, s)
		}), "dx", u)
	})
	r.end()
}

func outputSlopes(k kind) {
	r := beginRows(k, "outputSlopes", "func(dx, dy, y []T, a, b float32, stream bool)", nil, "dx", "dy", "y")
	r.loadPacking()
	r.streamed("dx")
	a, b := r.scalar("a"), r.scalar("b")
	r.pass("main", 1, func(u int) {
		y, dy := r.fetch("y", u), r.fetch("dy", u)
		r.put(each(unit{r.vec(), r.vec()}, func(v int, s reg.VecVirtual) {
			VSUBPS(y[v], b, s)
			VMULPS(y[v], s, s)
			VADDPS(a, s, s)
			VMULPS(dy[v], s, s)
		}), "dx", u)
	})
	r.end()
}
