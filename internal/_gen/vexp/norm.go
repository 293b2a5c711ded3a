package main

import (
	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/reg"
)

// sums is how many accumulators the sums without other work have.
const sums = 4

func sum(wide bool) {
	f := begin(wide, "sum", "is sum, on vectors.", "func(x []float32) float32", "x")
	acc := f.accumulators(sums)
	f.loop(sums, func(u int) {
		VADDPS(f.load("x", u), acc[u], acc[u])
	})
	f.result(acc)
}

func dot(wide bool) {
	f := begin(wide, "dot", "is dot, on vectors.", "func(x, y []float32) float32", "x", "y")
	acc := f.accumulators(sums)
	f.loop(sums, func(u int) {
		VFMADD231PS(f.load("x", u), f.load("y", u), acc[u])
	})
	f.result(acc)
}

func sumSquares(wide bool) {
	f := begin(wide, "sumSquares", "is sumSquares, on vectors.", "func(x []float32, center float32) float32", "x")
	center := f.scalar("center")
	acc := f.accumulators(sums)
	f.loop(sums, func(u int) {
		x := f.load("x", u)
		VSUBPS(center, x, x)
		f.keep(x)
		VFMADD231PS(x, x, acc[u])
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

// standardized loads x and returns (x − mean)·rstd; mean is nil for RMSNorm.
func (f *function) standardized(u int, mean, rstd reg.VecVirtual) reg.VecVirtual {
	x := f.load("x", u)
	if mean != nil {
		VSUBPS(mean, x, x)
	}
	VMULPS(rstd, x, x)
	return x
}

func layerNorm(wide bool) {
	f := begin(wide, "layerNorm", "is layerNorm, on vectors.",
		"func(dst, x, gamma, beta []float32, mean, rstd float32)", "dst", "x", "gamma", "beta")
	f.normalize(f.scalar("mean"), f.scalar("rstd"))
}

func rmsNorm(wide bool) {
	f := begin(wide, "rmsNorm", "is rmsNorm, on vectors.",
		"func(dst, x, gamma []float32, rstd float32)", "dst", "x", "gamma")
	f.normalize(nil, f.scalar("rstd"))
}

func (f *function) normalize(mean, rstd reg.VecVirtual) {
	f.loop(1, func(u int) {
		x := f.standardized(u, mean, rstd)
		VMULPS(f.load("gamma", u), x, x)
		if mean != nil {
			VADDPS(f.load("beta", u), x, x)
		}
		f.store(x, "dst", u)
	})
	f.end()
}

func layerNormSums(wide bool) {
	f := begin(wide, "layerNormSums", "is layerNormSums, on vectors.",
		"func(dgamma, dbeta, dy, x, gamma []float32, mean, rstd float32) (sum, sumX float32)",
		"dgamma", "dbeta", "dy", "x", "gamma")
	f.normSums(f.scalar("mean"), f.scalar("rstd"))
}

func rmsNormSums(wide bool) {
	f := begin(wide, "rmsNormSums", "is rmsNormSums, on vectors.",
		"func(dgamma, dy, x, gamma []float32, rstd float32) (sumX float32)", "dgamma", "dy", "x", "gamma")
	f.normSums(nil, f.scalar("rstd"))
}

func (f *function) normSums(mean, rstd reg.VecVirtual) {
	const group = 2
	acc, accX := f.accumulators(group), f.accumulators(group)
	f.loop(group, func(u int) {
		x, dy, dgamma := f.standardized(u, mean, rstd), f.load("dy", u), f.load("dgamma", u)
		f.keep(x)
		VFMADD231PS(x, dy, dgamma)
		f.store(dgamma, "dgamma", u)
		g := f.load("gamma", u)
		VMULPS(dy, g, g)
		VFMADD231PS(x, g, accX[u])
		if mean == nil {
			return
		}
		VADDPS(g, acc[u], acc[u])
		dbeta := f.load("dbeta", u)
		VADDPS(dy, dbeta, dbeta)
		f.store(dbeta, "dbeta", u)
	})
	if mean == nil {
		f.result(accX)
	} else {
		f.result(acc, accX)
	}
}

func layerNormGrad(wide bool) {
	f := begin(wide, "layerNormGrad", "is layerNormGrad, on vectors.",
		"func(dst, dy, x, gamma []float32, mean, rstd, avg, avgX float32)", "dst", "dy", "x", "gamma")
	f.normGrad(f.scalar("mean"), f.scalar("rstd"), f.scalar("avg"), f.scalar("avgX"))
}

func rmsNormGrad(wide bool) {
	f := begin(wide, "rmsNormGrad", "is rmsNormGrad, on vectors.",
		"func(dst, dy, x, gamma []float32, rstd, avgX float32)", "dst", "dy", "x", "gamma")
	f.normGrad(nil, f.scalar("rstd"), nil, f.scalar("avgX"))
}

func (f *function) normGrad(mean, rstd, avg, avgX reg.VecVirtual) {
	f.loop(1, func(u int) {
		x, g := f.standardized(u, mean, rstd), f.load("dy", u)
		VMULPS(f.load("gamma", u), g, g)
		if avg != nil {
			VSUBPS(avg, g, g)
		}
		VMULPS(avgX, x, x)
		VSUBPS(x, g, g)
		VMULPS(rstd, g, g)
		f.store(g, "dst", u)
	})
	f.end()
}
