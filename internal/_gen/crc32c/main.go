// Crc32c generates the loops of internal/crc32c. A checksum is the remainder of a
// polynomial over GF(2), so that what is d bits away from the end of a message counts as its
// product by x^d does, which is shorter by carry-less products (Gopal, Ozturk et al. 2009,
// "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction"). Four vectors
// of lanes of 128 bits fold the message onto itself, then onto one another, and then their
// lanes; the instruction for checksums does what is left.
package main

import (
	"fmt"
	"hash/crc32"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"

	"github.com/snug-ml/snug/internal/_gen/half/vec"
)

const accumulators = 4

// xor3 is the table of VPTERNLOGQ for a ^ b ^ c.
const xor3 = U8(0x96)

func main() {
	ConstraintExpr("!noasm,gc")
	generator{"AVX2", false, YMM, 32}.generate()
	generator{"AVX512", true, ZMM, 64}.generate()
	Generate()
}

type generator struct {
	name  string
	wide  bool // AVX-512
	vec   func() reg.VecVirtual
	bytes int // of a vector
}

// power returns x^n in the order of bits that the checksum has: the highest bit of a word is
// the coefficient of x^0.
func power(n int) uint32 {
	p := uint32(1) << 31
	for range n {
		p = p>>1 ^ -(p&1)&crc32.Castagnoli
	}
	return p
}

// factors returns a lane of what its halves are multiplied by to fold it over some bits.
// Products of numbers in this order of bits come out one bit to the right.
func (g generator) factors(bits int) Mem {
	table := GLOBL(fmt.Sprint("fold", g.name, "by", bits), RODATA|NOPTR)
	DATA(0, U64(uint64(power(bits+32))<<1))
	DATA(8, U64(uint64(power(bits-32))<<1))
	return table
}

// broadcast returns a vector with the factors in all lanes.
func (g generator) broadcast(bits int) reg.VecVirtual {
	v := g.vec()
	if g.wide {
		VBROADCASTI32X4(g.factors(bits), v)
	} else {
		VBROADCASTI128(g.factors(bits), v)
	}
	return v
}

// fold multiplies x by the factors k and adds onto, which may be memory.
func (g generator) fold(x, k reg.VecVirtual, onto Op, low reg.VecVirtual) {
	VPCLMULQDQ(U8(0x00), k, x, low)
	VPCLMULQDQ(U8(0x11), k, x, x)
	if g.wide {
		VPTERNLOGQ(xor3, onto, low, x)
		return
	}
	VPXOR(onto, x, x)
	VPXOR(low, x, x)
}

func (g generator) generate() {
	vec.Func("update"+g.name, "func(sum uint32, p *byte, n int) uint32")
	stride := accumulators * g.bytes
	Doc(fmt.Sprintf("update%s adds n bytes to a register of the checksum, a positive multiple of %d.", g.name, stride))
	sum := Load(Param("sum"), GP32())
	p, n := Load(Param("p"), GP64()), Load(Param("n"), GP64())

	var acc [accumulators]reg.VecVirtual
	for i := range acc {
		acc[i] = g.vec()
		if g.wide {
			VMOVDQU64(Mem{Base: p, Disp: i * g.bytes}, acc[i])
		} else {
			VMOVDQU(Mem{Base: p, Disp: i * g.bytes}, acc[i])
		}
	}
	first, low := g.vec(), g.vec()
	VMOVD(sum, first.AsX()) // and zeros above
	if g.wide {
		VPXORQ(first, acc[0], acc[0])
	} else {
		VPXOR(first, acc[0], acc[0])
	}
	k := g.broadcast(8 * stride)

	Label("loop")
	ADDQ(U32(stride), p)
	SUBQ(U32(stride), n)
	JZ(LabelRef("join"))
	for i, x := range acc {
		g.fold(x, k, Mem{Base: p, Disp: i * g.bytes}, low)
	}
	JMP(LabelRef("loop"))

	Label("join")
	k = g.broadcast(8 * g.bytes)
	for i, x := range acc[:accumulators-1] {
		g.fold(x, k, acc[i+1], low)
		acc[i+1] = x
	}
	g.lanes(acc[accumulators-1])
}

// lanes folds the lanes of x onto one another and returns the rest of what is left.
func (g generator) lanes(x reg.VecVirtual) {
	k, low, lane, next := XMM(), XMM(), XMM(), XMM()
	VMOVDQU(g.factors(128), k)
	VMOVDQA(x.AsX(), lane)
	for i := 1; i < g.bytes/16; i++ {
		if g.wide {
			VEXTRACTI32X4(U8(i), x, next)
		} else {
			VEXTRACTI128(U8(i), x, next)
		}
		VPCLMULQDQ(U8(0x00), k, lane, low)
		VPCLMULQDQ(U8(0x11), k, lane, lane)
		VPXOR(low, lane, lane)
		VPXOR(next, lane, lane)
	}
	half, sum := GP64(), GP64()
	XORL(sum.As32(), sum.As32())
	VMOVQ(lane, half)
	CRC32Q(half, sum)
	VPEXTRQ(U8(1), lane, half)
	CRC32Q(half, sum)
	VZEROUPPER()
	Store(sum.As32(), ReturnIndex(0))
	RET()
}
