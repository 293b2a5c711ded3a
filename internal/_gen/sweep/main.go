// Sweep generates the passes of internal/sweep, for vectors of float32,
// binary16 and bfloat16. n is a multiple of 16 in all of them.
package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"

	"github.com/snug-ml/snug/internal/_gen/half/vec"
)

const (
	step  = 16  // elements of a loop
	line  = 64  // bytes of a cache line
	near  = 512 // how far, in elements, vectors are fetched
	lanes = 8   // float64 partial sums of a quarter
)

func main() {
	ConstraintExpr("!noasm,gc")
	for _, s := range vec.Sets {
		for _, e := range vec.Elems {
			p := pass{s, e}
			p.scale()
			p.clamp()
			p.squares()
			p.below()
			p.accumulate(false)
			p.accumulate(true)
			p.assign()
		}
		pass{s, vec.Float32}.scaleSquares()
	}
	Generate()
}

// pass is what the functions differ in.
type pass struct {
	vec.Set
	elem vec.Elem
}

func (p pass) begin(name, doc, signature string) (n reg.Register) {
	name += p.elem.Name + p.Name
	vec.Func(name, fmt.Sprintf(signature, p.elem.Go), name+" "+doc)
	return Load(Param("n"), GP64())
}

// each emits body for the vectors of a loop.
func (p pass) each(n reg.Register, pointers []vec.Pointer, body func(i int)) {
	vec.Loop("loop", n, step, pointers, func() {
		for i := 0; i < step; i += p.Lanes {
			body(i)
		}
	})
}

func (p pass) scale() {
	n := p.begin("scale", "multiplies x by factor.", "func(x *%s, n int, factor float32)")
	x, factor, round := vec.Point("x", p.elem.Size), p.Broadcast(Param("factor")), p.Rounder(p.elem)
	p.each(n, []vec.Pointer{x}, func(i int) {
		v := p.Load(p.elem, x.At(i))
		VMULPS(factor, v, v)
		p.Write(round(v), x.At(i))
	})
	vec.End()
}

// clamp makes NaNs of what is not finite: v-v has no bits for the other values.
// Of two zeros, VMINPS and VMAXPS return their first operand, here the value.
func (p pass) clamp() {
	n := p.begin("clamp", "cuts x off above limit and below -limit; what is not finite becomes NaN.", "func(x *%s, n int, limit float32)")
	x, high, low := vec.Point("x", p.elem.Size), p.Broadcast(Param("limit")), p.Register()
	VSUBPS(high, p.Constant(0x80000000), low)
	round := p.Rounder(p.elem)
	p.each(n, []vec.Pointer{x}, func(i int) {
		v := p.Load(p.elem, x.At(i))
		bad := p.Register()
		VSUBPS(v, v, bad)
		VMINPS(v, high, v)
		VMAXPS(v, low, v)
		p.Or(bad, v)
		p.Write(round(v), x.At(i))
	})
	vec.End()
}

func (p pass) squares() {
	n := p.begin("squares", "returns sums of squares, of n elements, a multiple of 8.", "func(x *%s, n int) (sums [32]float64)")
	x := vec.Point("x", p.elem.Size)
	p.sumSquares(n, x, func(at int) reg.VecVirtual { return vec.AVX2.Load(p.elem, x.At(at)) })
}

func (p pass) scaleSquares() {
	n := p.begin("scaleSquares", "is scale and squares in one pass, of n elements, a multiple of 8.", "func(x *%s, n int, factor float32) (sums [32]float64)")
	x, factor := vec.Point("x", p.elem.Size), vec.AVX2.Broadcast(Param("factor"))
	p.sumSquares(n, x, func(at int) reg.VecVirtual {
		v := YMM()
		VMULPS(x.At(at), factor, v)
		VMOVUPS(v, x.At(at))
		return v
	})
}

// sumSquares ends a function that adds the squares of the 8 values that load
// returns for the elements at a place. A square of a float32 is exact in
// float64, so fusing the addition changes nothing.
func (p pass) sumSquares(n reg.Register, x vec.Pointer, load func(at int) reg.VecVirtual) {
	perSum := p.Lanes / 2 // float64 values of a register
	var sums [vec.Quarters][]reg.VecVirtual
	for q := range sums {
		for range lanes / perSum {
			sums[q] = append(sums[q], p.Zero())
		}
	}
	add := func(q, at int) {
		for i, v := range p.widen(load(at)) {
			VFMADD231PD(v, v, sums[q][i])
		}
	}
	vec.Blocks(n, lanes, []vec.Pointer{x}, add, func() {})
	vec.Loop("rest", n, lanes, []vec.Pointer{x}, func() { add(0, 0) })
	for q := range sums {
		for i, r := range sums[q] {
			to, err := Return("sums").Index(q*lanes + i*perSum).Resolve()
			if err != nil {
				panic(err)
			}
			VMOVUPD(r, to.Addr)
		}
	}
	vec.End()
}

