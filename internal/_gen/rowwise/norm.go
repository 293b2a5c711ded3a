package main

import (
	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// sums is how many accumulators the sums without other work have.
const sums = 4

func dot(wide bool) {
	f := begin(wide, "dot", "is dot, on vectors.", "func(x, y []float32) float32", "x", "y")
	acc := f.accumulators(sums)
	f.loop(sums, func(u int) {
		VFMADD231PS(f.load("x", u), f.load("y", u), acc[u])
	})
	f.result(acc)
}

// nonFinite adds up x − x, which is NaN unless x is finite.
func nonFinite(wide bool) {
	f := begin(wide, "nonFinite", "returns 0 if all of x is finite, else NaN.", "func(x []float32) float32", "x")
	acc := f.accumulators(sums)
	f.loop(sums, func(u int) {
		x := f.load("x", u)
		VSUBPS(x, x, x)
		VADDPS(x, acc[u], acc[u])
	})
	f.result(acc)
}

// mean returns the sum of accumulators, divided by the elements of a row.
func (r *rows) mean(acc []reg.VecVirtual) reg.Register {
	sum, n := r.combine(acc, VADDPS), XMM()
	VXORPS(n, n, n)
	VCVTSI2SSQ(r.n, n, n)
	VDIVSS(n, sum, sum)
	return sum
}

// broadcast copies the first element of x to all.
func (r *rows) broadcast(x reg.Register) reg.VecVirtual {
	v := r.vec()
	VBROADCASTSS(x, v)
	return v
}

func layerNorm(k kind) {
	r := beginRows(k, "layerNorm", "func(dst, x, gamma, beta []T, eps float32, stream bool) (mean, rstd float32)", nil,
		"x", "dst", "gamma", "beta")
	r.loadPacking()
	acc := r.accumulators(4)
	r.pass("sum", 2, func(u int) {
		each(r.get("x", u), func(v int, x reg.VecVirtual) { VADDPS(x, acc[2*u+v], acc[2*u+v]) })
	})
	mean := r.mean(acc)
	r.normalize(mean, r.broadcast(mean))
}

func rmsNorm(k kind) {
	r := beginRows(k, "rmsNorm", "func(dst, x, gamma []T, eps float32, stream bool) (rstd float32)", nil,
		"x", "dst", "gamma")
	r.loadPacking()
	r.normalize(nil, nil)
}

// normalize does what LayerNorm and RMSNorm have in common.
func (r *rows) normalize(mean reg.Register, center reg.VecVirtual) {
	acc := r.accumulators(4)
	r.pass("squares", 2, func(u int) {
		x := r.get("x", u)
		if center != nil {
			each(x, func(v int, x reg.VecVirtual) { VSUBPS(center, x, x) })
			r.keepUnit(x)
		}
		each(x, func(v int, x reg.VecVirtual) { VFMADD231PS(x, x, acc[2*u+v]) })
	})
	rstd := r.inverseRoot(r.mean(acc))
	scale := r.broadcast(rstd)
	r.streamed("dst")
	next := r.afterRow("x")
	r.pass("normalize", 1, func(u int) {
		x, gamma := r.get("x", u), r.get("gamma", u)
		r.prefetch(next, u, 0)
		if center != nil {
			each(x, func(v int, x reg.VecVirtual) { VSUBPS(center, x, x) })
		}
		each(x, func(v int, x reg.VecVirtual) { VMULPS(scale, x, x) })
		if center == nil {
			each(x, func(v int, x reg.VecVirtual) { VMULPS(gamma[v], x, x) })
		} else {
			beta := r.get("beta", u)
			each(x, func(v int, x reg.VecVirtual) { VFMADD213PS(beta[v], gamma[v], x) })
		}
		r.put(x, "dst", u)
	})
	if mean == nil {
		r.finish(rstd)
	} else {
		r.finish(mean, rstd)
	}
}

// inverseRoot returns 1/√(x + eps).
func (r *rows) inverseRoot(x reg.Register) reg.Register {
	one := XMM()
	VADDSS(parameter("eps"), x, x)
	VSQRTSS(x, x, x)
	VMOVSS(lanesOf(oneBits), one)
	VDIVSS(x, one, one)
	return one
}

// parameter returns the place of a parameter.
func parameter(name string) operand.Mem {
	p, err := Param(name).Resolve()
	if err != nil {
		panic(err)
	}
	return p.Addr
}

const oneBits = 0x3f800000

// afterRow adds a slice that begins where another one ends, to be prefetched.
func (r *rows) afterRow(slice string) string {
	next, p, size := slice+"Next", GP64(), uint8(4)
	if r.half(slice) {
		size = 2
	}
	LEAQ(operand.Mem{Base: r.ptr[slice], Index: r.n, Scale: size}, p)
	r.ptr[next] = p
	return next
}

func layerNormGrad(k kind) {
	r := beginRows(k, "layerNormGrad",
		"func(dx []T, dgamma, dbeta []float32, dy, x, gamma []T, mean, rstd, alpha, beta float32, stream bool)",
		[]string{"dgamma", "dbeta"}, "dx", "dgamma", "dbeta", "dy", "x", "gamma")
	r.normGrad(r.scalar("mean"))
}

func rmsNormGrad(k kind) {
	r := beginRows(k, "rmsNormGrad",
		"func(dx []T, dgamma []float32, dy, x, gamma []T, rstd, alpha, beta float32, stream bool)",
		[]string{"dgamma"}, "dx", "dgamma", "dy", "x", "gamma")
	r.normGrad(nil)
}

func (r *rows) normGrad(mean reg.VecVirtual) {
	r.loadPacking()
	rstd := r.scalar("rstd")
	acc, accX := r.accumulators(2), r.accumulators(2)
	center := func(x unit) {
		if mean != nil {
			each(x, func(v int, x reg.VecVirtual) { VSUBPS(mean, x, x) })
		}
	}
	nextX := r.afterRow("x")
	r.pass("sums", 1, func(u int) {
		x, dy, dgamma := r.get("x", u), r.get("dy", u), r.get("dgamma", u)
		r.prefetch(nextX, u, 0)
		center(x)
		each(x, func(v int, x reg.VecVirtual) {
			VMULPS(rstd, x, x)
			VFMADD231PS(x, dy[v], dgamma[v])
		})
		r.put(dgamma, "dgamma", u)
		if mean != nil {
			dbeta := r.get("dbeta", u)
			each(dbeta, func(v int, sum reg.VecVirtual) { VADDPS(dy[v], sum, sum) })
			r.put(dbeta, "dbeta", u)
		}
		each(r.get("gamma", u), func(v int, g reg.VecVirtual) {
			VMULPS(dy[v], g, g)
			VFMADD231PS(x[v], g, accX[v])
			if mean != nil {
				VADDPS(g, acc[v], acc[v])
			}
		})
	})

	// dx = rstd·(g − avg − x̂·avgX) = rstd·g + (−rstd·avg) + centered·(−rstd²·avgX)
	alpha, beta := r.scalar("alpha"), r.scalar("beta")
	VMULPS(rstd, alpha, alpha)
	slope, shift := r.broadcast(r.mean(accX)), reg.VecVirtual(nil)
	VMULPS(alpha, slope, slope)
	VMULPS(rstd, slope, slope)
	if mean != nil {
		shift = r.broadcast(r.mean(acc))
		VMULPS(alpha, shift, shift)
	}
	adds := GP64()
	MOVL(parameter("beta"), adds.As32())
	SHLL(operand.U8(1), adds.As32()) // −0 is 0
	r.streamed("dx")
	nextDY := r.afterRow("dy")
	r.pass("grad", 1, func(u int) {
		x, dy, g := r.get("x", u), r.get("dy", u), r.get("gamma", u)
		r.prefetch(nextDY, u, 0)
		center(x)
		each(g, func(v int, g reg.VecVirtual) {
			VMULPS(dy[v], g, g)
			if mean == nil {
				VMULPS(alpha, g, g)
			} else {
				VFMSUB213PS(shift, alpha, g)
			}
			VFNMADD231PS(x[v], slope, g)
		})
		r.when(adds, func() {
			each(r.get("dx", u), func(v int, old reg.VecVirtual) { VFMADD231PS(old, beta, g[v]) })
		})
		r.put(g, "dx", u)
	})
	r.end()
}
