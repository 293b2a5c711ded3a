package main

import (
	"math"

	. "github.com/snug-ml/snug/internal/_gen/neon"
)

// Activations that are made of pieces, of internal/rowwise. Comparisons choose, where FMAX and FMIN would give zeros
// of another sign.

// atLeast replaces x by low where low is greater, atMost by high where high is less.
func atLeast(f *Func, x, low V) {
	f.Scope(func() {
		m := f.V()
		f.Do(FCMGT(m, low, x), BSL(m, low, x), MOV(x, m))
	})
}

func atMost(f *Func, x, high V) {
	f.Scope(func() {
		m := f.V()
		f.Do(FCMGT(m, x, high), BSL(m, high, x), MOV(x, m))
	})
}

// newRamp returns what replaces x by its ramp.
func newRamp(f *Func) func(x V) {
	shift, high, scale, zero := f.Scalar("shift"), f.Scalar("high"), f.Scalar("scale"), f.Zero()
	return func(x V) {
		f.Do(FADD(x, x, shift))
		atLeast(f, x, zero)
		atMost(f, x, high)
		f.Do(FMUL(x, x, scale))
	}
}

func ramp(file *File) {
	f := begin(file, "ramp", "func(dst, x []float32, shift, high, scale float32, stream bool)")
	l := f.Loop("dst", "x")
	ramp := newRamp(f)
	l.Each(2, func(u int) {
		x := l.Load("x", u)
		ramp(x)
		l.Store(x, "dst", u)
	})
	f.Return()
}

func rampMul(file *File) {
	f := begin(file, "rampMul", "func(dst, x []float32, floor, shift, high, scale float32, stream bool)")
	l := f.Loop("dst", "x")
	ramp, floor := newRamp(f), f.Scalar("floor")
	l.Each(2, func(u int) {
		x, y := l.Load("x", u), f.V()
		f.Do(MOV(y, x))
		atLeast(f, y, floor)
		ramp(x)
		f.Do(FMUL(x, x, y))
		l.Store(x, "dst", u)
	})
	f.Return()
}

func leaky(file *File) {
	f := begin(file, "leaky", "func(dst, x []float32, slope float32, stream bool)")
	l := f.Loop("dst", "x")
	slope, zero := f.Scalar("slope"), f.Zero()
	l.Each(2, func(u int) {
		x, y, positive := l.Load("x", u), f.V(), f.V()
		f.Do(FMUL(y, x, slope), FCMGT(positive, x, zero), BSL(positive, x, y))
		l.Store(positive, "dst", u)
	})
	f.Return()
}

func sigmoid(file *File) {
	f := begin(file, "sigmoid", "func(dst, x []float32, stream bool)")
	l := f.Loop("dst", "x")
	low, log2e, sigma := f.Constant(-siluFlat), f.Constant(math.Log2E), logistic(f)
	l.Each(1, func(u int) {
		x := l.Load("x", u)
		f.Do(FMAX(x, x, low), FMUL(x, x, log2e))
		s, _ := sigma(x)
		l.Store(s, "dst", u)
	})
	f.Return()
}

func pieceSlopes(file *File) {
	f := begin(file, "pieceSlopes", "func(dx, dy, x []float32, low, last, below, a, b, above float32, stream bool)")
	l := f.Loop("dx", "dy", "x")
	low, last, below := f.Scalar("low"), f.Scalar("last"), f.Scalar("below")
	a, b, above := f.Scalar("a"), f.Scalar("b"), f.Scalar("above")
	l.Each(2, func(u int) {
		x, dy, s, m := l.Load("x", u), l.Load("dy", u), f.V(), f.V()
		f.Do(FMUL(s, x, a), FADD(s, s, b))
		f.Do(FCMGE(m, low, x), BSL(m, below, s), FCMGT(s, x, last), BSL(s, above, m))
		f.Do(FMUL(s, s, dy))
		l.Store(s, "dx", u)
	})
	f.Return()
}

func outputSlopes(file *File) {
	f := begin(file, "outputSlopes", "func(dx, dy, y []float32, a, b float32, stream bool)")
	l := f.Loop("dx", "dy", "y")
	a, b := f.Scalar("a"), f.Scalar("b")
	l.Each(2, func(u int) {
		y, dy, s := l.Load("y", u), l.Load("dy", u), f.V()
		f.Do(FSUB(s, b, y), FMUL(s, s, y), FADD(s, s, a), FMUL(s, s, dy))
		l.Store(s, "dx", u)
	})
	f.Return()
}
