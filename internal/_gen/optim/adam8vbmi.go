package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"

	"github.com/snug-ml/snug/internal/_gen/half/vec"
)

// step8VBMI updates moments that lie in fresh already: all of the first, then all of the second.
func step8VBMI(e vec.Elem) {
	s := vec.AVX512
	b := begin8("adam8"+e.Name+"VBMI", "updates a block of n elements, a multiple of 64, whose old moments are in fresh.")
	f, round := b.factors(), s.Rounder(e)
	p, g, fresh := b.pointer(offP), b.pointer(offG), b.pointer(offFresh)
	magnitude, top1, top2 := s.Constant(0x7fffffff), s.Zero(), s.Zero()
	second := GP64()
	Load(Param("n"), second)
	LEAQ(Mem{Base: fresh, Index: second, Scale: 4}, second)
	size := uint8(e.Size)
	loop8(func(i reg.Register) {
		PREFETCHT0(at(p, i, size).Offset(ahead * e.Size))
		PREFETCHT0(at(g, i, size).Offset(ahead * e.Size))
		m, v := s.Register(), s.Register()
		VMULPS(at(fresh, i, 4), f.beta1, m)
		VMULPS(at(second, i, 4), f.beta2, v)
		grad := s.Load(e, at(g, i, size))
		VMULPS(f.gradScale, grad, grad)
		f.moments(m, v, grad)
		VMOVUPS(m, at(fresh, i, 4))
		VMOVUPS(v, at(second, i, 4))
		VPMAXUD(s.And(magnitude, m), top1, top1)
		VPMAXUD(s.And(magnitude, v), top2, top2)
		x := f.parameters(m, v, s.Load(e, at(p, i, size)))
		s.Write(round(x), at(p, i, size))
	})
	most1, most2 := s.Largest(top1), s.Largest(top2)
	b = fields{Load(Param("block8"), GP64())}
	MOVL(most1, Mem{Base: b.base, Disp: offTop1})
	MOVL(most2, Mem{Base: b.base, Disp: offTop2})
	vec.End()
}
