// Adam generates the NEON loop of internal/adam. Every product and sum is
// rounded by itself.
package main

import . "github.com/snug-ml/snug/internal/_gen/neon"

func main() {
	file := NewFile()
	f := file.Func("updateNEON", "func(g, p, m, v []float32, beta1, rest1, beta2, rest2, gradScale, size, eps, pre, post float32)", "is update, on vectors.")
	l := f.Loop("g", "p", "m", "v")
	beta1, rest1, beta2, rest2 := f.Scalar("beta1"), f.Scalar("rest1"), f.Scalar("beta2"), f.Scalar("rest2")
	gradScale, size, eps := f.Scalar("gradScale"), f.Scalar("size"), f.Scalar("eps")
	pre, post := f.Scalar("pre"), f.Scalar("post")
	l.Each(2, func(u int) {
		g, m, v, p := l.Load("g", u), l.Load("m", u), l.Load("v", u), l.Load("p", u)
		t := f.V()
		f.Do(FMUL(g, g, gradScale))
		f.Do(FMUL(m, m, beta1), FMUL(t, g, rest1), FADD(m, m, t))
		f.Do(FMUL(v, v, beta2), FMUL(t, g, rest2), FMUL(t, t, g), FADD(v, v, t))
		f.Do(FSQRT(t, v), FADD(t, t, eps), FDIV(t, m, t), FMUL(t, t, size))
		f.Do(FMUL(p, p, pre), FSUB(p, p, t), FMUL(p, p, post))
		l.Store(m, "m", u)
		l.Store(v, "v", u)
		l.Store(p, "p", u)
	})
	f.Return()
	file.Generate()
}
