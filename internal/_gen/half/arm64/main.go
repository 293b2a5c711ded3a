// Half generates the NEON conversions of internal/half.
package main

import . "github.com/snug-ml/snug/internal/_gen/neon"

const group = 4 // vectors of a step

func main() {
	f := NewFile("github.com/snug-ml/snug")
	elems := []Elem{Float32, Float16, BFloat16}
	for _, from := range elems {
		for _, to := range elems {
			if from != to {
				convert(f, from, to)
			}
		}
	}
	stochastic(f)
	stochasticF16(f)
	limit(f)
	f.Generate()
}

func convert(file *File, from, to Elem) {
	name := map[Elem]string{Float32: "f32", Float16: "f16", BFloat16: "bf16"}[from] + "To" + to.Name
	f := file.Func(name+"NEON", "func(dst []"+to.Go+", src []"+from.Go+")", "is "+name+", on vectors.")
	l := f.Loop().Slice("dst", to).Slice("src", from).Rounding(to)
	l.Each(group, func(u int) { l.Store(l.Load("src", u), "dst", u) })
	f.Return()
}

// stochastic adds random bits to those of a float32 below the ones that stay.
// An infinity has no bits there that could carry.
func stochastic(file *File) {
	f := file.Func("f32ToBF16StochasticNEON", "func(dst []snug.BFloat16, src []float32, draws []uint16)", "is f32ToBF16Stochastic, on vectors.")
	l := f.Loop().Slice("dst", Uint16).Slice("src", Float32).Slice("draws", Uint16)
	quiet := f.QuietNaN()
	l.Each(group, func(u int) {
		x, sum := l.Load("src", u), l.Load("draws", u)
		f.Do(ADD(sum, sum, x))
		quiet(sum, x, sum)
		l.Store(sum, "dst", u)
	})
	f.Return()
}

// stochasticF16 shifts the significand of a float32 so that 16 bits stand below
// those that stay, and adds random bits to them.
func stochasticF16(file *File) {
	f := file.Func("f32ToF16StochasticNEON", "func(dst []snug.Float16, src []float32, draws []uint16)", "is f32ToF16Stochastic, on vectors.")
	l := f.Loop().Slice("dst", Uint16).Slice("src", Float32).Slice("draws", Uint16)
	leading, normal, infinity, quiet := f.Word(1<<31), f.Word(113), f.Word(0x7c00), f.Word(0x7e00)
	l.Each(group, func(u int) {
		x, sum, up, down := l.Load("src", u), l.Load("draws", u), f.V(), f.V()
		number, high := f.V(), f.V()
		f.Do(SHL(down, x, 1), USHR(down, down, 24), UMAX(up, down, normal), SUB(down, down, up)) // exponents
		f.Do(SHL(high, x, 8), ORR(high, high, leading), USHR(high, high, 5), USHL(high, high, down))
		f.Do(ADD(sum, sum, high), USHR(sum, sum, 16), SUB(up, up, normal), SHL(up, up, 10), ADD(sum, sum, up), UMIN(sum, sum, infinity))
		f.Do(SHL(high, x, 10), USHR(high, high, 23), ORR(high, high, quiet)) // a NaN with its payload
		f.Do(FCMEQ(number, x, x), BSL(number, sum, high), USHR(up, x, 31), SHL(up, up, 15), ORR(number, number, up))
		f.Do(SHL(number, number, 16), SHRN(number, number))
		l.Store(number, "dst", u)
	})
	f.Return()
}

// limit lets NaNs pass: FMIN and FMAX return NaN for one.
func limit(file *File) {
	f := file.Func("limitNEON", "func(dst, src []float32, limit float32)", "is limit, on vectors.")
	l := f.Loop().Slice("dst", Float32).Slice("src", Float32)
	high, low := f.Scalar("limit"), f.V()
	f.Do(FNEG(low, high))
	l.Each(group, func(u int) {
		v := l.Load("src", u)
		f.Do(FMIN(v, v, high), FMAX(v, v, low))
		l.Store(v, "dst", u)
	})
	f.Return()
}
