package main

import (
	"math"

	. "github.com/snug-ml/snug/internal/_gen/neon"
)

func constants(f *Func, x ...float32) []V {
	v := make([]V, len(x))
	for i := range x {
		v[i] = f.Constant(x[i])
	}
	return v
}

// horner evaluates a polynomial in r, highest coefficient first.
func horner(f *Func, r V, coefficients []V) V {
	p, next, free := coefficients[0], f.V(), f.V()
	for _, c := range coefficients[1:] {
		f.Do(MOV(next, c), FMLA(next, p, r))
		p, next, free = next, free, next
	}
	return p
}

// exponential returns what computes e^x for x ≤ 89, as exp32 of internal/rowwise
// does.
func exponential(f *Func) func(x V) V {
	low, log2e, ln2Hi, ln2Lo := f.Constant(-104), f.Constant(math.Log2E), f.Constant(0.693359375), f.Constant(-2.12194440e-4)
	one, bias := f.Constant(1), f.Word(127)
	coefficients := constants(f, 1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
	return func(x V) V {
		r, n, square, half := f.V(), f.V(), f.V(), f.V()
		f.Do(FMAX(r, x, low), FMUL(n, r, log2e), FRINTN(n, n), FMLS(r, n, ln2Hi), FMLS(r, n, ln2Lo))
		p := horner(f, r, coefficients)
		f.Do(FMUL(square, r, r), FMLA(r, p, square), FADD(r, r, one))
		// 2^n as two factors, since n may be 128, and below −126.
		f.Do(FCVTNS(n, n), SSHR(half, n, 1), SUB(n, n, half))
		for _, v := range []V{half, n} {
			f.Do(ADD(v, v, bias), SHL(v, v, 23), FMUL(r, r, v))
		}
		return r
	}
}

func expSum(file *File) {
	f := begin(file, "expSum", "func(dst, src []float32, max float32) (sum float32)")
	l := f.Loop("dst", "src").Keeping()
	peak, high, exp, acc := f.Scalar("max"), f.Constant(89), exponential(f), f.Zeros(1)
	l.Each(1, func(u int) {
		x := l.Load("src", u)
		f.Do(FSUB(x, x, peak), FMIN(x, x, high))
		y := exp(x)
		l.Store(y, "dst", u)
		l.Keep(y)
		f.Do(FADD(acc[0], acc[0], y))
	})
	f.Result(f.Sum(acc), "sum")
	f.Return()
}

// power2 returns what computes 2^x for x ≤ 128, as exp2 of internal/rowwise does, 0 below
// low, −126 at least.
func power2(f *Func, low float32) func(x V) V {
	lowest := f.Constant(low)
	coefficients := constants(f, 0.0001559467754900736, 0.001340664390501221,
		0.009617692974894307, 0.05550310550995927, 0.24022652782876044, 0.6931472149680394, 1)
	return func(x V) V {
		n, r, small := f.V(), f.V(), f.V()
		f.Do(FRINTN(n, x), FSUB(r, x, n))
		p := horner(f, r, coefficients)
		f.Do(FCMGT(small, lowest, x), FCVTNS(n, n), SHL(n, n, 23), ADD(p, p, n), BIC(p, p, small))
		return p
	}
}

// minExponent equals the constant of internal/rowwise.
const minExponent = -100

func exp2Sum(file *File) {
	f := begin(file, "exp2Sum", "func(row []float32, scale, base float32) (sum float32)")
	l := f.Loop("row").Keeping()
	scale, base, high, exp2, acc := f.Scalar("scale"), f.Scalar("base"), f.Constant(128), power2(f, minExponent), f.Zeros(1)
	l.Each(1, func(u int) {
		x := l.Load("row", u)
		f.Do(FMUL(x, x, scale)) // rounded as in maximum, so that the greatest has weight 1
		f.Do(FSUB(x, x, base), FMIN(x, x, high))
		p := exp2(x)
		l.Store(p, "row", u)
		l.Keep(p)
		f.Do(FADD(acc[0], acc[0], p))
	})
	f.Result(f.Sum(acc), "sum")
	f.Return()
}

// maximum has NaNs lose to the accumulators.
func maximum(file *File) {
	f := begin(file, "maximum", "func(x []float32, scale, most float32) float32")
	l := f.Loop("x").Keeping()
	scale, most := f.Scalar("scale"), f.Scalar("most")
	acc := f.Vs(sums)
	for _, v := range acc {
		f.Do(MOV(v, most))
	}
	l.Each(sums, func(u int) {
		x := l.Load("x", u)
		f.Do(FMUL(x, x, scale))
		f.Do(FMAXNM(acc[u], acc[u], l.Or(x, most)))
	})
	f.Result(f.Combine(acc, FMAXNM, FMAXNMP), "ret")
	f.Return()
}

func scoreGrad(file *File) {
	f := begin(file, "scoreGrad", "func(ds, p []float32, delta, scale float32)")
	l := f.Loop("ds", "p")
	delta, scale := f.Scalar("delta"), f.Scalar("scale")
	l.Each(2, func(u int) {
		x, p := l.Load("ds", u), l.Load("p", u)
		f.Do(FSUB(x, x, delta), FMUL(x, x, p), FMUL(x, x, scale))
		l.Store(x, "ds", u)
	})
	f.Return()
}
