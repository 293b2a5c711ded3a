package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"

	"github.com/snug-ml/snug/internal/_gen/half/vec"
)

// The offsets of the fields of Segments in internal/blockq.
const (
	offBounds = 0
	bounds    = 7
	offSlopes = offBounds + bounds*32
	offStarts = offSlopes + 32
	offTops   = offStarts + 32
	offBase   = offTops + 32
	offLeast  = offBase + 4
)

// encodeSegments finds codes as blockq.Segments says, and looks for the codes of elements next to a limit one by one.
func encodeSegments() {
	s := vec.AVX2
	vec.Func("encodeSegmentsAVX2", "func(codes *uint8, x *float32, n int, absmax float32, cells *uint32, segments *byte)",
		"encodeSegmentsAVX2 writes the codes of x/absmax where the encoder has segments.")
	codes, x, n := vec.Point("codes", 1), vec.Point("x", 4), Load(Param("n"), GP64())
	absmax, segments := s.Broadcast(Param("absmax")), Load(Param("segments"), GP64())
	field := func(off int) Mem { return Mem{Base: segments, Disp: off} }
	base, least := s.Register(), s.Register()
	VPBROADCASTD(field(offBase), base)
	VPBROADCASTD(field(offLeast), least)
	magnitude, none := s.Constant(0x7fffffff), s.Zero()
	unclearBits := s.Constant(unclear)
	var slow func()
	vec.Loop("loop", n, step, []vec.Pointer{codes, x}, func() {
		var q, double, at, t [2]reg.VecVirtual
		both := func(do func(i int)) { // step by step, so that one need not wait for the other
			for i := range q {
				do(i)
			}
		}
		both(func(i int) {
			q[i], double[i], at[i], t[i] = s.Register(), s.Register(), s.Register(), s.Register()
			PREFETCHT0(x.At(i*s.Lanes + ahead))
			VADDPS(x.At(i*s.Lanes), none, q[i])
			VDIVPS(absmax, q[i], q[i])
		})
		both(func(i int) {
			VPADDD(q[i], q[i], double[i]) // without the sign
			VPSRAD(Imm(31), q[i], t[i])
			VPSUBD(t[i], double[i], double[i])
			VPCMPGTD(field(offBounds), double[i], at[i]) // minus the number of the segment
		})
		for b := 1; b < bounds; b++ {
			both(func(i int) {
				VPCMPGTD(field(offBounds+32*b), double[i], t[i])
				VPADDD(t[i], at[i], at[i])
			})
		}
		both(func(i int) {
			slope := s.Register()
			VPERMPS(field(offSlopes), at[i], slope)
			VPERMPS(field(offStarts), at[i], t[i])
			VPERMPS(field(offTops), at[i], at[i])
			VPAND(magnitude, q[i], double[i])
			VFMADD231PS(slope, double[i], t[i])
		})
		both(func(i int) { VMINPS(at[i], t[i], t[i]) })
		both(func(i int) {
			VPAND(unclearBits, t[i], at[i])
			VPCMPEQD(none, at[i], at[i])
		})
		near, high := GP32(), GP32()
		VMOVMSKPS(at[0], near)
		VMOVMSKPS(at[1], high)
		SHLL(Imm(uint64(s.Lanes)), high)
		ORL(high, near)
		both(func(i int) {
			VPSLLD(Imm(32-codeBit-8), t[i], t[i]) // only the 8 bits of the code are left
			VPSRLD(Imm(24), t[i], t[i])
			VPSRAD(Imm(31), q[i], q[i]) // -1 if the quotient is negative
			VPAND(least, q[i], at[i])
			VPMAXUD(at[i], t[i], t[i])
			VPXOR(q[i], t[i], t[i])
			VPSUBD(q[i], t[i], t[i])
			VPADDD(base, t[i], t[i])
		})
		kernels{s}.storeBytes(t[:], codes.At(0))
		slow = nearOnes(s, codes, x, "group", 0, near.As64())
	})
	vec.End()
	slow()
}
