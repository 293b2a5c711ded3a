// Package rounds emits the rounds of Philox4x32-10 on vectors. A 64-bit lane holds one
// word of one block in its lower half; VPMULUDQ multiplies those halves to 64
// bits. A shuffle takes the high word of a product, since shifts use the port
// of the multiplications.
package rounds

import (
	"slices"

	"github.com/mmcloughlin/avo/attr"
	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"

	"github.com/snug-ml/snug/internal/_gen/half/vec"
)

// The constants of internal/philox.
const (
	mul0, mul1   = 0xD2511F53, 0xCD9E8D57
	weyl0, weyl1 = 0x9E3779B9, 0xBB67AE85
	rounds       = 10
)

// xor3 is the table of VPTERNLOGQ for a ^ b ^ c.
const xor3 = operand.U8(0x96)

// Generator is what all blocks of a stream share, in registers and on the stack.
type Generator struct {
	vec.Set
	counter reg.VecVirtual // the numbers of the next blocks
	m0, m1  reg.VecVirtual
	keys    [rounds][2]operand.Mem
	low     operand.Op
	// The first round multiplies the tensor, which is the same in all blocks.
	product reg.VecVirtual
	added   [2]reg.VecVirtual // to what the first round makes of the counter
	steps   map[int]operand.Mem
	name    string
}

// New reads the parameters seed, tensor and first, the number of the first block, of
// the function name.
func New(s vec.Set, name string) *Generator {
	g := &Generator{Set: s, name: name, steps: map[int]operand.Mem{}}
	g.counter = g.broadcast("first")
	order := []uint64{0, 2, 1, 3} // the block of each lane, so that unpacking puts them in order
	if s.Wide() {
		order = []uint64{0, 4, 1, 5, 2, 6, 3, 7}
	}
	VPADDQ(g.quads("Order", order), g.counter, g.counter)
	g.m0, g.m1 = g.constant(mul0), g.constant(mul1)
	g.setKeys()
	if s.Wide() {
		bits, k := GP32(), K()
		MOVL(operand.U32(0x5555), bits)
		KMOVW(bits, k)
		g.low = k
	} else {
		g.low = g.quads("Low", slices.Repeat([]uint64{1<<32 - 1}, 4))
	}
	tensor := g.broadcast("tensor")
	g.product, g.added = g.Register(), [2]reg.VecVirtual{g.Register(), g.Register()}
	VPMULUDQ(g.m1, tensor, g.product)
	g.swap(g.product, g.added[0])
	VPSRLQ(operand.U8(32), tensor, g.added[1])
	for i, x := range g.added {
		g.xorKey(g.keys[0][i], g.Zero(), x)
	}
	return g
}

// Blocks is how many blocks a group of registers has.
func (g *Generator) Blocks() int { return g.Lanes / 2 }

// Next returns the words of the next groups of blocks, each in two registers, in order.
// The rounds of the groups take turns: they do not wait for one another.
func (g *Generator) Next(groups int) (words [][2]reg.VecVirtual) {
	x := make([][4]reg.VecVirtual, groups)
	for i := range x {
		x[i] = g.begin()
	}
	for r := 1; r < rounds; r++ {
		for i := range x {
			x[i] = g.round(r, x[i])
		}
	}
	for i := range x {
		low, high := g.Register(), g.Register()
		VPUNPCKLQDQ(x[i][2], x[i][0], low)
		VPUNPCKHQDQ(x[i][2], x[i][0], high)
		words = append(words, [2]reg.VecVirtual{low, high})
	}
	return words
}

// begin does the first round of a group and counts it.
func (g *Generator) begin() (x [4]reg.VecVirtual) {
	p := g.Register()
	x[0], x[1], x[2], x[3] = g.Register(), g.product, g.Register(), p
	VPMULUDQ(g.m0, g.counter, p)
	VPSRLQ(operand.U8(32), g.counter, x[0])
	g.swap(p, x[2])
	g.xor(g.added[0], x[0])
	g.xor(g.added[1], x[2])
	n := g.Blocks()
	if _, ok := g.steps[n]; !ok {
		g.steps[n] = g.quads("Step", slices.Repeat([]uint64{uint64(n)}, n))
	}
	VPADDQ(g.steps[n], g.counter, g.counter)
	return x
}

