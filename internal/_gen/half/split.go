package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"

	"github.com/snug-ml/snug/internal/_gen/half/vec"
)

// pair is how many elements join and split go through at a time: two registers of
// AVX-512, whose words are packed into one.
const pair = 32

// join adds the rest, with its sign, to a bfloat16 moved up: a rest of 16 bits, or for numbers of 24 bits one of 8, which moves
// up by 8.
func join(s vec.Set, bits int) {
	name := "join"
	if bits == 8 {
		name = "join24"
	}
	vec.Func(name+s.Name, fmt.Sprintf("func(dst *float32, upper *uint16, rest *int%d, n int)", bits), "n is a multiple of 32.")
	dst, upper, rest := vec.Point("dst", 4), vec.Point("upper", 2), vec.Point("rest", bits/8)
	n := Load(Param("n"), GP64())
	pointers := []vec.Pointer{dst, upper, rest}
	part := func(_, at int) {
		for i := at; i < at+pair; i += s.Lanes {
			x, low := s.Load(vec.BFloat16, upper.At(i)), s.Register()
			if bits == 8 {
				VPMOVSXBD(rest.At(i), low)
				VPSLLD(Imm(8), low, low)
			} else {
				VPMOVSXWD(rest.At(i), low)
			}
			VPADDD(x, low, low)
			s.Write(low, dst.At(i))
		}
	}
	vec.Blocks(n, pair, pointers, part, func() {})
	vec.Loop("rest", n, pair, pointers, func() { part(0, 0) })
	vec.End()
}

// split rounds to nearest, ties away from zero, and keeps the lower half too.
func split(s vec.Set) {
	vec.Func("split"+s.Name, "func(upper *uint16, rest *int16, src *float32, n int)", "n is a multiple of 32.")
	upper, rest, src := vec.Point("upper", 2), vec.Point("rest", 2), vec.Point("src", 4)
	n := Load(Param("n"), GP64())
	halves, packed := halver(s), packer(s)
	vec.Loop("loop", n, pair, []vec.Pointer{upper, rest, src}, func() {
		for i := 0; i < pair; i += 2 * s.Lanes {
			high0, low0 := halves(s.Load(vec.Float32, src.At(i)))
			high1, low1 := halves(s.Load(vec.Float32, src.At(i+s.Lanes)))
			s.Write(packed(high0, high1), upper.At(i))
			s.Write(packed(low0, low1), rest.At(i))
		}
	})
	vec.End()
}

// The predicate of VCMPPS that finds all but NaNs.
const ordered = 7

// halver sets up constants and returns what gives the bfloat16 that float32 are
// rounded to, and their lower halves, in lanes of 32 bits: of NaNs, quiet ones and
// zeros.
func halver(s vec.Set) func(x reg.VecVirtual) (high, low reg.VecVirtual) {
	tie, quiet, lower := s.Constant(0x8000), s.Constant(0x400000), s.Constant(0xffff)
	return func(x reg.VecVirtual) (high, low reg.VecVirtual) {
		high, low = s.Register(), s.Register()
		if s.Wide() {
			number, nan := K(), K()
			VCMPPS(Imm(ordered), x, x, number)
			KNOTW(number, nan)
			VPADDD(tie, x, high)
			VPORD(quiet, x, nan, high)
			VPANDD_Z(lower, x, number, low)
		} else {
			number, bit := s.Register(), s.Register()
			VCMPPS(Imm(ordered), x, x, number)
			VPAND(number, tie, high)
			VPADDD(x, high, high)
			VPANDN(quiet, number, bit)
			VPOR(bit, high, high)
			VPAND(number, lower, low)
			VPAND(x, low, low)
		}
		VPSRLD(Imm(16), high, high)
		return high, low
	}
}

// packer returns what puts the lower words of the lanes of a and then of b, none of
// which has more, side by side. It overwrites a.
func packer(s vec.Set) func(a, b reg.VecVirtual) reg.Register {
	if !s.Wide() {
		return func(a, b reg.VecVirtual) reg.Register {
			VPACKUSDW(b, a, a) // packs within halves of 128 bits
			VPERMQ(Imm(0xd8), a, a)
			return a
		}
	}
	if evenFirst.Base == nil {
		evenFirst = GLOBL("evenFirst", RODATA|NOPTR)
		DATA(0, U64(0x07_05_03_01_06_04_02_00)) // 64-bit words, from the lowest byte up
	}
	order := s.Register()
	VPMOVSXBQ(evenFirst, order)
	return func(a, b reg.VecVirtual) reg.Register {
		VPACKUSDW(b, a, a)
		VPERMQ(a, order, a)
		return a
	}
}

// evenFirst is the table that all packers share.
var evenFirst Mem
