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
			for _, rows := range []int{1, 2, 4} {
				k.dot(f, rows)
			}
			for _, rows := range []int{1, 2, 4} {
				k.axpy(f, rows)
			}
		}
	}
	Generate()
}

// format is a type of blocks. begin sets up constants and returns what computes the elements of the block at b. It calls
// step after some elements, which are numbered from 0 for emit.
type format struct {
	name  string
	bytes int
	begin func(k *kernels, b vec.Pointer) reader
}

type reader func(emit emitter, step func(elements int))

// emitter takes the elements of a block from one on.
type emitter func(at int, v reg.VecVirtual)

var formats = []format{
	{"Q4_0", 18, q4_0}, {"Q4_1", 20, q4_1}, {"Q5_0", 22, q5_0}, {"Q5_1", 24, q5_1}, {"Q8_0", 34, q8_0},
	{"Q4K", 144, q4K}, {"Q5K", 176, q5K}, {"Q6K", 210, q6K},
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

// rows returns where vectors of rows begin, stride elements apart, and what moves them on.
func rows(param string, n int) (at []Mem, advance func(elements int)) {
	stride := Load(Param("stride"), GP64())
	base := Load(Param(param), GP64())
	at = []Mem{{Base: base}, {Base: base, Index: stride, Scale: 4}, {Base: base, Index: stride, Scale: 8}}[:min(n, 3)]
	if n > 3 {
		last := GP64()
		LEAQ(Mem{Base: stride, Index: stride, Scale: 2}, last)
		at = append(at, Mem{Base: base, Index: last, Scale: 4})
	}
	return at, func(elements int) { ADDQ(I32(int32(4*elements)), base) }
}

// dot has several sums for each row, since vectors come faster than sums follow each other.
func (k *kernels) dot(f format, n int) {
	k.fused = true
	name := fmt.Sprintf("dot%dx%s%s", n, f.name, k.Name)
	vec.Func(name, "func(y *float32, x *float32, stride int, blocks *byte, n int)",
		name+" writes the products of rows of x, stride elements apart, and n blocks.")
	x, advance := rows("x", n)
	sums := make([][]reg.VecVirtual, n)
	for r := range sums {
		for range 4 / n {
			sums[r] = append(sums[r], k.Zero())
		}
	}
	k.eachBlock(f, func(at int, v reg.VecVirtual) {
		for r, sum := range sums {
			VFMADD231PS(x[r].Offset(4*at), v, sum[at/k.Lanes%len(sum)])
		}
	}, advance)
	y := vec.Point("y", 4)
	for r, sum := range sums {
		for n := len(sum) / 2; n > 0; n /= 2 {
			for i := range n {
				VADDPS(sum[i+n], sum[i], sum[i])
			}
		}
		VMOVSS(vec.Total(sum[0]), y.At(r))
	}
	vec.End()
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
