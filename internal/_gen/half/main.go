// Half generates the conversions of internal/half: float32 to and from
// binary16, bfloat16, types of 8 bits, and bfloat16 with the rest of the bits. Every function converts n elements, a multiple of 16.
package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"

	"github.com/snug-ml/snug/internal/_gen/half/vec"
)

const step = 16 // elements of a loop

func main() {
	ConstraintExpr("!noasm,gc")
	for _, s := range vec.Sets {
		for _, from := range vec.Elems {
			for _, to := range vec.Elems {
				if from != to {
					convert(s, from, to)
					stream(s, from, to)
				}
			}
		}
	}
	for _, s := range vec.Sets {
		join(s, 16)
		split(s)
	}
	for _, s := range vec.Sets {
		join(s, 8)
		split24(s)
		split24Stochastic(s)
	}
	for _, s := range vec.Sets {
		stochastic(s)
		stochasticF16(s)
		limit(s)
		for _, f := range floats8 {
			widen8(s, f)
			narrow8(s, f)
		}
	}
	Generate()
}

func begin(name string, from, to vec.Elem) {
	vec.Func(name, "func(dst *"+to.Go+", src *"+from.Go+", n int)")
}

func name(from, to vec.Elem) string {
	return map[vec.Elem]string{vec.Float32: "f32", vec.Float16: "f16", vec.BFloat16: "bf16"}[from] + "To" + to.Name
}

func convert(s vec.Set, from, to vec.Elem) {
	begin(name(from, to)+s.Name, from, to)
	dst, src := vec.Point("dst", to.Size), vec.Point("src", from.Size)
	n := Load(Param("n"), GP64())
	if s.Wide() && to == vec.BFloat16 {
		pair := vec.NewHalves().Nearest()
		vec.Loop("pairs", n, 2*s.Lanes, []vec.Pointer{dst, src}, func() {
			s.Write(pair(s.Load(from, src.At(0)), s.Load(from, src.At(s.Lanes))), dst.At(0))
		})
	}
	round := s.Rounder(to)
	vec.Loop("loop", n, step, []vec.Pointer{dst, src}, func() {
		for i := 0; i < step; i += s.Lanes {
			s.Write(round(s.Load(from, src.At(i))), dst.At(i))
		}
	})
	vec.End()
}

// line is how many elements fill a cache line of 16-bit results at least, so
// that lines are written as a whole.
const line = 32

// stream converts around the caches.
func stream(s vec.Set, from, to vec.Elem) {
	begin(name(from, to)+"Stream"+s.Name, from, to)
	Doc("dst is aligned to 64 bytes.")
	dst, src := vec.Point("dst", to.Size), vec.Point("src", from.Size)
	n := Load(Param("n"), GP64())
	round := s.Rounder(to)
	pointers := []vec.Pointer{dst, src}
	part := func(width int) func(q, at int) {
		return func(_, at int) {
			for i := at; i < at+width; i += s.Lanes {
				s.Stream(round(s.Load(from, src.At(i))), dst.At(i))
			}
		}
	}
	lines := part(line)
	if s.Wide() && to == vec.BFloat16 {
		pair := vec.NewHalves().Nearest()
		lines = func(_, at int) {
			s.Stream(pair(s.Load(from, src.At(at)), s.Load(from, src.At(at+s.Lanes))), dst.At(at))
		}
	}
	vec.Blocks(n, line, pointers, lines, func() {})
	vec.Loop("rest", n, step, pointers, func() { part(step)(0, 0) })
	SFENCE()
	vec.End()
}

// stochastic adds random bits to those of a float32 below the ones that stay.
// NaNs are set quiet instead; an infinity has no bits there that could carry.
func stochastic(s vec.Set) {
	name := "f32ToBF16Stochastic" + s.Name
	vec.Func(name, "func(dst *uint16, src *float32, draws *uint16, n int)")
	dst, src, draws := vec.Point("dst", 2), vec.Point("src", 4), vec.Point("draws", 2)
	n := Load(Param("n"), GP64())
	quiet := s.Constant(0x40)
	vec.Loop("loop", n, step, []vec.Pointer{dst, src, draws}, func() {
		for i := 0; i < step; i += s.Lanes {
			x, high, sum := s.Load(vec.Float32, src.At(i)), s.Register(), s.Register()
			VPSRLD(Imm(16), x, high)
			VPMOVZXWD(draws.At(i), sum)
			VPADDD(x, sum, sum)
			VPSRLD(Imm(16), sum, sum)
			s.Write(s.Words(s.QuietNaN(x, high, sum, quiet)), dst.At(i))
		}
	})
	vec.End()
}

// stochasticF16 shifts the significand of a float32 so that 16 bits stand below
// those that stay, and adds random bits to them.
func stochasticF16(s vec.Set) {
	name := "f32ToF16Stochastic" + s.Name
	vec.Func(name, "func(dst *uint16, src *float32, draws *uint16, n int)")
	dst, src, draws := vec.Point("dst", 2), vec.Point("src", 4), vec.Point("draws", 2)
	n := Load(Param("n"), GP64())
	leading, normal, infinity, quiet := s.Constant(1<<31), s.Constant(113), s.Constant(0x7c00), s.Constant(0x7e00)
	vec.Loop("loop", n, step, []vec.Pointer{dst, src, draws}, func() {
		for i := 0; i < step; i += s.Lanes {
			x, up, down, sum, high := s.Load(vec.Float32, src.At(i)), s.Register(), s.Register(), s.Register(), s.Register()
			VPSLLD(Imm(1), x, down)
			VPSRLD(Imm(24), down, down) // the exponent
			VPMAXUD(normal, down, up)
			VPSUBD(down, up, down)
			VPSLLD(Imm(8), x, sum) // the significand
			s.Or(leading, sum)
			VPSRLD(Imm(5), sum, sum)
			VPSRLVD(down, sum, sum)
			VPMOVZXWD(draws.At(i), down)
			VPADDD(down, sum, sum)
			VPSRLD(Imm(16), sum, sum)
			VPSUBD(normal, up, up)
			VPSLLD(Imm(10), up, up)
			VPADDD(up, sum, sum)
			VPMINUD(infinity, sum, sum)
			VPSLLD(Imm(10), x, high)
			VPSRLD(Imm(23), high, high) // the payload of a NaN
			sum = s.QuietNaN(x, high, sum, quiet)
			VPSRLD(Imm(31), x, up)
			VPSLLD(Imm(15), up, up)
			s.Or(up, sum)
			s.Write(s.Words(sum), dst.At(i))
		}
	})
	vec.End()
}

// limit lets NaNs pass: if one of two operands is NaN, VMINPS and VMAXPS
// return the first, here the value.
func limit(s vec.Set) {
	name := "limit" + s.Name
	vec.Func(name, "func(dst *float32, src *float32, n int, limit float32)")
	n := Load(Param("n"), GP64())
	dst, src := vec.Point("dst", 4), vec.Point("src", 4)
	high, low := s.Broadcast(Param("limit")), s.Register()
	VSUBPS(high, s.Constant(0x80000000), low)
	vec.Loop("loop", n, step, []vec.Pointer{dst, src}, func() {
		for i := 0; i < step; i += s.Lanes {
			v := s.Load(vec.Float32, src.At(i))
			VMINPS(v, high, v)
			VMAXPS(v, low, v)
			s.Write(v, dst.At(i))
		}
	})
	vec.End()
}
