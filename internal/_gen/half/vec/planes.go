package vec

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// Bytes is a table of 256 bytes, in four quarters, for VPERMI2B of AVX512_VBMI. Registers hold the quarters, or
// memory does.
type Bytes [4]Op

// BytesAt returns the table at an address.
func BytesAt(at Mem) (b Bytes) {
	for i := range b {
		b[i] = at.Offset(64 * i)
	}
	return b
}

// Lookup returns the entries of 64 bytes. high is the mask of those from 128 on.
func (b Bytes) Lookup(codes reg.VecVirtual, high reg.Register) reg.VecVirtual {
	var halves [2]reg.VecVirtual
	for i := range halves {
		first, ok := b[2*i].(reg.VecVirtual)
		if !ok {
			first = ZMM()
			VMOVDQU64(b[2*i], first)
		}
		halves[i] = ZMM()
		VMOVDQA64(codes, halves[i])
		VPERMI2B(b[2*i+1], first, halves[i])
	}
	VPBLENDMB(halves[1], halves[0], high, halves[0])
	return halves[0]
}

// High returns the mask of the bytes from 128 on.
func High(codes reg.VecVirtual) reg.Register {
	high := K()
	VPMOVB2M(codes, high)
	return high
}

// Planes is a table of 256 float32 whose bytes are four tables, the lowest first.
type Planes [4]Bytes

// PlanesAt returns the planes at an address.
func PlanesAt(at Mem) (p Planes) {
	for i := range p {
		p[i] = BytesAt(at.Offset(256 * i))
	}
	return p
}

// Lookup returns the entries of 64 codes, 16 to a register. order is [Transposed].
func (p Planes) Lookup(codes Mem, order reg.VecVirtual) (values [4]reg.VecVirtual) {
	c := ZMM()
	VPERMD(codes, order, c)
	in := High(c)
	var words [4]reg.VecVirtual // bytes 0 and 1 of half of the entries, and of the others, then bytes 2 and 3
	for i := range 2 {
		low, high := p[2*i].Lookup(c, in), p[2*i+1].Lookup(c, in)
		words[2*i], words[2*i+1] = ZMM(), ZMM()
		VPUNPCKLBW(high, low, words[2*i])
		VPUNPCKHBW(high, low, words[2*i+1])
	}
	for i := range values {
		values[i] = ZMM()
	}
	for i := range 2 {
		VPUNPCKLWD(words[2+i], words[i], values[2*i])
		VPUNPCKHWD(words[2+i], words[i], values[2*i+1])
	}
	return values
}

// Transposed returns the order of 32-bit lanes in which lane i of 128-bit lane j comes from lane j of 128-bit lane i.
// Instructions that interleave bytes within 128-bit lanes then give consecutive entries.
func Transposed() reg.VecVirtual {
	return Permutation("transposed", 4, func(i int) int { return i%4*4 + i/4 })
}

var permutations = map[string]Mem{}

// Permutation returns a register that holds the indices of a permutation, of size bytes each. Functions of a file that
// use the same name share one table.
func Permutation(name string, size int, index func(i int) int) reg.VecVirtual {
	at, ok := permutations[name]
	if !ok {
		at = GLOBL(name, RODATA|NOPTR)
		for i := range 64 / size {
			if size == 1 {
				DATA(i, U8(uint8(index(i))))
			} else {
				DATA(4*i, U32(uint32(index(i))))
			}
		}
		permutations[name] = at
	}
	r := ZMM()
	VMOVDQU64(at, r)
	return r
}
