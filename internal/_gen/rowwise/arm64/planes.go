package main

import (
	"strings"

	. "github.com/snug-ml/snug/internal/_gen/neon"
)

// Loops over planes and rows of images, of internal/rowwise. Factors are one number for all elements, or one for each column.

// planes starts a loop over vectors, and over the factors as well if they have an element for each column.
func planes(file *File, name, rest, result string, columns bool, vectors string, factors ...string) (f *Func, l *Loop, factor func(name string, u int) V) {
	signature := "func(" + vectors
	names := strings.Split(vectors, ", ")
	if columns {
		names = append(names, factors...)
		signature += ", " + strings.Join(factors, ", ") + " []float32" + rest + ")" + result
	} else {
		signature += " []float32, " + strings.Join(factors, ", ") + " float32" + rest + ")" + result
	}
	doc := "is " + name + ", on vectors."
	if strings.Contains(name, "Add") {
		doc = "is " + strings.ReplaceAll(name, "Add", "") + " with a beta that is not 0, on vectors."
	}
	f = file.Func(name+"NEON", signature, doc)
	l = f.Loop(names...)
	if columns {
		return f, l, l.Load
	}
	scalars := map[string]V{}
	for _, name := range factors {
		scalars[name] = f.Scalar(name)
	}
	return f, l, func(name string, _ int) V { return scalars[name] }
}

func centeredSums(file *File) {
	f := begin(file, "centeredSums", "func(x []float32, center float32) (sum, squares float32)")
	l := f.Loop("x").Keeping()
	center, s, q := f.Scalar("center"), f.Zeros(2), f.Zeros(2)
	l.Each(2, func(u int) {
		x := l.Load("x", u)
		f.Do(FSUB(x, x, center))
		l.Keep(x)
		f.Do(FADD(s[u], s[u], x), FMLA(q[u], x, x))
	})
	f.Result(f.Sum(s), "sum")
	f.Result(f.Sum(q), "squares")
	f.Return()
}

func centeredDots(file *File) {
	f := begin(file, "centeredDots", "func(dy, x []float32, center float32) (sum, dot float32)")
	l := f.Loop("dy", "x").Keeping()
	center, s, q := f.Scalar("center"), f.Zeros(2), f.Zeros(2)
	l.Each(2, func(u int) {
		x, dy := l.Load("x", u), l.Load("dy", u)
		f.Do(FSUB(x, x, center))
		l.Keep(x)
		f.Do(FADD(s[u], s[u], dy), FMLA(q[u], dy, x))
	})
	f.Result(f.Sum(s), "sum")
	f.Result(f.Sum(q), "dot")
	f.Return()
}

func affine(file *File, name string, columns bool) {
	f, l, factor := planes(file, name, ", stream bool", "", columns, "dst, x", "center", "scale", "shift")
	l.Each(2, func(u int) {
		x := l.Load("x", u)
		f.Do(FSUB(x, x, factor("center", u)), FMUL(x, x, factor("scale", u)), FADD(x, x, factor("shift", u)))
		l.Store(x, "dst", u)
	})
	f.Return()
}

// affineGrad adds to dx times beta, or sets it.
func affineGrad(file *File, name string, columns, adding bool) {
	rest := ""
	if adding {
		rest = ", beta float32"
	}
	f, l, factor := planes(file, name, rest, "", columns, "dx, dy, x", "center", "a", "b", "c")
	var beta V
	if adding {
		beta = f.Scalar("beta")
	}
	l.Each(1, func(u int) {
		x, g := l.Load("x", u), l.Load("dy", u)
		f.Do(FSUB(x, x, factor("center", u)), FMUL(x, x, factor("b", u)), FMUL(g, g, factor("a", u)))
		f.Do(FADD(g, g, x), FADD(g, g, factor("c", u)))
		if adding {
			dx := l.Load("dx", u)
			f.Do(FMUL(dx, dx, beta), FADD(g, g, dx))
		}
		l.Store(g, "dx", u)
	})
	f.Return()
}

func columnSums(file *File) {
	f := begin(file, "columnSums", "func(sum, squares, x, center []float32)")
	l := f.Loop("x", "sum", "squares", "center")
	l.Each(1, func(u int) {
		x, s, q := l.Load("x", u), l.Load("sum", u), l.Load("squares", u)
		f.Do(FSUB(x, x, l.Load("center", u)), FADD(s, s, x), FMUL(x, x, x), FADD(q, q, x))
		l.Store(s, "sum", u)
		l.Store(q, "squares", u)
	})
	f.Return()
}

func columnDots(file *File) {
	f := begin(file, "columnDots", "func(sum, dot, dy, x, center []float32)")
	l := f.Loop("x", "sum", "dot", "dy", "center")
	l.Each(1, func(u int) {
		x, dy, s, q := l.Load("x", u), l.Load("dy", u), l.Load("sum", u), l.Load("dot", u)
		f.Do(FSUB(x, x, l.Load("center", u)), FADD(s, s, dy), FMUL(x, x, dy), FADD(q, q, x))
		l.Store(s, "sum", u)
		l.Store(q, "dot", u)
	})
	f.Return()
}
