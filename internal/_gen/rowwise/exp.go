package main

import (
	"math"

	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// horner evaluates a polynomial in r, highest coefficient first.
func (f *function) horner(r reg.VecVirtual, coefficients []operand.Op) reg.VecVirtual {
	p := f.vec()
	VMOVUPS(coefficients[0], p)
	for _, c := range coefficients[1:] {
		VFMADD213PS(c, r, p) // p·r + c
	}
	return p
}

func (f *function) constants(x ...float32) []operand.Op {
	ops := make([]operand.Op, len(x))
	for i := range x {
		ops[i] = f.constant(x[i])
	}
	return ops
}

// round sets n to x rounded to an integer.
func (f *function) round(x reg.VecVirtual) reg.VecVirtual {
	n := f.vec()
	if f.wide {
		VRNDSCALEPS(nearest, x, n)
	} else {
		VROUNDPS(nearest, x, n)
	}
	return n
}

// exponential is e^x as exp32 of internal/rowwise computes it.
type exponential struct {
	*function
	low, log2e, ln2Hi, ln2Lo, one operand.Op
	coefficients                  []operand.Op
}

func (f *function) newExponential() *exponential {
	return &exponential{
		f, f.constant(-104), f.constant(math.Log2E), f.constant(0.693359375), f.constant(-2.12194440e-4), f.constant(1),
		f.constants(1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1),
	}
}

// of returns e^x for x ≤ 89.
func (e *exponential) of(x reg.VecVirtual) reg.VecVirtual {
	r := e.atLeast(x, e.low)
	t := e.vec()
	VMULPS(e.log2e, r, t)
	n := e.round(t)
	VFNMADD231PS(e.ln2Hi, n, r)
	VFNMADD231PS(e.ln2Lo, n, r)
	p := e.horner(r, e.coefficients)
	square := e.vec()
	VMULPS(r, r, square)
	VFMADD213PS(r, square, p) // p·r² + r
	VADDPS(e.one, p, p)
	if e.wide {
		VSCALEFPS(n, p, p)
	} else {
		e.power(p, n)
	}
	return p
}

// power multiplies p by 2^n as two factors, since n may be 128, and below −126.
func (e *exponential) power(p, n reg.VecVirtual) {
	bias := lanesOf(127)
	VCVTPS2DQ(n, n)
	half := YMM()
	VPSRAD(operand.U8(1), n, half)
	VPSUBD(half, n, n)
	for _, v := range []reg.VecVirtual{half, n} {
		VPADDD(bias, v, v)
		VPSLLD(operand.U8(23), v, v)
		VMULPS(v, p, p)
	}
}

func expSum(wide bool) {
	f := begin(wide, "expSum", "is expSum, on vectors.",
		"func(dst, src []float32, max float32) (sum float32)", "dst", "src")
	peak, high, e := f.scalar("max"), f.constant(89), f.newExponential()
	acc := f.accumulators(1)
	f.loop(1, func(u int) {
		x := f.load("src", u)
		VSUBPS(peak, x, x)
		y := e.of(f.atMost(x, high))
		f.store(y, "dst", u)
		f.keep(y)
		VADDPS(y, acc[u], acc[u])
	})
	f.result(acc)
}

// power2 is 2^x as exp2 of internal/rowwise computes it.
type power2 struct {
	*function
	low          operand.Op
	coefficients []operand.Op
}

var power2Coefficients = []float32{
	0.0001559467754900736, 0.001340664390501221, 0.009617692974894307, 0.05550310550995927, 0.24022652782876044, 0.6931472149680394, 1,
}

// newPower2 returns one that is 0 below low, −126 at least.
func (f *function) newPower2(low float32) *power2 {
	return &power2{f, f.constant(low), f.constants(power2Coefficients...)}
}

// of returns 2^x for x ≤ 128.
func (e *power2) of(x reg.VecVirtual) reg.VecVirtual {
	n, r := e.round(x), e.vec()
	VSUBPS(n, x, r)
	p := e.horner(r, e.coefficients)
	if e.wide {
		normal := K()
		VCMPPS(notBelow, e.low, x, normal)
		VSCALEFPS_Z(n, p, normal, p)
		return p
	}
	normal := YMM()
	VCMPPS(notBelow, e.low, x, normal)
	VCVTPS2DQ(n, n)
	VPSLLD(operand.U8(23), n, n)
	VPADDD(n, p, p)
	VANDPS(normal, p, p)
	return p
}

// minExponent equals the constant of internal/rowwise.
const minExponent = -100

func exp2Sum(wide bool) {
	f := begin(wide, "exp2Sum", "is exp2Sum, on vectors.",
		"func(row []float32, scale, base float32) (sum float32)", "row")
	scale, base, high, e := f.scalar("scale"), f.scalar("base"), f.constant(128), f.newPower2(minExponent)
	acc := f.accumulators(1)
	f.loop(1, func(u int) {
		x := f.load("row", u)
		VMULPS(scale, x, x) // rounded as in maximum, so that the greatest has weight 1
		VSUBPS(base, x, x)
		p := e.of(f.atMost(x, high))
		f.store(p, "row", u)
		f.keep(p)
		VADDPS(p, acc[u], acc[u])
	})
	f.result(acc)
}

func maximum(wide bool) {
	f := begin(wide, "maximum", "is maximum, on vectors.",
		"func(x []float32, scale, most float32) float32", "x")
	scale, most := f.scalar("scale"), f.scalar("most")
	acc := make([]reg.VecVirtual, 4)
	for i := range acc {
		acc[i] = f.vec()
		VMOVAPS(most, acc[i])
	}
	f.loop(len(acc), func(u int) {
		x := f.load("x", u)
		VMULPS(scale, x, x)
		switch { // the accumulator stays when x is NaN
		case f.tail && wide:
			VMAXPS(acc[u], x, f.k, acc[u])
		case f.tail:
			VBLENDVPS(f.mask, x, acc[u], x)
			fallthrough
		default:
			VMAXPS(acc[u], x, acc[u])
		}
	})
	f.finish(f.combine(acc, VMAXPS))
}

func scoreGrad(wide bool) {
	f := begin(wide, "scoreGrad", "is scoreGrad, on vectors.",
		"func(ds, p []float32, delta, scale float32)", "ds", "p")
	delta, scale := f.scalar("delta"), f.scalar("scale")
	f.loop(1, func(u int) {
		x := f.load("ds", u)
		VSUBPS(delta, x, x)
		VMULPS(f.load("p", u), x, x)
		VMULPS(scale, x, x)
		f.store(x, "ds", u)
	})
	f.end()
}
