// Mx generates the loops of internal/mx over blocks of 32 elements.
package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"

	"github.com/snug-ml/snug/internal/_gen/half/vec"
)

const block = 32 // elements

func main() {
	ConstraintExpr("!noasm,gc")
	for _, s := range vec.Sets {
		k := kernels{s}
		k.encode()
		k.decode()
	}
	Generate()
}

type kernels struct{ vec.Set }

// encode takes the exponent of the largest magnitude as the block's scale. In a
// block with a value that is not finite all codes become 0.
func (k kernels) encode() {
	name := "encode" + k.Name
	vec.Func(name, "func(codes *uint8, scales *uint8, x *float32, blocks int)")
	codes, scales, x := vec.Point("codes", 1), vec.Point("scales", 1), vec.Point("x", 4)
	n := Load(Param("blocks"), GP64())
	magnitude, lowest := k.Constant(0x7fffffff), k.Constant(0xffffff81) // -127
	Label("block")
	top := k.Zero()
	for i := 0; i < block; i += k.Lanes {
		VPMAXUD(k.And(magnitude, k.Load(vec.Float32, x.At(i))), top, top)
	}
	scale, other, bits := k.Largest(top).(reg.GPVirtual), GP32(), GP32()
	SHRL(Imm(23), scale)
	MOVL(U32(7), other)
	CMPL(scale, other)
	CMOVLCS(other, scale)
	MOVB(scale.As8(), scales.At(0))
	MOVL(U32(260), bits)
	SUBL(scale, bits)
	SHLL(Imm(23), bits)
	inverse := k.broadcast(bits)
	XORL(other, other)
	MOVL(I32(-1), bits)
	CMPL(scale, U32(255))
	CMOVLEQ(other, bits)
	finite := k.broadcast(bits)
	for i := 0; i < block; i += k.Lanes {
		v := k.Load(vec.Float32, x.At(i))
		VMULPS(inverse, v, v)
		v = k.And(finite, v)
		VCVTPS2DQ(v, v)
		VPMAXSD(lowest, v, v)
		k.writeBytes(v, codes.At(i))
	}
	codes.Advance(block)
	scales.Advance(1)
	x.Advance(block)
	DECQ(n)
	JNZ(LabelRef("block"))
	vec.End()
}

// decode looks the step of a block up in a table.
func (k kernels) decode() {
	name := "decode" + k.Name
	vec.Func(name, "func(x *float32, codes *uint8, scales *uint8, steps *float32, blocks int)")
	x, codes, scales := vec.Point("x", 4), vec.Point("codes", 1), vec.Point("scales", 1)
	steps, n := Load(Param("steps"), GP64()), Load(Param("blocks"), GP64())
	Label("block")
	scale, step := GP32(), k.Register()
	MOVBLZX(scales.At(0), scale)
	VBROADCASTSS(Mem{Base: steps, Index: scale.As64(), Scale: 4}, step)
	for i := 0; i < block; i += k.Lanes {
		v := k.Register()
		VPMOVSXBD(codes.At(i), v)
		VCVTDQ2PS(v, v)
		VMULPS(step, v, v)
		k.Write(v, x.At(i))
	}
	x.Advance(block)
	codes.Advance(block)
	scales.Advance(1)
	DECQ(n)
	JNZ(LabelRef("block"))
	vec.End()
}

// broadcast returns a word in every lane.
func (k kernels) broadcast(word reg.GPVirtual) reg.VecVirtual {
	r := k.Register()
	if k.Wide() {
		VPBROADCASTD(word, r)
		return r
	}
	low := XMM()
	VMOVD(word, low)
	VPBROADCASTD(low, r)
	return r
}

// writeBytes writes the lanes of v as bytes, those above 127 as 127.
func (k kernels) writeBytes(v reg.VecVirtual, to Mem) {
	if k.Wide() {
		VPMOVSDB(v, to)
		return
	}
	high, bytes := XMM(), XMM()
	VEXTRACTI128(Imm(1), v, high)
	VPACKSSDW(high, v.AsX(), bytes)
	VPACKSSWB(bytes, bytes, bytes)
	VMOVQ(bytes, to)
}
