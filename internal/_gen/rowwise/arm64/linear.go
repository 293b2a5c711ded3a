package main

import . "github.com/snug-ml/snug/internal/_gen/neon"

func dot(file *File) {
	f := begin(file, "dot", "func(x, y []float32) float32")
	l, acc := f.Loop("x", "y"), f.Zeros(sums)
	l.Each(sums, func(u int) { f.Do(FMLA(acc[u], l.Load("x", u), l.Load("y", u))) })
	f.Result(f.Sum(acc), "ret")
	f.Return()
}

// nonFinite adds up x − x, which is NaN unless x is finite.
func nonFinite(file *File) {
	f := file.Func("nonFiniteNEON", "func(x []float32) float32", "returns 0 if all of x is finite, else NaN.")
	l, acc := f.Loop("x"), f.Zeros(sums)
	l.Each(sums, func(u int) {
		x := l.Load("x", u)
		f.Do(FSUB(x, x, x), FADD(acc[u], acc[u], x))
	})
	f.Result(f.Sum(acc), "ret")
	f.Return()
}

func scale(file *File) {
	f := begin(file, "scale", "func(dst, src []float32, a float32)")
	l, a := f.Loop("dst", "src"), f.Scalar("a")
	l.Each(4, func(u int) {
		x := l.Load("src", u)
		f.Do(FMUL(x, x, a))
		l.Store(x, "dst", u)
	})
	f.Return()
}

func scaleAbove(file *File) {
	f := begin(file, "scaleAbove", "func(x []float32, a, threshold float32)")
	l, a, threshold := f.Loop("x"), f.Scalar("a"), f.Scalar("threshold")
	l.Each(4, func(u int) {
		x, below := l.Load("x", u), f.V()
		f.Do(FCMGT(below, threshold, x), FMUL(x, x, a), BIC(x, x, below))
		l.Store(x, "x", u)
	})
	f.Return()
}

func axpby(file *File) {
	f := begin(file, "axpby", "func(acc, x []float32, alpha, beta float32)")
	l, alpha, beta := f.Loop("acc", "x"), f.Scalar("alpha"), f.Scalar("beta")
	l.Each(4, func(u int) {
		acc, x := l.Load("acc", u), l.Load("x", u)
		f.Do(FMUL(acc, acc, beta), FMUL(x, x, alpha), FADD(acc, acc, x))
		l.Store(acc, "acc", u)
	})
	f.Return()
}

func add(file *File) {
	f := begin(file, "add", "func(dst, a, b []float32, stream bool)")
	l := f.Loop("dst", "a", "b")
	l.Each(4, func(u int) {
		a, b := l.Load("a", u), l.Load("b", u)
		f.Do(FADD(a, a, b))
		l.Store(a, "dst", u)
	})
	f.Return()
}

func addScaled(file *File) {
	f := begin(file, "addScaled", "func(acc, x []float32, alpha float32, nextAcc, nextX []float32)")
	l, alpha := f.Loop("acc", "x"), f.Scalar("alpha")
	l.Each(4, func(u int) {
		acc, x := l.Load("acc", u), l.Load("x", u)
		f.Do(FMUL(x, x, alpha), FADD(acc, acc, x))
		l.Store(acc, "acc", u)
	})
	f.Return()
}

func dropout(file *File) {
	f := begin(file, "dropout", "func(dst, src []float32, words []uint32, threshold uint32, scale float32, stream bool)")
	l, threshold, scale := f.Loop("dst", "src", "words"), f.ScalarWord("threshold"), f.Scalar("scale")
	l.Each(2, func(u int) {
		x, kept := l.Load("src", u), l.Load("words", u)
		f.Do(CMHS(kept, kept, threshold), FMUL(x, x, scale), AND(x, x, kept))
		l.Store(x, "dst", u)
	})
	f.Return()
}

// turned sets a and b to a·cos − b·sin and b·cos + a·sin.
func turned(f *Func, a, b, cos, sin, turn V) {
	aSin, bSin := f.V(), f.V()
	f.Do(FMUL(sin, sin, turn), FMUL(aSin, a, sin), FMUL(bSin, b, sin))
	f.Do(FMUL(a, a, cos), FMUL(b, b, cos), FSUB(a, a, bSin), FADD(b, b, aSin))
}

func rotate(file *File) {
	f := begin(file, "rotate", "func(a, b, cos, sin []float32, turn float32)")
	l, turn := f.Loop("a", "b", "cos", "sin"), f.Scalar("turn")
	l.Each(2, func(u int) {
		a, b := l.Load("a", u), l.Load("b", u)
		turned(f, a, b, l.Load("cos", u), l.Load("sin", u), turn)
		l.Store(a, "a", u)
		l.Store(b, "b", u)
	})
	f.Return()
}

func rotatePairs(file *File) {
	f := begin(file, "rotatePairs", "func(cos, sin, x []float32, turn float32)")
	l, turn := f.Loop("cos", "sin").Slice("x", Pair), f.Scalar("turn")
	at := l.Ptr("x")
	l.Each(1, func(u int) {
		low, high, a, b := f.V(), f.V(), f.V(), f.V()
		if l.One() {
			f.Go("FMOVD (%s), %s", at, low)
			f.Do(MOV(high, low))
		} else {
			f.Go("FLDPQ (%s), (%s, %s)", at, low, high)
		}
		f.Do(UZP1(a, low, high), UZP2(b, low, high))
		turned(f, a, b, l.Load("cos", u), l.Load("sin", u), turn)
		f.Do(ZIP1(low, a, b), ZIP2(high, a, b))
		if l.One() {
			f.Go("FMOVD %s, (%s)", low, at)
		} else {
			f.Go("FSTPQ (%s, %s), (%s)", low, high, at)
		}
	})
	f.Return()
}
