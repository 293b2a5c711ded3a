package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"

	"github.com/snug-ml/snug/internal/_gen/half/vec"
)

// split24 rounds to nearest even, by adding 0x7f and the lowest bit that stays.
func split24(s vec.Set) {
	vec.Func("split24"+s.Name, "func(upper *uint16, rest *int8, src *float32, n int)", "n is a multiple of 32.")
	upper, rest, src := vec.Point("upper", 2), vec.Point("rest", 1), vec.Point("src", 4)
	n := Load(Param("n"), GP64())
	one, bias := s.Constant(1), s.Constant(0x7f)
	apart24(s, upper, rest, src, []vec.Pointer{upper, rest, src}, n, func(_ int, x reg.VecVirtual) reg.VecVirtual {
		r := s.Register()
		VPSRLD(Imm(8), x, r)
		r = s.And(one, r)
		VPADDD(bias, r, r)
		VPADDD(x, r, r)
		return r
	})
}

// split24Stochastic rounds at random, by adding 8 random bits.
func split24Stochastic(s vec.Set) {
	vec.Func("split24Stochastic"+s.Name, "func(upper *uint16, rest *int8, src *float32, draws *uint16, n int)",
		"n is a multiple of 32.")
	upper, rest, src, draws := vec.Point("upper", 2), vec.Point("rest", 1), vec.Point("src", 4), vec.Point("draws", 2)
	n := Load(Param("n"), GP64())
	apart24(s, upper, rest, src, []vec.Pointer{upper, rest, src, draws}, n, func(i int, x reg.VecVirtual) reg.VecVirtual {
		r := s.Register()
		VPMOVZXWD(draws.At(i), r)
		VPSRLD(Imm(8), r, r)
		VPADDD(x, r, r)
		return r
	})
}

// apart24 takes numbers of 24 bits apart. round returns the bits to which element i is rounded.
func apart24(s vec.Set, upper, rest, src vec.Pointer, pointers []vec.Pointer, n reg.Register, round func(i int, x reg.VecVirtual) reg.VecVirtual) {
	parts, packed := parter24(s), packer(s)
	vec.Loop("loop", n, pair, pointers, func() {
		var words reg.Register // of the rests before, with AVX2
		for i := 0; i < pair; i += 2 * s.Lanes {
			at := i + s.Lanes
			x0, x1 := s.Load(vec.Float32, src.At(i)), s.Load(vec.Float32, src.At(at))
			high0, low0 := parts(x0, round(i, x0))
			high1, low1 := parts(x1, round(at, x1))
			s.Write(packed(high0, high1), upper.At(i))
			switch {
			case s.Wide():
				VPMOVDB(low0, rest.At(i))
				VPMOVDB(low1, rest.At(at))
			case words == nil:
				words = packed(low0, low1)
			default:
				VPACKUSWB(packed(low0, low1), words, words) // packs within halves of 128 bits
				VPERMQ(Imm(0xd8), words, words)
				VMOVDQU(words, rest.At(0))
			}
		}
	})
	vec.End()
}

// parter24 sets up constants and returns what takes the bits b, to which x is rounded, apart, in
// lanes of 32 bits: of NaNs, quiet ones and zeros. It overwrites b.
func parter24(s vec.Set) func(x, b reg.VecVirtual) (high, low reg.VecVirtual) {
	tie, quiet, lower := s.Constant(0x8000), s.Constant(0x400000), s.Constant(0xff)
	return func(x, b reg.VecVirtual) (high, low reg.VecVirtual) {
		high, low = s.Register(), s.Register()
		VPSRLD(Imm(8), b, low)
		if s.Wide() {
			number, nan := K(), K()
			VCMPPS(Imm(ordered), x, x, number)
			KNOTW(number, nan)
			VPADDD(tie, b, high)
			VPORD(quiet, x, nan, high)
			VPANDD_Z(lower, low, number, low)
		} else {
			number := s.Register()
			VCMPPS(Imm(ordered), x, x, number)
			VPADDD(tie, b, high)
			VPOR(quiet, x, b)
			VBLENDVPS(number, high, b, high)
			VPAND(number, low, low)
			VPAND(lower, low, low)
		}
		VPSRLD(Imm(16), high, high)
		return high, low
	}
}
