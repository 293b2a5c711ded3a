package vec

import (
	"github.com/mmcloughlin/avo/attr"
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// Halves is how AVX-512 rounds float32 to bfloat16, 32 at a time: the upper halves stay, and are
// one more where the lower halves carry. A NaN becomes quiet, with a lower half of 0,
// which never carries.
type Halves struct {
	even, odd, quiet, upper, minus reg.VecVirtual
}

// NewHalves sets up constants.
func NewHalves() Halves {
	return Halves{
		numbers("evenWords", 0), numbers("oddWords", 1),
		AVX512.Constant(0x400000), AVX512.Constant(0xffff0000), AVX512.Constant(0xffffffff),
	}
}

// Split returns the lower and the upper halves of two vectors of float32, side by side. It overwrites both.
func (h Halves) Split(x, y reg.VecVirtual) (lower, upper reg.VecVirtual) {
	h.quieten(x, y)
	return h.split(x, y)
}

// split is Split of numbers, no NaNs.
func (h Halves) split(x, y reg.VecVirtual) (lower, upper reg.VecVirtual) {
	lower = ZMM()
	VMOVDQA64(x, lower)
	VPERMT2W(y, h.even, lower)
	VPERMT2W(y, h.odd, x)
	return lower, x
}

// SplitTurns is Split for the elements of even and of odd number, which come in turn. inOdd is [OddWords].
func (h Halves) SplitTurns(even, odd reg.VecVirtual, inOdd reg.Register) (lower, upper reg.VecVirtual) {
	h.quieten(even, odd)
	upper = ZMM()
	VPSRLD(U8(16), even, upper)
	VMOVDQU16(odd, inOdd, upper)
	VPSLLD(U8(16), odd, odd)
	VMOVDQU16(odd, inOdd, even)
	return even, upper
}

// OddWords returns the mask of every other word, from the second on.
func OddWords() reg.Register {
	bits, k := GP32(), K()
	MOVL(U32(0xaaaaaaaa), bits)
	KMOVD(bits, k)
	return k
}

// Turns loads 32 elements of bfloat16: those of even and those of odd number.
func (h Halves) Turns(from Mem) (even, odd reg.VecVirtual) {
	even, odd = ZMM(), ZMM()
	VPSLLD(U8(16), from, even)
	VPANDD(from, h.upper, odd)
	return even, odd
}

// Widen returns half i of the 32 elements of bfloat16 at an address, by one shuffle. inOdd is [OddWords].
func Widen(from Mem, i int, inOdd reg.Register) reg.VecVirtual {
	r := Permutation([]string{"lowerTurns", "upperTurns"}[i], 4, func(w int) int { return (w + 16*i) << 16 })
	VPERMW_Z(from, r, inOdd, r)
	return r
}

// quieten makes NaNs quiet ones with a lower half of 0.
func (h Halves) quieten(x ...reg.VecVirtual) {
	const orAnd = U8(0xa8) // the table of VPTERNLOGD for (a | b) & c
	for _, v := range x {
		nan := K()
		VCMPPS(Imm(unordered), v, v, nan)
		VPTERNLOGD(orAnd, h.upper, h.quiet, nan, v)
	}
}

// Carry adds one to the words of upper that k selects.
func (h Halves) Carry(k reg.OpmaskVirtual, upper reg.VecVirtual) { VPSUBW(h.minus, upper, k, upper) }

// Nearest sets up constants and returns what rounds two vectors of float32, which it overwrites, to nearest even.
func (h Halves) Nearest() func(x, y reg.VecVirtual) reg.VecVirtual { return h.nearest(h.Split) }

// NearestNumber is Nearest for numbers, no NaNs.
func (h Halves) NearestNumber() func(x, y reg.VecVirtual) reg.VecVirtual { return h.nearest(h.split) }

func (h Halves) nearest(split func(x, y reg.VecVirtual) (lower, upper reg.VecVirtual)) func(x, y reg.VecVirtual) reg.VecVirtual {
	one, half := AVX512.Constant(1<<16|1), AVX512.Constant(1<<31|1<<15)
	return func(x, y reg.VecVirtual) reg.VecVirtual {
		lower, upper := split(x, y)
		last, carry := AVX512.And(one, upper), K()
		VPADDUSW(lower, last, last) // a tie is above a half if the last bit that stays is set
		VPCMPUW(Imm(6), half, last, carry)
		h.Carry(carry, upper)
		return upper
	}
}

// made are the symbols of this program.
var made = map[string]Mem{}

// numbers returns every other number below 64, from first on.
func numbers(name string, first int) reg.VecVirtual {
	if _, ok := made[name]; !ok {
		made[name] = GLOBL(name, attr.RODATA|attr.NOPTR)
		for i := range 32 {
			DATA(2*i, U16(first+2*i))
		}
	}
	r := ZMM()
	VMOVDQU64(made[name], r)
	return r
}
