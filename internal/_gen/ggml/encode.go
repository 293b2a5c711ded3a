package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"

	"github.com/snug-ml/snug/internal/_gen/half/vec"
)

// encodeQ8_0 writes blocks of 32 elements, see encodeQ8_0 of package gguf: with d the largest magnitude divided by 127, the numbers
// x·(1/d), rounded to nearest, halves away from zero. Adding the number below one half with the sign of a product, and cutting off, rounds so.
func (k *kernels) encodeQ8_0() {
	name := "encodeQ8_0" + k.Name
	vec.Func(name, "func(blocks *byte, x *float32, n int)", name+" writes n blocks.")
	b, x, left := vec.Point("blocks", 1), vec.Point("x", 4), Load(Param("n"), GP64())
	sign, below := k.Constant(0x80000000), k.Constant(0x3effffff)
	one, steps, finite := XMM(), XMM(), XMM()
	for _, c := range []struct {
		to   reg.VecVirtual
		bits uint32
	}{{one, 0x3f800000}, {steps, 0x42fe0000}, {finite, 0x7f7fffff}} {
		word := GP32()
		MOVL(U32(c.bits), word)
		VMOVD(word, c.to)
	}
	order := YMM()
	if !k.Wide() { // of four bytes each, which packing leaves in turns
		VMOVDQU(words("orderOfPacked", 8, func(i int) uint32 { return uint32(i%2*4 + i/2) }), order)
	}
	Label("block")
	parts := make([]reg.VecVirtual, 32/k.Lanes)
	top := k.Register()
	for i := range parts {
		parts[i] = k.Register()
		VMOVUPS(x.At(i*k.Lanes), parts[i])
		magnitude := k.Register()
		if k.Wide() {
			VPANDND(parts[i], sign, magnitude)
		} else {
			VPANDN(parts[i], sign, magnitude)
		}
		switch {
		case i > 0:
			VPMAXUD(magnitude, top, top)
		case k.Wide():
			VMOVDQA32(magnitude, top)
		default:
			VMOVDQA(magnitude, top)
		}
	}
	d, inverse, fits := XMM(), XMM(), XMM()
	VMOVD(k.Largest(top), d)
	VDIVSS(steps, d, d)
	VDIVSS(d, one, inverse)
	VCMPSS(Imm(2), finite, inverse, fits) // less or equal
	VANDPS(fits, inverse, inverse)
	VCVTPS2PH(Imm(0), d, d)
	scale := GP32()
	VMOVD(d, scale)
	MOVW(scale.As16(), b.At(0))
	by := k.Register()
	VBROADCASTSS(inverse, by)
	for i, v := range parts {
		VMULPS(by, v, v)
		half := k.And(sign, v)
		k.Or(below, half)
		VADDPS(half, v, v)
		VCVTTPS2DQ(v, v)
		if k.Wide() {
			VPMOVSDB(v, b.At(2+16*i))
		}
	}
	if !k.Wide() {
		VPACKSSDW(parts[1], parts[0], parts[0])
		VPACKSSDW(parts[3], parts[2], parts[2])
		VPACKSSWB(parts[2], parts[0], parts[0])
		VPERMD(parts[0], order, parts[0])
		VMOVDQU(parts[0], b.At(2))
	}
	b.Advance(34)
	x.Advance(32)
	DECQ(left)
	JNZ(LabelRef("block"))
	vec.End()
}
