package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"

	"github.com/snug-ml/snug/internal/_gen/half/vec"
)

// The offsets of the fields of block8 in internal/optim.
const (
	offP       = 8 * iota
	offG       // pointers
	offFresh   // of the block to update
	offCodes1  //
	offCodes2  //
	offMap1    //
	offMap2    //
	offFactors // beta1, rest1, beta2, rest2, gradScale, size, eps, pre, post

	offAbsmax1 = offFactors + 9*4
	offAbsmax2 = offAbsmax1 + 4
	offTop1    = offAbsmax2 + 4
	offTop2    = offTop1 + 4

	// After 4 bytes that align a pointer: the block to encode, and for each
	// moment absmax, inverse, rest, 4 bytes and the table.
	offBeforeFresh  = offTop2 + 8
	offBeforeCodes1 = offBeforeFresh + 8
	offBeforeCodes2 = offBeforeCodes1 + 8
	offQuotient1    = offBeforeCodes2 + 8
	offQuotient2    = offQuotient1 + 24
)

// factors are the factors of Coef that Adam uses, in every lane.
type factors struct {
	vec.Set
	beta1, rest1, beta2, rest2, gradScale, size, eps, pre, post reg.VecVirtual
}

// moments adds a scaled gradient, which it overwrites, to moments that are
// decayed already.
func (f factors) moments(first, second, g reg.VecVirtual) {
	t := f.Register()
	VMULPS(g, f.rest1, t)
	VADDPS(t, first, first)
	VMULPS(g, f.rest2, t)
	VMULPS(g, t, t)
	VADDPS(t, second, second)
}

// parameters returns p updated by the moments, which it overwrites.
func (f factors) parameters(first, second reg.VecVirtual, p Op) reg.VecVirtual {
	x := f.Register()
	VSQRTPS(second, second)
	VADDPS(f.eps, second, second)
	VDIVPS(second, first, first)
	VMULPS(f.size, first, first)
	VMULPS(p, f.pre, x)
	VSUBPS(first, x, x)
	VMULPS(f.post, x, x)
	return x
}

// fields reads the struct that the parameter b points to.
type fields struct{ base reg.Register }

func (f fields) pointer(off int) reg.Register {
	r := GP64()
	MOVQ(Mem{Base: f.base, Disp: off}, r)
	return r
}

func (f fields) broadcast(off int) reg.VecVirtual {
	r := ZMM()
	VBROADCASTSS(Mem{Base: f.base, Disp: off}, r)
	return r
}

func (f fields) divisor(off int) vec.Divisor {
	return vec.Divisor{
		Absmax: f.broadcast(off), Inverse: f.broadcast(off + 4), Rest: f.broadcast(off + 8),
		Cells: f.pointer(off + 16),
	}
}

func (f fields) factors() factors {
	var r [9]reg.VecVirtual
	for i := range r {
		r[i] = f.broadcast(offFactors + 4*i)
	}
	return factors{vec.AVX512, r[0], r[1], r[2], r[3], r[4], r[5], r[6], r[7], r[8]}
}

// ahead is how far, in elements, parameters and gradients are fetched.
const ahead = 512

func begin8(name, doc string) fields {
	vec.Func(name, "func(block8 *byte, n int)", name+" "+doc)
	return fields{Load(Param("block8"), GP64())}
}

// loop8 repeats body for 16 of the n elements, from i on.
func loop8(body func(i reg.Register)) {
	n, err := Param("n").Resolve()
	if err != nil {
		panic(err)
	}
	i := GP64()
	XORQ(i, i)
	Label("loop")
	body(i)
	ADDQ(Imm(step), i)
	CMPQ(i, n.Addr)
	JLT(LabelRef("loop"))
}

func at(base, i reg.Register, size uint8) Mem { return Mem{Base: base, Index: i, Scale: size} }

// adam8 generates all loops of Adam in 8-bit blocks.
func adam8() {
	for _, e := range vec.Elems {
		step8("adam8", e, false)
		step8("adam8Encode", e, true)
	}
	encode8()
	for _, e := range vec.Elems {
		step8VBMI(e)
	}
}

// step8 looks the values of codes up while it waits for square roots and
// divisions, and the codes of the block before.
func step8(name string, e vec.Elem, encode bool) {
	s := vec.AVX512
	doc := "updates a block of n elements, a multiple of 16."
	if encode {
		doc = "updates a block of n elements, a multiple of 16, and encodes the one before."
	}
	b := begin8(name+e.Name+s.Name, doc)
	f, round := b.factors(), s.Rounder(e)
	p, g, fresh := b.pointer(offP), b.pointer(offG), b.pointer(offFresh)
	codes1, codes2 := b.pointer(offCodes1), b.pointer(offCodes2)
	map1, map2 := b.pointer(offMap1), b.pointer(offMap2)
	absmax1, absmax2 := b.broadcast(offAbsmax1), b.broadcast(offAbsmax2)
	magnitude, top1, top2 := s.Constant(0x7fffffff), s.Zero(), s.Zero()
	encodeBefore := func(reg.Register) {}
	if encode {
		encodeBefore = b.encoder()
	}
	size := uint8(e.Size)
	loop8(func(i reg.Register) {
		PREFETCHT0(at(p, i, size).Offset(ahead * e.Size))
		PREFETCHT0(at(g, i, size).Offset(ahead * e.Size))
		first, second := s.Lookup(map1, at(codes1, i, 1)), s.Lookup(map2, at(codes2, i, 1))
		VMULPS(absmax1, first, first)
		VMULPS(f.beta1, first, first)
		VMULPS(absmax2, second, second)
		VMULPS(f.beta2, second, second)
		grad := s.Load(e, at(g, i, size))
		VMULPS(f.gradScale, grad, grad)
		f.moments(first, second, grad)
		VMOVUPS(first, at(fresh, i, 8))
		VMOVUPS(second, at(fresh, i, 8).Offset(64))
		VPMAXUD(s.And(magnitude, first), top1, top1)
		VPMAXUD(s.And(magnitude, second), top2, top2)
		x := f.parameters(first, second, s.Load(e, at(p, i, size)))
		s.Write(round(x), at(p, i, size))
		encodeBefore(i)
	})
	most1, most2 := s.Largest(top1), s.Largest(top2)
	b = fields{Load(Param("block8"), GP64())}
	MOVL(most1, Mem{Base: b.base, Disp: offTop1})
	MOVL(most2, Mem{Base: b.base, Disp: offTop2})
	vec.End()
}

// encoder loads what encodes the block before, and returns what does so for 16
// elements.
func (f fields) encoder() func(i reg.Register) {
	fresh := f.pointer(offBeforeFresh)
	codes1, codes2 := f.pointer(offBeforeCodes1), f.pointer(offBeforeCodes2)
	quotient1, quotient2 := f.divisor(offQuotient1), f.divisor(offQuotient2)
	return func(i reg.Register) {
		x, y := ZMM(), ZMM()
		VMOVUPS(at(fresh, i, 8), x)
		quotient1.Encode(x, at(codes1, i, 1))
		VMOVUPS(at(fresh, i, 8).Offset(64), y)
		quotient2.Encode(y, at(codes2, i, 1))
	}
}

func encode8() {
	loop8(begin8("encode8AVX512", "encodes the block before, of n elements, a multiple of 16.").encoder())
	vec.End()
}
