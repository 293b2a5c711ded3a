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
