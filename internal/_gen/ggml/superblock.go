package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"

	"github.com/snug-ml/snug/internal/_gen/half/vec"
)

// This file has blocks of 256 elements, see internal/ggml/superblock.go.

// sixBits writes d s and m n of 8 groups to the stack.
func (k *kernels) sixBits(b vec.Pointer, s, n Mem) {
	var w [3]reg.GPVirtual // the 12 bytes
	for i := range w {
		w[i] = GP32()
		MOVL(b.At(4+4*i), w[i])
	}
	// upper returns bits 4 and 5 of the last four groups, and leaves those of the first four.
	upper := func(w reg.GPVirtual) reg.GPVirtual {
		r := GP32()
		MOVL(w, r)
		SHRL(Imm(2), r)
		ANDL(U32(0x30303030), r)
		ANDL(U32(0x3f3f3f3f), w)
		return r
	}
	highS, highN, lowN := upper(w[0]), upper(w[1]), GP32()
	MOVL(w[2], lowN)
	SHRL(Imm(4), lowN)
	ANDL(U32(0x0f0f0f0f), lowN)
	ANDL(U32(0x0f0f0f0f), w[2])
	ORL(w[2], highS)
	ORL(lowN, highN)
	for i, g := range []struct {
		low, high reg.GPVirtual
		to        Mem
	}{{w[0], highS, s}, {w[1], highN, n}} {
		v, scale := YMM(), XMM()
		SHLQ(Imm(32), g.high.As64())
		ORQ(g.high.As64(), g.low.As64())
		VMOVQ(g.low.As64(), v.AsX())
		VPMOVZXBD(v.AsX(), v)
		VCVTDQ2PS(v, v)
		VPBROADCASTW(b.At(2*i), scale)
		spread := YMM()
		VCVTPH2PS(scale, spread)
		VMULPS(spread, v, v)
		VMOVUPS(v, g.to)
	}
}

// q4K takes 32 bytes for two groups at a time.
func q4K(k *kernels, b vec.Pointer) reader {
	scales, s, q := AllocLocal(64), Mem{Base: GP64()}, Mem{Base: GP64()}
	var ramp, mask reg.VecVirtual
	if k.Wide() {
		ramp = ZMM()
		VMOVUPS(numbers(0), ramp)
	} else {
		mask = k.Constant(15)
	}
	// group returns what makes values of numbers.
	group := func(g int) values {
		d, m := k.spread(s.Offset(4*g)), k.spread(s.Offset(32+4*g))
		if k.Wide() {
			table := k.minus(ramp, d, m)
			return func(v reg.VecVirtual) reg.VecVirtual { return pick(table, v) }
		}
		return func(v reg.VecVirtual) reg.VecVirtual {
			VCVTDQ2PS(v, v)
			return k.minus(d, v, m)
		}
	}
	return func(emit emitter, step func(int)) {
		k.sixBits(b, scales, scales.Offset(32))
		LEAQ(scales, s.Base)
		LEAQ(b.At(16), q.Base)
		times(4, func() {
			k.pairs(emit, q, 32, 32, mask, group(0), group(1))
			ADDQ(Imm(8), s.Base)
			ADDQ(Imm(32), q.Base)
			step(64)
		})
	}
}

// q5K puts numbers together in bytes, those of two groups at a time. The fifth bits of these are the lowest two.
func q5K(k *kernels, b vec.Pointer) reader {
	scales, s, q, stack := AllocLocal(64), Mem{Base: GP64()}, Mem{Base: GP64()}, AllocLocal(64)
	mask, fifth := bytesOf(15), bytesOf(16)
	return func(emit emitter, step func(int)) {
		k.sixBits(b, scales, scales.Offset(32))
		LEAQ(scales, s.Base)
		LEAQ(b.At(48), q.Base)
		high := YMM()
		VMOVDQU(b.At(16), high)
		times(4, func() {
			lower, upper := YMM(), YMM()
			VMOVDQU(q, lower)
			VPSRLW(Imm(4), lower, upper)
			for i, numbers := range []reg.VecVirtual{lower, upper} {
				bit := YMM()
				VPSLLW(Imm(uint64(4-i)), high, bit)
				VPAND(fifth, bit, bit)
				VPAND(mask, numbers, numbers)
				VPOR(numbers, bit, bit)
				VMOVDQU(bit, stack.Offset(32*i))
			}
			VPSRLW(Imm(2), high, high)
			for i := range 2 {
				d, m := k.spread(s.Offset(4*i)), k.spread(s.Offset(32+4*i))
				for at := 0; at < 32; at += k.Lanes {
					emit(32*i+at, k.minus(d, k.signed(stack.Offset(32*i+at)), m))
				}
			}
			ADDQ(Imm(8), s.Base)
			ADDQ(Imm(32), q.Base)
			step(64)
		})
	}
}

// q6K puts numbers together in bytes, half a block at a time.
func q6K(k *kernels, b vec.Pointer) reader {
	scales, s, stack := AllocLocal(64), Mem{Base: GP64()}, AllocLocal(128)
	q, two := Mem{Base: GP64()}, Mem{Base: GP64()}
	mask, upper, offset := bytesOf(15), bytesOf(0x30), bytesOf(32)
	return func(emit emitter, step func(int)) {
		d := k.half(b.At(208))
		for i := 0; i < 16; i += k.Lanes {
			VMOVUPS(k.scaled(d, k.signed(b.At(192+i))), scales.Offset(4*i))
		}
		LEAQ(scales, s.Base)
		LEAQ(b.At(0), q.Base)
		LEAQ(b.At(128), two.Base)
		times(2, func() {
			high := YMM()
			VMOVDQU(two, high)
			for i := range 4 { // elements 32 i and more
				numbers, bits := YMM(), YMM()
				VMOVDQU(q.Offset(32*(i%2)), numbers)
				if i >= 2 {
					VPSRLW(Imm(4), numbers, numbers)
				}
				VPAND(mask, numbers, numbers)
				moveBits(high, 2*i, 4, bits)
				VPAND(upper, bits, bits)
				VPOR(bits, numbers, numbers)
				VPSUBB(offset, numbers, numbers)
				VMOVDQU(numbers, stack.Offset(32*i))
			}
			for g := range 8 {
				scale := k.spread(s.Offset(4 * g))
				for at := 0; at < 16; at += k.Lanes {
					emit(16*g+at, k.scaled(scale, k.signed(stack.Offset(16*g+at))))
				}
			}
			ADDQ(Imm(32), s.Base)
			ADDQ(Imm(64), q.Base)
			ADDQ(Imm(32), two.Base)
			step(128)
		})
	}
}

// moveBits moves bits of bytes from one place to another; those around them are others' then.
func moveBits(v reg.VecVirtual, from, to int, r reg.VecVirtual) {
	switch {
	case from < to:
		VPSLLW(Imm(uint64(to-from)), v, r)
	case from > to:
		VPSRLW(Imm(uint64(from-to)), v, r)
	default:
		VMOVDQA(v, r)
	}
}
