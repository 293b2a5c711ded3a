package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"

	"github.com/snug-ml/snug/internal/_gen/half/vec"
)

// This file has blocks of 32 elements, see internal/ggml/block32.go.

// q4_0 has numbers from -8 on.
func q4_0(k *kernels, b vec.Pointer) reader {
	if k.Wide() {
		ramp := ZMM()
		VMOVUPS(numbers(-8), ramp)
		return func(emit emitter, step func(int)) {
			table := ZMM()
			VMULPS(ramp, k.half(b.At(0)), table)
			of := func(v reg.VecVirtual) reg.VecVirtual { return pick(table, v) }
			k.pairs(emit, b.At(2), 16, 16, nil, of, of)
			step(32)
		}
	}
	halves, eight, stack := newHalves(), bytesOf(8), AllocLocal(32)
	return func(emit emitter, step func(int)) {
		d, q := k.half(b.At(0)), halves.load(b.At(2))
		VPSUBB(eight, q, q)
		VMOVDQU(q, stack)
		for i := 0; i < 32; i += k.Lanes {
			emit(i, k.scaled(d, k.signed(stack.Offset(i))))
		}
		step(32)
	}
}

// q4_1 has a minimum.
func q4_1(k *kernels, b vec.Pointer) reader {
	if k.Wide() {
		ramp := ZMM()
		VMOVUPS(numbers(0), ramp)
		return func(emit emitter, step func(int)) {
			d, m := k.halves(b.At(0))
			table := k.plus(ramp, d, m)
			of := func(v reg.VecVirtual) reg.VecVirtual { return pick(table, v) }
			k.pairs(emit, b.At(4), 16, 16, nil, of, of)
			step(32)
		}
	}
	mask := k.Constant(15)
	return func(emit emitter, step func(int)) {
		d, m := k.halves(b.At(0))
		of := func(v reg.VecVirtual) reg.VecVirtual {
			VCVTDQ2PS(v, v)
			return k.plus(d, v, m)
		}
		k.pairs(emit, b.At(4), 16, 16, mask, of, of)
		step(32)
	}
}

// q5_0 has numbers from -16 on.
func q5_0(k *kernels, b vec.Pointer) reader {
	halves, fifths, sixteen, stack := newHalves(), newBits(), bytesOf(16), AllocLocal(32)
	return func(emit emitter, step func(int)) {
		q := halves.load(b.At(6))
		VPOR(fifths.load(b.At(2), sixteen), q, q)
		VPSUBB(sixteen, q, q)
		VMOVDQU(q, stack)
		d := k.half(b.At(0)) // which takes a register from here on
		for i := 0; i < 32; i += k.Lanes {
			emit(i, k.scaled(d, k.signed(stack.Offset(i))))
		}
		step(32)
	}
}

// q5_1 has a minimum.
func q5_1(k *kernels, b vec.Pointer) reader {
	halves, fifths, sixteen, stack := newHalves(), newBits(), bytesOf(16), AllocLocal(32)
	return func(emit emitter, step func(int)) {
		q := halves.load(b.At(8))
		VPOR(fifths.load(b.At(4), sixteen), q, q)
		VMOVDQU(q, stack)
		d, m := k.halves(b.At(0)) // which take registers from here on
		for i := 0; i < 32; i += k.Lanes {
			emit(i, k.plus(d, k.signed(stack.Offset(i)), m))
		}
		step(32)
	}
}

func q8_0(k *kernels, b vec.Pointer) reader {
	return func(emit emitter, step func(int)) {
		d := k.half(b.At(0))
		for i := 0; i < 32; i += k.Lanes {
			emit(i, k.scaled(d, k.signed(b.At(2+i))))
		}
		step(32)
	}
}

// bytesOf returns a byte 32 times.
func bytesOf(v uint32) reg.VecVirtual { return vec.AVX2.Constant(v * 0x01010101) }

// halves splits 16 bytes into the 16 numbers in their lower halves and those in their upper ones.
type halves struct{ shifts, mask reg.VecVirtual }

func newHalves() halves {
	h := halves{YMM(), bytesOf(15)}
	VMOVDQU(words("shiftsOfHalves", 8, func(i int) uint32 { return uint32(i / 4 * 4) }), h.shifts)
	return h
}

func (h halves) load(from Mem) reg.VecVirtual {
	r := YMM()
	VBROADCASTI128(from, r)
	VPSRLVD(h.shifts, r, r)
	VPAND(h.mask, r, r)
	return r
}

// bits makes bytes of the bits of 32.
type bits struct{ bytes, masks reg.VecVirtual }

func newBits() bits {
	b := bits{YMM(), YMM()}
	VMOVDQU(words("bytesOfBits", 8, func(i int) uint32 { return uint32(i/2) * 0x01010101 }), b.bytes)
	VMOVDQU(words("masksOfBits", 8, func(i int) uint32 { return 0x08040201 << (i % 2 * 4) }), b.masks)
	return b
}

// load returns value where a bit is set.
func (b bits) load(from Mem, value reg.VecVirtual) reg.VecVirtual {
	r := YMM()
	VPBROADCASTD(from, r)
	VPSHUFB(b.bytes, r, r)
	VPAND(b.masks, r, r)
	VPCMPEQB(b.masks, r, r)
	VPAND(value, r, r)
	return r
}

// words returns a table of 32-bit words, which is written once.
func words(name string, n int, word func(i int) uint32) Mem {
	if m, ok := tables[name]; ok {
		return m
	}
	m := GLOBL(name, RODATA|NOPTR)
	for i := range n {
		DATA(4*i, U32(word(i)))
	}
	tables[name] = m
	return m
}

var tables = map[string]Mem{}