// round does a round of a group, after the first.
func (g *Generator) round(r int, x [4]reg.VecVirtual) [4]reg.VecVirtual {
	p0, p1 := g.Register(), g.Register()
	VPMULUDQ(g.m0, x[0], p0)
	VPMULUDQ(g.m1, x[2], p1)
	to0, to2 := g.Register(), g.Register()
	g.swap(p1, to0)
	g.swap(p0, to2)
	if r == rounds-1 {
		g.last(g.keys[r][0], x[1], to0)
		g.last(g.keys[r][1], x[3], to2)
	} else {
		g.xorKey(g.keys[r][0], x[1], to0)
		g.xorKey(g.keys[r][1], x[3], to2)
	}
	return [4]reg.VecVirtual{to0, p1, to2, p0}
}

// setKeys puts the keys of all rounds on the stack: in a lane each with AVX-512, whose
// operands in memory are spread by themselves.
func (g *Generator) setKeys() {
	k, size := [2]reg.GPVirtual{GP64(), GP64()}, 8
	Load(Param("seed"), k[0])
	MOVQ(k[0], k[1])
	SHRQ(operand.U8(32), k[1])
	if !g.Wide() {
		size = g.Bytes()
	}
	stack := AllocLocal(rounds * 2 * size)
	for r := range g.keys {
		for i, weyl := range []uint32{weyl0, weyl1} {
			at := stack.Offset(size * (2*r + i))
			g.keys[r][i] = at
			if g.Wide() {
				MOVQ(k[i], at)
			} else {
				VMOVDQU(g.spread(k[i]), at)
			}
			ADDL(operand.U32(weyl), k[i].As32())
		}
	}
}

// xorKey sets dst to key ^ x ^ dst.
func (g *Generator) xorKey(key operand.Mem, x, dst reg.VecVirtual) {
	if g.Wide() {
		VPTERNLOGQ_BCST(xor3, key, x, dst)
		return
	}
	VPXOR(key, dst, dst)
	VPXOR(x, dst, dst)
}

// last is xorKey of the lower halves alone; the upper ones hold the lower words of
// the products, which are the other words of the block.
func (g *Generator) last(key operand.Mem, x, dst reg.VecVirtual) {
	if g.Wide() {
		VPTERNLOGD_BCST(xor3, key, x, g.low, dst)
		return
	}
	lower := g.Register()
	VPAND(g.low, x, lower)
	g.xorKey(key, lower, dst)
}

// xor sets dst to x ^ dst.
func (g *Generator) xor(x, dst reg.VecVirtual) {
	if g.Wide() {
		VPXORQ(x, dst, dst)
	} else {
		VPXOR(x, dst, dst)
	}
}

// swap exchanges the halves of the lanes: the upper word of a product comes to
// where the next one needs it. What is above it then does not count.
func (g *Generator) swap(src, dst reg.VecVirtual) { VPSHUFD(operand.U8(0xb1), src, dst) }

// broadcast loads a parameter into every lane.
func (g *Generator) broadcast(name string) reg.VecVirtual {
	p, err := Param(name).Resolve()
	if err != nil {
		panic(err)
	}
	v := g.Register()
	VPBROADCASTQ(p.Addr, v)
	return v
}

func (g *Generator) constant(x uint64) reg.VecVirtual {
	r := GP64()
	MOVQ(operand.U64(x), r)
	return g.spread(r)
}

// spread copies r into every lane.
func (g *Generator) spread(r reg.GPVirtual) reg.VecVirtual {
	v := g.Register()
	if g.Wide() {
		VPBROADCASTQ(r, v)
		return v
	}
	x := XMM()
	VMOVQ(r, x)
	VPBROADCASTQ(x, v)
	return v
}

// quads returns a symbol of 64-bit words.
func (g *Generator) quads(name string, words []uint64) operand.Mem {
	m := GLOBL(g.name+name, attr.RODATA|attr.NOPTR)
	for i, w := range words {
		DATA(8*i, operand.U64(w))
	}
	return m
}
