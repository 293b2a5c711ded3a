package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"

	"github.com/snug-ml/snug/internal/_gen/half/vec"
)

// group is the number of codes that AVX512_VBMI looks up together.
const group = 64

// step8VBMI looks the values of 64 codes up in planes of bytes, then updates their elements. The new moments go to
// fresh: all of the first, then all of the second.
func step8VBMI(e vec.Elem) {
	s := vec.AVX512
	b := begin8("adam8"+e.Name+"VBMI", "updates a block of n elements, a multiple of 64.")
	f, round := b.factors(), s.Rounder(e)
	p, g, fresh := b.pointer(offP), b.pointer(offG), b.pointer(offFresh)
	codes1, codes2 := b.pointer(offCodes1), b.pointer(offCodes2)
	map1, map2 := b.pointer(offMap1), b.pointer(offMap2)
	absmax1, absmax2 := b.broadcast(offAbsmax1), b.broadcast(offAbsmax2)
	magnitude, top1, top2 := s.Constant(0x7fffffff), s.Zero(), s.Zero()
	order := vec.Transposed()
	n, second := GP64(), GP64()
	Load(Param("n"), n)
	LEAQ(Mem{Base: fresh, Index: n, Scale: 4}, second)
	i := GP64()
	XORQ(i, i)
	size := uint8(e.Size)
	Label("loop")
	for line := 0; line < group*e.Size; line += 64 {
		PREFETCHT0(at(p, i, size).Offset(ahead*e.Size + line))
		PREFETCHT0(at(g, i, size).Offset(ahead*e.Size + line))
	}
	firsts := vec.PlanesAt(Mem{Base: map1}).Lookup(at(codes1, i, 1), order)
	for k, m := range firsts {
		VMULPS(absmax1, m, m)
		VMULPS(f.beta1, m, m)
		VMOVUPS(m, at(fresh, i, 4).Offset(64*k))
	}
	for k, v := range vec.PlanesAt(Mem{Base: map2}).Lookup(at(codes2, i, 1), order) {
		off := k * s.Lanes
		m := s.Register()
		VMOVUPS(at(fresh, i, 4).Offset(64*k), m)
		VMULPS(absmax2, v, v)
		VMULPS(f.beta2, v, v)
		grad := s.Load(e, at(g, i, size).Offset(off*e.Size))
		VMULPS(f.gradScale, grad, grad)
		f.moments(m, v, grad)
		VMOVUPS(m, at(fresh, i, 4).Offset(64*k))
		VMOVUPS(v, at(second, i, 4).Offset(64*k))
		VPMAXUD(s.And(magnitude, m), top1, top1)
		VPMAXUD(s.And(magnitude, v), top2, top2)
		x := f.parameters(m, v, s.Load(e, at(p, i, size).Offset(off*e.Size)))
		s.Write(round(x), at(p, i, size).Offset(off*e.Size))
	}
	ADDQ(Imm(group), i)
	CMPQ(i, n)
	JLT(LabelRef("loop"))
	most1, most2 := s.Largest(top1), s.Largest(top2)
	b = fields{Load(Param("block8"), GP64())}
	MOVL(most1, Mem{Base: b.base, Disp: offTop1})
	MOVL(most2, Mem{Base: b.base, Disp: offTop2})
	vec.End()
}