// widen returns 8 values as float64.
func (p pass) widen(v reg.VecVirtual) []reg.VecVirtual {
	if p.Wide() {
		all := ZMM()
		VCVTPS2PD(v, all)
		return []reg.VecVirtual{all}
	}
	low, high, half := YMM(), YMM(), XMM()
	VCVTPS2PD(v.AsX(), low)
	VEXTRACTF128(Imm(1), v, half)
	VCVTPS2PD(half, high)
	return []reg.VecVirtual{low, high}
}

// below compares once for a block. As integers magnitudes keep their order.
func (p pass) below() {
	n := p.begin("below", "returns a number of leading elements whose magnitudes times scale have bits below limit: all or those of whole blocks.",
		"func(x *%s, n int, scale float32, limit uint32) (count int)")
	x, scale, magnitude := vec.Point("x", p.elem.Size), p.Broadcast(Param("scale")), p.Constant(0x7fffffff)
	limit := p.Broadcast(Param("limit"))
	top, total, known := p.Zero(), GP64(), GP64()
	MOVQ(n, total)
	MOVQ(n, known)
	look := func(_, at int) {
		v := p.Load(p.elem, x.At(at))
		VMULPS(scale, v, v)
		VPMAXUD(p.And(magnitude, v), top, top)
	}
	vec.Blocks(n, p.Lanes, []vec.Pointer{x}, look, func() {
		MOVQ(n, known) // before this block
		p.testNotBelow(top, limit)
		JNZ(LabelRef("found"))
		LEAQ(Mem{Base: n, Disp: -vec.Quarters * vec.Quarter}, known)
	})
	vec.Loop("rest", n, p.Lanes, []vec.Pointer{x}, func() { look(0, 0) })
	p.testNotBelow(top, limit)
	JNZ(LabelRef("found"))
	XORQ(known, known)
	Label("found")
	SUBQ(known, total)
	Store(total, Return("count"))
	vec.End()
}

// testNotBelow clears the zero flag if a lane of top is not below limit.
func (p pass) testNotBelow(top, limit reg.VecVirtual) {
	if p.Wide() {
		const notLess = 5
		found := K()
		VPCMPUD(Imm(notLess), limit, top, found)
		KTESTW(found, found)
		return
	}
	most, mask := p.Register(), GP32()
	VPMAXUD(limit, top, most)
	VPCMPEQD(most, top, most)
	VPMOVMSKB(most, mask)
	TESTL(mask, mask)
}

// accumulate reads 16 lines, or with AVX2 as many as it has registers for, before it touches acc: the
// first-level cache of AMD's processors keeps only one of two lines whose addresses are a multiple of 256 MiB
// apart, and its prefetcher brings lines of both vectors that lie up to 1 KiB ahead. Two vectors of 2^26 float32
// that are so far apart took a Zen 4 20.3 ms with 4 lines at a time and 17.1 with 16, where other distances take 16.6.
// Far asks for lines of memory 2 KiB ahead, in the second-level cache, which keeps both. That makes vectors in
// memory 5 % faster there, and those in the third-level cache 20 % slower.
func (p pass) accumulate(far bool) {
	name, doc := "accumulate", "computes acc = alpha·x + beta·acc, with both products rounded."
	if far {
		name, doc = name+"Far", doc[:len(doc)-1]+", of vectors in memory."
	}
	n := p.begin(name, doc, "func(acc *float32, x *%s, n int, alpha, beta float32)")
	acc, x := vec.Point("acc", 4), vec.Point("x", p.elem.Size)
	alpha, beta := p.Broadcast(Param("alpha")), p.Broadcast(Param("beta"))
	fetch := func(v vec.Pointer, size, i int) {
		if far && i*size%line == 0 {
			PREFETCHT1(v.At(near + i))
		}
	}
	add := func(count int) func() {
		return func() {
			var values []reg.VecVirtual
			for i := 0; i < count; i += p.Lanes {
				fetch(x, p.elem.Size, i)
				v := p.Load(p.elem, x.At(i))
				VMULPS(alpha, v, v)
				values = append(values, v)
			}
			for at, v := range values {
				i, old := at*p.Lanes, p.Register()
				fetch(acc, 4, i)
				VMULPS(acc.At(i), beta, old)
				VADDPS(old, v, v)
				VMOVUPS(v, acc.At(i))
			}
		}
	}
	lines := 4
	if p.Wide() {
		lines = 16
	}
	vec.Loop("lines", n, lines*step, []vec.Pointer{acc, x}, add(lines*step))
	vec.Loop("loop", n, step, []vec.Pointer{acc, x}, add(step))
	vec.End()
}

func (p pass) assign() {
	n := p.begin("assign", "computes acc = alpha·x.", "func(acc *float32, x *%s, n int, alpha float32)")
	acc, x, alpha := vec.Point("acc", 4), vec.Point("x", p.elem.Size), p.Broadcast(Param("alpha"))
	p.each(n, []vec.Pointer{acc, x}, func(i int) {
		v := p.Load(p.elem, x.At(i))
		VMULPS(alpha, v, v)
		VMOVUPS(v, acc.At(i))
	})
	vec.End()
}
