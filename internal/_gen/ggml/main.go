// Ggml generates the loops of internal/ggml over whole blocks. Numbers of a block become floats by way of 32-bit lanes,
// to which bytes are widened as they are loaded. Where numbers have bits in several places, bytes are put together first,
// and lie on the stack in between. With AVX-512 numbers of 4 bits look up values in a table that is scaled once for a
// block or group.
package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"

	"github.com/snug-ml/snug/internal/_gen/half/vec"
)

func main() {
	ConstraintExpr("!noasm,gc")
	for _, s := range vec.Sets {
		for _, f := range formats {
			k := kernels{Set: s}
			k.decode(f)
			for _, rows := range k.dotRows(f) {
				k.dot(f, rows)
			}
			for _, rows := range []int{1, 2, 4} {
				k.axpy(f, rows)
			}
		}
		k := kernels{Set: s}
		k.encodeQ8_0()
	}
	Generate()
}

// format is a type of blocks. begin sets up constants and returns what computes the elements of the block at b. It calls
// step after some elements, which are numbered from 0 for emit.
type format struct {
	name  string
	bytes int
	begin func(k *kernels, b vec.Pointer) reader
	// inLanes says that numbers are put together in lanes of 32 bits alone: operations on bytes of AVX2 have 16 registers, also where
	// AVX-512 has 32, which sums of 8 rows take half of.
	inLanes bool
}

type reader func(emit emitter, step func(elements int))

// emitter takes the elements of a block from one on.
type emitter func(at int, v reg.VecVirtual)

var formats = []format{
	{"Q4_0", 18, q4_0, true}, {"Q4_1", 20, q4_1, true}, {"Q5_0", 22, q5_0, false}, {"Q5_1", 24, q5_1, false}, {"Q8_0", 34, q8_0, true},
	{"Q4K", 144, q4K, true}, {"Q5K", 176, q5K, false}, {"Q6K", 210, q6K, false},
}

type kernels struct {
	vec.Set
	fused bool // a product and a sum may be rounded once
}

func (k *kernels) decode(f format) {
	name := "decode" + f.name + k.Name
	vec.Func(name, "func(x *float32, blocks *byte, n int)", name+" writes the elements of n blocks.")
	x := vec.Point("x", 4)
	k.eachBlock(f, func(at int, v reg.VecVirtual) { VMOVUPS(v, x.At(at)) }, x.Advance)
	vec.End()
}

// eachBlock emits the vectors of all blocks.
func (k *kernels) eachBlock(f format, emit emitter, step func(elements int)) {
	b, left := vec.Point("blocks", 1), Load(Param("n"), GP64())
	block := f.begin(k, b)
	Label("block")
	block(emit, step)
	b.Advance(f.bytes)
	DECQ(left)
	JNZ(LabelRef("block"))
}

// dotRows are the numbers of rows that there are loops of products for: as many as sums fit into registers.
func (k *kernels) dotRows(f format) []int {
	if k.Wide() && f.inLanes {
		return []int{1, 2, 4, 8}
	}
	return []int{1, 2, 4}
}

// rows returns where vectors of up to 8 rows begin, stride elements apart, and what moves them on.
func rows(param string, n int) (at []Mem, advance func(elements int)) {
	stride := Load(Param("stride"), GP64())
	base := Load(Param(param), GP64())
	times := map[int]reg.Register{1: stride} // multiples of stride
	for r := range n {
		switch factor := []int{0, 1, 1, 3, 2, 5, 3, 7}[r]; {
		case r == 0:
			at = append(at, Mem{Base: base})
		default:
			if times[factor] == nil {
				times[factor] = GP64()
				if factor == 7 {
					LEAQ(Mem{Base: times[5], Index: stride, Scale: 2}, times[factor])
				} else {
					LEAQ(Mem{Base: stride, Index: stride, Scale: uint8(factor - 1)}, times[factor])
				}
			}
			at = append(at, Mem{Base: base, Index: times[factor], Scale: uint8(4 * r / factor)})
		}
	}
	return at, func(elements int) { ADDQ(I32(int32(4*elements)), base) }
}

