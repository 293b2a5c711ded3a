package main

import . "github.com/snug-ml/snug/internal/_gen/neon"

// norms generates the passes of the norms.
func norms(file *File) {
	sum(file)
	sumSquares(file)
	normalize(file)
	normSums(file)
	normGrad(file)
}

func sum(file *File) {
	f := file.Func("sumNEON", "func(x []float32) float32", "returns Σ x[i].")
	l, acc := f.Loop("x"), f.Zeros(sums)
	l.Each(sums, func(u int) { f.Do(FADD(acc[u], acc[u], l.Load("x", u))) })
	f.Result(f.Sum(acc), "ret")
	f.Return()
}

func sumSquares(file *File) {
	f := file.Func("sumSquaresNEON", "func(x []float32, center float32) float32", "returns Σ (x[i] − center)².")
	l := f.Loop("x").Keeping()
	center, acc := f.Scalar("center"), f.Zeros(sums)
	l.Each(sums, func(u int) {
		x := l.Load("x", u)
		f.Do(FSUB(x, x, center))
		l.Keep(x)
		f.Do(FMLA(acc[u], x, x))
	})
	f.Result(f.Sum(acc), "ret")
	f.Return()
}

// standardized returns (x − mean)·rstd.
func standardized(l *Loop, u int, mean, rstd V) V {
	x := l.Load("x", u)
	l.Do(FSUB(x, x, mean), FMUL(x, x, rstd))
	return x
}

func normalize(file *File) {
	for _, shifted := range []bool{false, true} {
		name, beta := "scaleRowNEON", ""
		if shifted {
			name, beta = "normalizeNEON", ", beta"
		}
		f := file.Func(name, "func(dst, x, gamma"+beta+" []float32, mean, rstd float32)",
			"sets dst[i] to (x[i] − mean)·rstd·gamma[i], plus beta[i] if there is a beta.")
		l := f.Loop("dst", "x", "gamma")
		if shifted {
			l.Slice("beta", Float32)
		}
		mean, rstd := f.Scalar("mean"), f.Scalar("rstd")
		l.Each(2, func(u int) {
			x := standardized(l, u, mean, rstd)
			f.Do(FMUL(x, x, l.Load("gamma", u)))
			if shifted {
				f.Do(FADD(x, x, l.Load("beta", u)))
			}
			l.Store(x, "dst", u)
		})
		f.Return()
	}
}

// normSums has a row's part of the gradients of gamma and beta.
func normSums(file *File) {
	for _, shifted := range []bool{false, true} {
		name, dbeta, result := "gammaGradNEON", "", "sumX"
		if shifted {
			name, dbeta, result = "gammaBetaGradNEON", "dbeta, ", "sum, sumX"
		}
		f := file.Func(name, "func(dgamma, "+dbeta+"dy, x, gamma []float32, mean, rstd float32) ("+result+" float32)",
			"adds to the gradients of the parameters and returns Σ dy·gamma·x̂,\nafter Σ dy·gamma if there is a beta.")
		l := f.Loop("dgamma", "dy", "x", "gamma")
		if shifted {
			l.Slice("dbeta", Float32)
		}
		mean, rstd := f.Scalar("mean"), f.Scalar("rstd")
		acc, accX := f.Zeros(2), f.Zeros(2)
		l.Each(2, func(u int) {
			x, dy, g, dgamma := standardized(l, u, mean, rstd), l.Load("dy", u), l.Load("gamma", u), l.Load("dgamma", u)
			f.Do(FMLA(dgamma, dy, x), FMUL(g, g, dy), FMLA(accX[u], g, x))
			l.Store(dgamma, "dgamma", u)
			if shifted {
				dbeta := l.Load("dbeta", u)
				f.Do(FADD(acc[u], acc[u], g), FADD(dbeta, dbeta, dy))
				l.Store(dbeta, "dbeta", u)
			}
		})
		if shifted {
			f.Result(f.Sum(acc), "sum")
		}
		f.Result(f.Sum(accX), "sumX")
		f.Return()
	}
}

func normGrad(file *File) {
	for _, adding := range []bool{false, true} {
		name, beta, doc := "normGradNEON", "", ""
		if adding {
			name, beta, doc = "normAddGradNEON", ", beta", ", plus beta·dx[i]"
		}
		f := file.Func(name, "func(dx, dy, x, gamma []float32, mean, rstd, avg, avgX, alpha"+beta+" float32)",
			"sets dx[i] to alpha·rstd·(dy[i]·gamma[i] − avg − x̂[i]·avgX)"+doc+".")
		l := f.Loop("dx", "dy", "x", "gamma")
		mean, rstd, avg, avgX, alpha := f.Scalar("mean"), f.Scalar("rstd"), f.Scalar("avg"), f.Scalar("avgX"), f.Scalar("alpha")
		var old V
		if adding {
			old = f.Scalar("beta")
		}
		l.Each(2, func(u int) {
			x, g := standardized(l, u, mean, rstd), l.Load("dy", u)
			f.Do(FMUL(g, g, l.Load("gamma", u)), FSUB(g, g, avg), FMUL(x, x, avgX), FSUB(g, g, x), FMUL(g, g, rstd), FMUL(g, g, alpha))
			if adding {
				dx := l.Load("dx", u)
				f.Do(FMUL(dx, dx, old), FADD(g, g, dx))
			}
			l.Store(g, "dx", u)
		})
		f.Return()
	}
}
