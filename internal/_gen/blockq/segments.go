package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"

	"github.com/snug-ml/snug/internal/_gen/half/vec"
)

// The offsets of the fields of Segments in internal/blockq.
const (
	offFirst = 32 * iota // what is compared with first, then second and third
	offSecond
	offThird
	offSlopes
	offStarts
	offTops
	offBase
	offLeast
)

// encodeSegments finds codes as blockq.Segments says, and the codes of 32 elements one by one where one of them is next to a limit.
func encodeSegments() {
	s := vec.AVX2
	vec.Func("encodeSegmentsAVX2", "func(codes *uint8, x *float32, n int, absmax float32, cells *uint32, segments *byte)",
		"encodeSegmentsAVX2 writes the codes of x/absmax where the encoder has segments; n is a multiple of 32.")
	codes, x, n := vec.Point("codes", 1), vec.Point("x", 4), Load(Param("n"), GP64())
	e := segmentEncoder{Set: s, absmax: s.Broadcast(Param("absmax")), none: s.Zero(), unclear: s.Constant(unclear), segments: Load(Param("segments"), GP64())}
	lowest := s.Constant(0x00ff00ff) // bytes of words
	var slow func()
	vec.Loop("loop", n, 4*s.Lanes, []vec.Pointer{codes, x}, func() {
		var words, signs, near [2]reg.VecVirtual
		for i := range words {
			words[i], signs[i], near[i] = e.words(x, 2*i*s.Lanes)
			VPAND(lowest, words[i], words[i])
		}
		above, below := words[0], YMM()
		VPACKUSWB(words[1], words[0], above)
		VPACKSSWB(signs[1], signs[0], signs[0])
		VPMAXUB(e.field(offLeast), above, below)
		base := YMM()
		VMOVDQU(e.field(offBase), base)
		VPADDB(base, above, above)
		VPSUBUSB(below, base, below) // no code is below 0
		VPBLENDVB(signs[0], below, above, above)
		VPERMQ(Imm(0xd8), above, above) // in order again
		VPSHUFD(Imm(0xd8), above, above)
		VMOVDQU(above, codes.At(0))

		left := GP32()
		VPMINUD(near[1], near[0], near[0])
		VPCMPEQD(e.none, near[0], near[0])
		VMOVMSKPS(near[0], left)
		slow = nearOnes(s, codes, x, "group", 0, left.As64(), func() { MOVL(U32(1<<32-1), left) })
	})
	vec.End()
	slow()
}

// segmentEncoder has the constants of encodeSegments.
type segmentEncoder struct {
	vec.Set
	absmax, none, unclear reg.VecVirtual
	segments              reg.Register
}

func (e segmentEncoder) field(off int) Mem { return Mem{Base: e.segments, Disp: off} }

// words returns three vectors for 16 elements of x, from one on. words has the difference of each code from the code of 0, in the lower
// byte of a 16-bit word. signs has the sign of each quotient in such a word. Both are packed within halves of 128 bits. near has 32-bit
// lanes; one of them is 0 if an element is next to a limit.
func (e segmentEncoder) words(x vec.Pointer, from int) (words, signs, near reg.VecVirtual) {
	var double, at, t [2]reg.VecVirtual
	both := func(do func(i int)) { // step by step, so that one need not wait for the other
		for i := range t {
			do(i)
		}
	}
	PREFETCHT0(x.At(from + ahead))
	both(func(i int) {
		double[i], at[i], t[i] = e.Register(), e.Register(), e.Register()
		VADDPS(x.At(from+i*e.Lanes), e.none, t[i])
		VDIVPS(e.absmax, t[i], t[i])
	})
	signs = e.Register()
	VPACKSSDW(t[1], t[0], signs)
	both(func(i int) {
		VPADDD(t[i], t[i], double[i]) // without the sign
		VPSRLD(Imm(31), t[i], t[i])
		VPADDD(t[i], double[i], double[i])
		VPCMPGTD(e.field(offFirst), double[i], at[i])
	})
	for _, table := range []int{offSecond, offThird} { // at is minus the number of the part that is left
		both(func(i int) {
			VPERMD(e.field(table), at[i], t[i])
			VPCMPGTD(t[i], double[i], t[i])
			VPADDD(at[i], at[i], at[i])
			VPADDD(t[i], at[i], at[i])
		})
	}
	both(func(i int) {
		slope := e.Register()
		VPERMPS(e.field(offSlopes), at[i], slope)
		VPERMPS(e.field(offStarts), at[i], t[i])
		VPERMPS(e.field(offTops), at[i], at[i])
		VPSRLD(Imm(1), double[i], double[i]) // the magnitude
		VFMADD231PS(slope, double[i], t[i])
	})
	both(func(i int) { VMINPS(at[i], t[i], t[i]) })
	both(func(i int) {
		VPAND(e.unclear, t[i], at[i])
		VPSRLD(Imm(codeBit), t[i], t[i]) // the code in the lowest byte, below the bits of 256
	})
	near, words = at[0], t[0]
	VPMINUD(at[1], at[0], near)
	VPACKUSDW(t[1], t[0], words)
	return words, signs, near
}
