// Philox generates the vector loops of internal/philox. A 64-bit lane holds one
// word of one block in its lower half; VPMULUDQ multiplies those halves to 64
// bits, of which a shift takes the high word.
package main

import (
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
	keys := g.keys()

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
		VPSRLQ(operand.U8(32), p1, x[0])
		VPSRLQ(operand.U8(32), p0, x[2])
		g.xor(keys[r][0], x[1], x[0])
		g.xor(keys[r][1], x[3], x[2])
		x[1], x[3] = p1, p0
	}
	g.store(x, dst)
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

// store writes the lower halves of x, block by block.
func (g generator) store(x [4]reg.VecVirtual, dst reg.Register) {
	for i := 0; i < 4; i += 2 { // two words a lane
		VPSLLQ(operand.U8(32), x[i+1], x[i+1])
		if g.wide {
			VPBLENDMD(x[i+1], x[i], g.odd(), x[i])
		} else {
			VPBLENDD(operand.U8(0xaa), x[i+1], x[i], x[i])
		}
	}
	VPUNPCKLQDQ(x[2], x[0], x[1])
	VPUNPCKHQDQ(x[2], x[0], x[3])
	for i, v := range []reg.VecVirtual{x[1], x[3]} {
		at := operand.Mem{Base: dst, Disp: 8 * g.lanes * i}
		if g.wide {
			VMOVDQU32(v, at)
		} else {
			VMOVDQU(v, at)
		}
	}
}

// odd is the mask of the odd words.
func (g generator) odd() reg.OpmaskVirtual {
	bits, k := GP32(), K()
	MOVL(operand.U32(0xaaaa), bits)
	KMOVW(bits, k)
	return k
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