// dotSums are the sums of a row: as many for each number of rows, so that a row has the same bits beside any others.
const dotSums = 2

func (k *kernels) dot(f format, n int) {
	k.fused = true
	name := fmt.Sprintf("dot%dx%s%s", n, f.name, k.Name)
	vec.Func(name, "func(y *float32, x *float32, stride int, blocks *byte, n int)",
		name+" writes the products of rows of x, stride elements apart, and n blocks.")
	x, advance := rows("x", n)
	sums := make([][dotSums]reg.VecVirtual, n)
	for r := range sums {
		for i := range sums[r] {
			sums[r][i] = k.Zero()
		}
	}
	k.eachBlock(f, func(at int, v reg.VecVirtual) {
		for r := range sums {
			VFMADD231PS(x[r].Offset(4*at), v, sums[r][at/k.Lanes%dotSums])
		}
	}, advance)
	y, one := vec.Point("y", 4), make([]reg.VecVirtual, n)
	for r, sum := range sums {
		VADDPS(sum[1], sum[0], sum[0])
		one[r] = sum[0]
	}
	if n == 8 {
		totals(one, y.At(0))
	} else {
		for r, sum := range one {
			VMOVSS(vec.Total(sum), y.At(r))
		}
	}
	vec.End()
}

// totals writes what [vec.Total] gives of 8 vectors of AVX-512: it adds the same lanes, those of two vectors at a time.
func totals(x []reg.VecVirtual, to Mem) {
	halve := func(split func(low, high reg.VecVirtual, a, b reg.VecVirtual), step int) {
		for i := 0; i+step < len(x); i += 2 * step {
			low, high := ZMM(), ZMM()
			split(low, high, x[i], x[i+step])
			VADDPS(high, low, x[i])
		}
	}
	quarters := func(lower, upper uint64) func(low, high, a, b reg.VecVirtual) {
		return func(low, high, a, b reg.VecVirtual) {
			VSHUFF32X4(Imm(lower), b, a, low)
			VSHUFF32X4(Imm(upper), b, a, high)
		}
	}
	halve(quarters(0x44, 0xee), 1)
	halve(quarters(0x88, 0xdd), 2)
	halve(func(low, high, a, b reg.VecVirtual) { // row i is in lanes 4i and 4i+1, row i+4 in the two that follow
		VUNPCKLPD(b, a, low)
		VUNPCKHPD(b, a, high)
	}, 4)
	odd, order := ZMM(), ZMM()
	VMOVSHDUP(x[0], odd)
	VADDPS(odd, x[0], odd)
	VMOVUPS(words("orderOfTotals", 16, func(i int) uint32 { return uint32(i%4*4 + i/4%2*2) }), order)
	VPERMPS(odd, order, odd)
	VMOVUPS(odd.AsY(), to)
}

func (k *kernels) axpy(f format, n int) {
	k.fused = true
	name := fmt.Sprintf("axpy%dx%s%s", n, f.name, k.Name)
	vec.Func(name, "func(y *float32, stride int, a *float32, blocks *byte, n int)",
		name+" adds multiples of n blocks to rows of y, stride elements apart.")
	y, advance := rows("y", n)
	a, factors := vec.Point("a", 4), make([]reg.VecVirtual, n)
	for r := range factors {
		factors[r] = k.Register()
		VBROADCASTSS(a.At(r), factors[r])
	}
	k.eachBlock(f, func(at int, v reg.VecVirtual) {
		for r, factor := range factors {
			sum := k.Register()
			VMOVUPS(y[r].Offset(4*at), sum)
			VFMADD231PS(v, factor, sum)
			VMOVUPS(sum, y[r].Offset(4*at))
		}
	}, advance)
	vec.End()
}

