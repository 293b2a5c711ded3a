package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"

	"github.com/snug-ml/snug/internal/_gen/half/vec"
)

// float8 is a type of 8 bits: the bits of its fraction, the bias of its exponent, and the code of what is too large.
type float8 struct {
	name           string
	fraction, bias uint32
	most           uint32
}

var floats8 = []float8{{"E4M3", 3, 7, 0x7e}, {"E5M2", 2, 15, 0x7c}}

// widen8 shifts the bits of a float8 into those of a binary16, and converts that to float32 by the instruction for it.
// E5M2 is the upper half of a binary16, so that is all. The exponent bias of E4M3 is smaller by 8: its values are
// multiplied by 2^8. Its NaN has become 480 then, which no number of E4M3 is, and is set to NaN.
func widen8(s vec.Set, f float8) {
	vec.Func(map[string]string{"E4M3": "e4m3", "E5M2": "e5m2"}[f.name]+"ToF32"+s.Name, "func(dst *float32, src *uint8, n int)")
	dst, src := vec.Point("dst", 4), vec.Point("src", 1)
	n := Load(Param("n"), GP64())
	var fields, factor, magnitude, nan, bits reg.VecVirtual
	if f.name == "E4M3" {
		fields, factor = s.Constant(0xbf80bf80), s.Constant(0x43800000)
		magnitude, nan, bits = s.Constant(0x7fffffff), s.Constant(0x43f00000), s.Constant(0x7ff00000)
	}
	vec.Loop("loop", n, step, []vec.Pointer{dst, src}, func() {
		for i := 0; i < step; i += s.Lanes {
			v := s.Register()
			words := half(s, v)
			if f.name == "E5M2" {
				VPMOVZXBW(src.At(i), words)
				VPSLLW(Imm(8), words, words)
				VCVTPH2PS(words, v)
			} else {
				VPMOVSXBW(src.At(i), words)
				VPSLLW(Imm(7), words, words)
				if s.Wide() {
					VPANDD(half(s, fields), words, words)
				} else {
					VPAND(half(s, fields), words, words)
				}
				VCVTPH2PS(words, v)
				VMULPS(factor, v, v)
				size := s.And(magnitude, v)
				if s.Wide() {
					is := K()
					VPCMPEQD(nan, size, is)
					VPORD(bits, v, is, v)
				} else {
					VPCMPEQD(nan, size, size)
					VPAND(bits, size, size)
					VPOR(size, v, v)
				}
			}
			s.Write(v, dst.At(i))
		}
	})
	vec.End()
}

// narrow8 rounds to nearest even. From the smallest normal number up that is an addition to the bits, whose carry goes
// into the exponent; below, to a sum with a number whose last place is the smallest magnitude.
func narrow8(s vec.Set, f float8) {
	vec.Func("f32To"+f.name+s.Name, "func(dst *uint8, src *float32, n int)")
	dst, src := vec.Point("dst", 1), vec.Point("src", 4)
	n := Load(Param("n"), GP64())
	cut := 23 - f.fraction
	magnitude, one, below := s.Constant(0x7fffffff), s.Constant(1), s.Constant(1<<(cut-1)-1)
	bias, unit := s.Constant((127-f.bias)<<f.fraction), s.Constant((127+1-f.bias+cut)<<23)
	normal, most, infinity := s.Constant((127+1-f.bias)<<23-1), s.Constant(f.most), s.Constant(0x7f800000)
	nan := s.Constant(0x7f)
	vec.Loop("loop", n, step, []vec.Pointer{dst, src}, func() {
		var codes []reg.VecVirtual
		for i := 0; i < step; i += s.Lanes {
			x := s.Load(vec.Float32, src.At(i))
			b := s.And(magnitude, x)
			up, small := s.Register(), s.Register()
			VPSRLD(Imm(uint64(cut)), b, up)
			up = s.And(one, up)
			VPADDD(b, up, up)
			VPADDD(below, up, up)
			VPSRLD(Imm(uint64(cut)), up, up)
			VPSUBD(bias, up, up)
			VPMINUD(most, up, up)
			VADDPS(unit, b, small)
			VPSUBD(unit, small, small)
			if s.Wide() {
				is := K()
				VPCMPGTD(normal, b, is)
				VMOVDQA32(up, is, small)
				VPCMPGTD(infinity, b, is)
				VMOVDQA32(nan, is, small)
			} else {
				is := s.Register()
				VPCMPGTD(normal, b, is)
				VBLENDVPS(is, up, small, small)
				VPCMPGTD(infinity, b, is)
				VBLENDVPS(is, nan, small, small)
			}
			VPSRLD(Imm(31), x, x)
			VPSLLD(Imm(7), x, x)
			s.Or(x, small)
			codes = append(codes, small)
		}
		to := XMM()
		if s.Wide() {
			VPMOVDB(codes[0], to)
		} else {
			VPACKUSDW(codes[1], codes[0], codes[0]) // packs within halves of 128 bits
			VPERMQ(Imm(0xd8), codes[0], codes[0])
			VEXTRACTI128(Imm(1), codes[0], to)
			VPACKUSWB(to, codes[0].AsX(), to)
		}
		VMOVDQU(to, dst.At(0))
	})
	vec.End()
}

// half returns the lower half of a register.
func half(s vec.Set, r reg.VecVirtual) reg.Register {
	if s.Wide() {
		return r.AsY()
	}
	return r.AsX()
}
