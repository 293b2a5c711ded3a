package main

import (
	"math"

	. "github.com/snug-ml/snug/internal/_gen/neon"
)

// The constants of tanh, of internal/rowwise.
const tanhNear = 0.55

var tanhCoefficients = []float32{-0.0062742398649175, 0.0210716792840326, -0.0538523099612080, 0.1333258613890013, -0.3333331755967930}

// tanh returns what computes tanh x, as tanh32 of internal/rowwise does.
func tanh(f *Func) func(x V) V {
	exp2, near, power, one, zero := power2(f, -126), f.Constant(tanhNear), f.Constant(-2*math.Log2E), f.Constant(1), f.Zero()
	coefficients := constants(f, tanhCoefficients...)
	return func(x V) V {
		y := f.V()
		f.Scope(func() {
			a, far, minus := f.V(), f.V(), f.V()
			f.Do(FABS(a, x), FMUL(y, a, power))
			e := exp2(y)
			f.Do(FSUB(far, one, e), FADD(e, one, e), FDIV(far, far, e))
			f.Do(FNEG(minus, far), FCMGT(e, zero, x), BSL(e, minus, far)) // the sign of x
			f.Do(FMUL(minus, x, x))
			p := horner(f, minus, coefficients)
			f.Do(FMUL(minus, minus, x), MOV(far, x), FMLA(far, p, minus))
			f.Do(FCMGT(y, near, a), BSL(y, far, e))
		})
		return y
	}
}

func softcap(file *File) {
	f := begin(file, "softcap", "func(x []float32, slope, limit float32)")
	l := f.Loop("x")
	slope, limit, of := f.Scalar("slope"), f.Scalar("limit"), tanh(f)
	l.Each(1, func(u int) {
		x := l.Load("x", u)
		f.Do(FMUL(x, x, slope))
		y := of(x)
		f.Do(FMUL(y, y, limit))
		l.Store(y, "x", u)
	})
	f.Return()
}

func softcapSlopes(file *File) {
	f := begin(file, "softcapSlopes", "func(dst, x []float32, inverse, scale float32)")
	l := f.Loop("dst", "x")
	inverse, scale, one := f.Scalar("inverse"), f.Scalar("scale"), f.Constant(1)
	l.Each(2, func(u int) {
		x := l.Load("x", u)
		f.Do(FMUL(x, x, inverse), FMUL(x, x, x), FSUB(x, one, x), FMUL(x, x, scale))
		l.Store(x, "dst", u)
	})
	f.Return()
}
