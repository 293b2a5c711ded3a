package vec

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// Elem is an element type of vectors in memory, float32 in registers.
type Elem struct {
	Name string // as it stands in names of functions
	Go   string // the type in their signatures
	Size int
}

// The element types. binary16 has conversions of its own (F16C, AVX-512F).
// bfloat16 is the upper half of a float32: widening is a shift; narrowing adds
// 0x7fff and the lowest bit that stays, which rounds to nearest even, and NaNs
// are set quiet instead.
var (
	Float32  = Elem{"F32", "float32", 4}
	Float16  = Elem{"F16", "uint16", 2}
	BFloat16 = Elem{"BF16", "uint16", 2}
	Elems    = []Elem{Float32, Float16, BFloat16}
)

// Load returns a vector from memory as float32.
func (s Set) Load(e Elem, from Mem) reg.VecVirtual {
	r := s.Register()
	switch e {
	case Float32:
		VMOVUPS(from, r)
	case Float16:
		VCVTPH2PS(from, r)
	case BFloat16:
		VPMOVZXWD(from, r)
		VPSLLD(Imm(16), r, r)
	}
	return r
}

// The predicate of VCMPPS that finds NaNs, and the rounding of VCVTPS2PH.
const (
	unordered = 3
	nearest   = 0
)

// Rounder sets up constants and returns what rounds a vector of float32 to e:
// the register to store, of as many lanes.
func (s Set) Rounder(e Elem) func(x reg.VecVirtual) reg.Register {
	switch e {
	case Float16:
		return func(x reg.VecVirtual) reg.Register {
			VCVTPS2PH(Imm(nearest), x, s.half(x))
			return s.half(x)
		}
	case BFloat16:
		return s.roundBFloat16()
	}
	return func(x reg.VecVirtual) reg.Register { return x }
}

// half returns the lower half of r.
func (s Set) half(r reg.VecVirtual) reg.Register {
	if s.Wide() {
		return r.AsY()
	}
	return r.AsX()
}

func (s Set) roundBFloat16() func(x reg.VecVirtual) reg.Register {
	one, bias, quiet := s.Constant(1), s.Constant(0x7fff), s.Constant(0x40)
	return func(x reg.VecVirtual) reg.Register {
		high := s.Register()
		VPSRLD(Imm(16), x, high)
		rounded := s.And(one, high)
		VPADDD(bias, rounded, rounded)
		VPADDD(x, rounded, rounded)
		VPSRLD(Imm(16), rounded, rounded)
		return s.Words(s.QuietNaN(x, high, rounded, quiet))
	}
}

// QuietNaN returns bf16, the bfloat16 that x is rounded to, or high, the upper
// half of x, with the bit quiet where x is NaN. It overwrites high and bf16.
func (s Set) QuietNaN(x, high, bf16, quiet reg.VecVirtual) reg.VecVirtual {
	if s.Wide() {
		nan := K()
		VCMPPS(Imm(unordered), x, x, nan)
		VPORD(quiet, high, nan, bf16)
		return bf16
	}
	nan := s.Register()
	VPOR(quiet, high, high)
	VCMPPS(Imm(unordered), x, x, nan)
	VBLENDVPS(nan, high, bf16, bf16)
	return bf16
}

// Words returns the lower 16 bits of every lane, which has no other bits, side
// by side.
func (s Set) Words(r reg.VecVirtual) reg.Register {
	if s.Wide() {
		VPMOVDW(r, r.AsY())
		return r.AsY()
	}
	VPACKUSDW(r, r, r) // packs within halves of 128 bits
	VPERMQ(Imm(0x08), r, r)
	return r.AsX()
}

// Write writes x to memory.
func (s Set) Write(x reg.Register, to Mem) { VMOVUPS(x, to) }

// Stream writes x to memory aligned to its size, around the caches. A fence
// must follow before another processor is told of it.
func (s Set) Stream(x reg.Register, to Mem) { VMOVNTPS(x, to) }