// times repeats body for parts of a block.
func times(n int, body func()) {
	left := GP64()
	MOVQ(U32(uint32(n)), left)
	Label("part")
	body()
	DECQ(left)
	JNZ(LabelRef("part"))
}

// half returns a scale in every lane.
func (k *kernels) half(from Mem) reg.VecVirtual {
	r := k.Register()
	if k.Wide() {
		VPBROADCASTW(from, r.AsY())
		VCVTPH2PS(r.AsY(), r)
	} else {
		VPBROADCASTW(from, r.AsX())
		VCVTPH2PS(r.AsX(), r)
	}
	return r
}

// halves returns two scales that follow each other, each in every lane.
func (k *kernels) halves(from Mem) (first, second reg.VecVirtual) {
	first, second = k.Register(), k.Register()
	if k.Wide() {
		VPBROADCASTD(from, first.AsY())
		VCVTPH2PS(first.AsY(), first)
	} else {
		VPBROADCASTD(from, first.AsX())
		VCVTPH2PS(first.AsX(), first)
	}
	VMOVSHDUP(first, second)
	VMOVSLDUP(first, first)
	return first, second
}

// spread returns a float in every lane.
func (k *kernels) spread(from Mem) reg.VecVirtual {
	r := k.Register()
	VBROADCASTSS(from, r)
	return r
}

// bytes returns bytes in lanes.
func (k *kernels) bytes(from Mem) reg.VecVirtual {
	r := k.Register()
	VPMOVZXBD(from, r)
	return r
}

// signed returns bytes with a sign as floats.
func (k *kernels) signed(from Mem) reg.VecVirtual {
	r := k.Register()
	VPMOVSXBD(from, r)
	VCVTDQ2PS(r, r)
	return r
}

// scaled returns d·v.
func (k *kernels) scaled(d, v reg.VecVirtual) reg.VecVirtual {
	VMULPS(d, v, v)
	return v
}

// plus returns d·v + m.
func (k *kernels) plus(d, v, m reg.VecVirtual) reg.VecVirtual {
	if k.fused {
		VFMADD213PS(m, d, v)
		return v
	}
	VMULPS(d, v, v)
	VADDPS(m, v, v)
	return v
}

// minus returns d·v - m.
func (k *kernels) minus(d, v, m reg.VecVirtual) reg.VecVirtual {
	if k.fused {
		VFMSUB213PS(m, d, v)
		return v
	}
	VMULPS(d, v, v)
	VSUBPS(m, v, v)
	return v
}

// numbers returns 16 floats from first on.
func numbers(first int) Mem {
	if ramp.Base == nil {
		ramp = GLOBL("numbers", RODATA|NOPTR)
		for i := -8; i < 16; i++ {
			DATA(4*(i+8), F32(i))
		}
	}
	return ramp.Offset(4 * (first + 8))
}

var ramp Mem

// pick returns the values of the lowest four bits of lanes.
func pick(table, codes reg.VecVirtual) reg.VecVirtual {
	v := ZMM()
	VPERMPS(table, codes, v)
	return v
}

// shifted returns lanes moved down by four bits.
func (k *kernels) shifted(v reg.VecVirtual) reg.VecVirtual {
	r := k.Register()
	VPSRLD(Imm(4), v, r)
	return r
}

// values makes values of numbers in lanes.
type values func(v reg.VecVirtual) reg.VecVirtual

// pairs emits the elements whose numbers are in the lower halves of bytes, and those in the upper ones, span elements on.
// low and high make their values, with AVX-512 of lanes whose other bits do not matter: mask is nil.
func (k *kernels) pairs(emit emitter, b Mem, bytes, span int, mask reg.VecVirtual, low, high values) {
	for i := 0; i < bytes; i += k.Lanes {
		c := k.bytes(b.Offset(i))
		d := k.shifted(c)
		if mask != nil {
			VPAND(mask, c, c)
		}
		emit(i, low(c))
		emit(span+i, high(d))
	}
}
