// Philox generates the vector loops of internal/philox. A 64-bit lane holds one
// word of one block in its lower half; VPMULUDQ multiplies those halves to 64
// bits, of which a shuffle takes the high word: shifts would wait for the port
// of the multiplications.
package main

import (
	"slices"

	"github.com/mmcloughlin/avo/attr"
	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// The constants of internal/philox.
const (
	mul0, mul1   = 0xD2511F53, 0xCD9E8D57
	weyl0, weyl1 = 0x9E3779B9, 0xBB67AE85
	rounds       = 10
)

// xor3 is the table of VPTERNLOGQ for a ^ b ^ c.
const xor3 = operand.U8(0x96)

func main() {
	ConstraintExpr("!noasm,gc")
	generator{"blocksAVX2", false, YMM, 4, []uint64{0, 2, 1, 3}}.generate()
	generator{"blocksAVX512", true, ZMM, 8, []uint64{0, 4, 1, 5, 2, 6, 3, 7}}.generate()
	Generate()
}

type generator struct {
	name  string
	wide  bool // AVX-512
	vec   func() reg.VecVirtual
	lanes int
	order []uint64 // the block of each lane, so that unpacking puts them in order
}

func (g generator) generate() {
	TEXT(g.name, NOSPLIT, "func(dst []uint32, seed, tensor, first uint64)")
	Pragma("noescape")
	Doc(g.name + " is blocks for a multiple of 32 words.")
	dst, left := Load(Param("dst").Base(), GP64()), Load(Param("dst").Len(), GP64())
	counter := g.broadcast("first")
	VPADDQ(quads(g.name+"Order", g.order), counter, counter)
	step, m0, m1 := g.constant(uint64(g.lanes)), g.constant(mul0), g.constant(mul1)
	tensor, high := g.broadcast("tensor"), g.vec()
	VPSRLQ(operand.U8(32), tensor, high)
	keys, low := g.keys(), g.low()

	Label("loop")
	CMPQ(left, operand.U32(4*g.lanes))
	JLT(operand.LabelRef("done"))
	var x [4]reg.VecVirtual
	for i := range x {
		x[i] = g.vec()
	}
	g.move(counter, x[0])
	VPSRLQ(operand.U8(32), counter, x[1])
	g.move(tensor, x[2])
	g.move(high, x[3])
	for r := range rounds {
		p0, p1 := g.vec(), g.vec()
		VPMULUDQ(m0, x[0], p0)
		VPMULUDQ(m1, x[2], p1)
		g.swap(p1, x[0])
		g.swap(p0, x[2])
		if r == rounds-1 {
			g.last(low, keys[r][0], x[1], x[0])
			g.last(low, keys[r][1], x[3], x[2])
			break
		}
		g.xor(keys[r][0], x[1], x[0])
		g.xor(keys[r][1], x[3], x[2])
		x[1], x[3] = p1, p0
	}
	g.store(x[0], x[2], dst)
	VPADDQ(step, counter, counter)
	ADDQ(operand.U32(16*g.lanes), dst)
	SUBQ(operand.U32(4*g.lanes), left)
	JMP(operand.LabelRef("loop"))
	Label("done")
	VZEROUPPER()
	RET()
}

// keys computes the keys of all rounds: in registers with AVX-512, on the stack
// with AVX2.
func (g generator) keys() (keys [rounds][2]operand.Op) {
	k := [2]reg.GPVirtual{GP64(), GP64()}
	Load(Param("seed"), k[0])
	MOVQ(k[0], k[1])
	SHRQ(operand.U8(32), k[1])
	var stack operand.Mem
	if !g.wide {
		stack = AllocLocal(rounds * 2 * 32)
	}
	for r := range keys {
		for i, weyl := range []uint32{weyl0, weyl1} {
			v := g.spread(k[i])
			keys[r][i] = v
			if !g.wide {
				at := stack.Offset(32 * (2*r + i))
				VMOVDQU(v, at)
				keys[r][i] = at
			}
			ADDL(operand.U32(weyl), k[i].As32())
		}
	}
	return keys
}

// xor sets dst to key ^ x ^ dst.
func (g generator) xor(key operand.Op, x, dst reg.VecVirtual) {
	if g.wide {
		VPTERNLOGQ(xor3, key, x, dst)
		return
	}
	VPXOR(key, dst, dst)
	VPXOR(x, dst, dst)
}

// swap exchanges the halves of the lanes: the upper word of a product comes to
// where the next one needs it. What is above it then does not count.
func (g generator) swap(src, dst reg.VecVirtual) { VPSHUFD(operand.U8(0xb1), src, dst) }

// last is xor of the lower halves alone; the upper ones hold the lower words of
// the products, which are the other words of the block.
func (g generator) last(low operand.Op, key operand.Op, x, dst reg.VecVirtual) {
	if g.wide {
		VPTERNLOGD(xor3, key, x, low, dst)
		return
	}
	VPAND(low, x, x)
	g.xor(key, x, dst)
}

// low selects the lower halves.
func (g generator) low() operand.Op {
	if !g.wide {
		return quads(g.name+"Low", slices.Repeat([]uint64{1<<32 - 1}, 4))
	}
	bits, k := GP32(), K()
	MOVL(operand.U32(0x5555), bits)
	KMOVW(bits, k)
	return k
}

// store writes two words of every block from a and two from b, block by block.
func (g generator) store(a, b reg.VecVirtual, dst reg.Register) {
	low, high := g.vec(), g.vec()
	VPUNPCKLQDQ(b, a, low)
	VPUNPCKHQDQ(b, a, high)
	for i, v := range []reg.VecVirtual{low, high} {
		at := operand.Mem{Base: dst, Disp: 8 * g.lanes * i}
		if g.wide {
			VMOVDQU32(v, at)
		} else {
			VMOVDQU(v, at)
		}
	}
}

func (g generator) move(src, dst reg.VecVirtual) {
	if g.wide {
		VMOVDQA32(src, dst)
	} else {
		VMOVDQA(src, dst)
	}
}

// broadcast loads a parameter into every lane.
func (g generator) broadcast(name string) reg.VecVirtual {
	p, err := Param(name).Resolve()
	if err != nil {
		panic(err)
	}
	v := g.vec()
	VPBROADCASTQ(p.Addr, v)
	return v
}

func (g generator) constant(x uint64) reg.VecVirtual {
	r := GP64()
	MOVQ(operand.U64(x), r)
	return g.spread(r)
}

// spread copies r into every lane.
func (g generator) spread(r reg.GPVirtual) reg.VecVirtual {
	v := g.vec()
	if g.wide {
		VPBROADCASTQ(r, v)
		return v
	}
	x := XMM()
	VMOVQ(r, x)
	VPBROADCASTQ(x, v)
	return v
}

// quads returns a symbol of 64-bit words.
func quads(name string, words []uint64) operand.Mem {
	m := GLOBL(name, attr.RODATA|attr.NOPTR)
	for i, w := range words {
		DATA(8*i, operand.U64(w))
	}
	return m
}
