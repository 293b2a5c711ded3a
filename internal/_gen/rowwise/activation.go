package main

import (
	"math"

	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// vectors take turns, instruction by instruction: the arithmetic of one waits for itself most of the time, and
// a processor does not look far enough ahead to begin with the next vector meanwhile.
type vectors []reg.VecVirtual

func (f *function) vecs(n int) vectors {
	v := make(vectors, n)
	for i := range v {
		v[i] = f.vec()
	}
	return v
}

// atLeasts and atMosts clamp to a constant; NaN stays NaN.
func (f *function) atLeasts(x vectors, low operand.Op) vectors {
	bound, v := f.register(low), f.vecs(len(x))
	for i := range x {
		VMAXPS(x[i], bound, v[i])
	}
	return v
}

func (f *function) atMosts(x vectors, high operand.Op) vectors {
	bound, v := f.register(high), f.vecs(len(x))
	for i := range x {
		VMINPS(x[i], bound, v[i])
	}
	return v
}

// withConstant does an instruction with a constant in memory, also for AVX-512, whose registers others need.
func (f *function) withConstant(plain, broadcast func(ops ...operand.Op), c float32, ops ...operand.Op) {
	do := plain
	if f.wide {
		do = broadcast
	}
	do(append([]operand.Op{lanesOf(math.Float32bits(c))}, ops...)...)
}

// times returns the products by a constant.
func (f *function) times(x vectors, c float32) vectors {
	v := f.vecs(len(x))
	for i := range x {
		f.withConstant(VMULPS, VMULPS_BCST, c, x[i], v[i])
	}
	return v
}

// minus returns −|x|.
func (f *function) minus(x vectors) vectors {
	v := f.vecs(len(x))
	for i := range x {
		f.withConstant(VORPS, VORPS_BCST, float32(math.Copysign(0, -1)), x[i], v[i])
	}
	return v
}

func (f *function) squares(x vectors) vectors {
	v := f.vecs(len(x))
	for i := range x {
		VMULPS(x[i], x[i], v[i])
	}
	return v
}

// polynomials evaluates a polynomial as horner does, with coefficients in memory also for AVX-512, whose registers
// others need.
func (f *function) polynomials(x vectors, coefficients ...float32) vectors {
	p := f.vecs(len(x))
	for i, c := range coefficients {
		at := lanesOf(math.Float32bits(c))
		for v := range x {
			switch {
			case i == 0:
				VBROADCASTSS(at, p[v])
			case f.wide:
				VFMADD213PS_BCST(at, x[v], p[v])
			default:
				VFMADD213PS(at, x[v], p[v])
			}
		}
	}
	return p
}

// powers returns 2^x for x ≤ 128 as exp2 of internal/rowwise computes it, 0 below −126.
func (f *function) powers(x vectors) vectors {
	low, n, r := f.register(f.constant(-126)), f.vecs(len(x)), f.vecs(len(x))
	for i := range x {
		if f.wide {
			VRNDSCALEPS(nearest, x[i], n[i])
		} else {
			VROUNDPS(nearest, x[i], n[i])
		}
	}
	for i := range x {
		VSUBPS(n[i], x[i], r[i])
	}
	p := f.polynomials(r, power2Coefficients...)
	if f.wide {
		for i := range x {
			normal := K()
			VCMPPS(notBelow, low, x[i], normal)
			VSCALEFPS_Z(n[i], p[i], normal, p[i])
		}
		return p
	}
	for i := range x {
		VCVTPS2DQ(n[i], n[i])
		VPSLLD(operand.U8(23), n[i], n[i])
		VPADDD(n[i], p[i], p[i])
	}
	for i := range x {
		VCMPPS(notBelow, low, x[i], n[i])
		VANDPS(n[i], p[i], p[i])
	}
	return p
}

// choose puts a where x is negative into b.
func (f *function) choose(x, a, b vectors) {
	for i := range x {
		if f.wide {
			negative := K()
			VPMOVD2M(x[i], negative)
			VMOVAPS(a[i], negative, b[i])
		} else {
			VBLENDVPS(x[i], a[i], b[i], b[i])
		}
	}
}

// inverses replaces d, normal numbers, by 1/d. With AVX-512 that is an approximation
// to 14 bits and a step of Newton's method, which take less time than a division.
func (f *function) inverses(d vectors, one reg.VecVirtual) {
	if !f.wide {
		for i := range d {
			VDIVPS(d[i], one, d[i])
		}
		return
	}
	r := f.vecs(len(d))
	for i := range d {
		VRCP14PS(d[i], r[i])
	}
	for i := range d {
		VFNMADD213PS(one, r[i], d[i]) // 1 − d·r
	}
	for i := range d {
		VFMADD213PS(r[i], r[i], d[i]) // r + r·(1 − d·r)
	}
}

// logistic returns s = σ(t·ln2) and, if asked, its derivative s·(1 − s), as logistic of internal/rowwise does. x has
// the signs of t.
func (f *function) logistic(t, x vectors, one reg.VecVirtual, slope bool) (s, ds vectors) {
	e := f.powers(f.minus(t))
	d := f.vecs(len(t))
	for i := range t {
		VADDPS(one, e[i], d[i])
	}
	f.inverses(d, one)
	for i := range t {
		VMULPS(d[i], e[i], e[i]) // σ(−|t|·ln2)
	}
	if slope {
		ds = f.vecs(len(t))
		for i := range t {
			VMULPS(d[i], e[i], ds[i])
		}
	}
	for i := range t {
		VSUBPS(e[i], one, d[i])
	}
	f.choose(x, e, d)
	return d, ds
}

// The constants of GELU, of internal/rowwise.
const (
	gelu1    = 2 * 0.79788456080286536
	gelu3    = gelu1 * 0.044715
	geluFlat = 16
)

// newGate returns σ(2u) and its derivative by 2u for clamped x.
func (f *function) newGate() func(x vectors, slope bool) (s, ds vectors) {
	one := f.constant(1)
	return func(x vectors, slope bool) (s, ds vectors) {
		t := f.polynomials(f.squares(x), gelu3*math.Log2E, gelu1*math.Log2E)
		for i := range x {
			VMULPS(x[i], t[i], t[i])
		}
		return f.logistic(t, x, f.register(one), slope)
	}
}

// newSlope returns what computes gelu's factor of clamped x, and its derivative.
func (f *function) newSlope() activation {
	gate := f.newGate()
	return func(x vectors) (s, slope vectors) {
		s, ds := gate(x, true)
		for i := range x {
			VMULPS(x[i], ds[i], ds[i])
		}
		p := f.polynomials(f.squares(x), 3*gelu3, gelu1)
		for i := range x {
			VFMADD213PS(s[i], p[i], ds[i])
		}
		return s, ds
	}
}

// activation computes the factor s of clamped x, so that x·s is the activation, and the derivative of that, or one of the
// two.
type activation func(x vectors) (s, slope vectors)

// factor and slope are activations that compute one of the two.
func factor(of func(x vectors) vectors) activation {
	return func(x vectors) (s, slope vectors) { return of(x), nil }
}

func slope(of func(x vectors) vectors) activation {
	return func(x vectors) (s, slope vectors) { return nil, of(x) }
}

// by computes a for vectors that take turns, with AVX2 one after the other, for lack of registers.
func (r *rows) by(a activation, x vectors) (s, slope vectors) {
	if r.wide {
		return a(x)
	}
	for i := range x {
		one, other := a(x[i : i+1])
		s, slope = append(s, one...), append(slope, other...)
	}
	return s, slope
}

// abreast is how many units the loops do together whose constants leave registers for that.
func (r *rows) abreast() int {
	if r.wide {
		return 2
	}
	return 1
}

// geluFactors and geluSlopes return what computes gelu's factor of z = x + bias, clamped
// from below, and its derivative, the bound, and how many units to do together.
func (r *rows) geluFactors(short bool) (of activation, low operand.Op, group int) {
	switch {
	case !r.wide:
		high, gate := r.constant(geluFlat), r.newGate()
		return func(z vectors) (s, ds vectors) { return gate(r.atMosts(z, high), false) }, r.constant(-geluFlat), 1
	case short:
		return factor(r.newTable("gelu", shortFactors)), r.constant(-tableFlat), 2
	}
	return factor(r.newTable("gelu32", factors)), r.constant(-tableFlat), 1
}

func (r *rows) geluSlopes() (of activation, low operand.Op, group int) {
	switch {
	case !r.wide:
		high, of := r.constant(geluFlat), r.newSlope()
		return func(z vectors) (s, slope vectors) { return of(r.atMosts(z, high)) }, r.constant(-geluFlat), 1
	case r.bf16:
		return slope(r.newTable("geluSlope", shortSlopes)), r.constant(-tableFlat), 2
	}
	return slope(r.newTable("geluSlope32", slopes)), r.constant(-tableFlat), 1
}

// biased returns what lies in units of x, which come from memory, plus bias.
func (r *rows) biased(us []int) vectors {
	z, bias := r.fetches("x", us), r.gets("bias", us)
	for i := range z {
		VADDPS(bias[i], z[i], z[i])
	}
	return z
}

// activate emits a layer dst = z·factor(z).
func (r *rows) activate(group int, low operand.Op, of activation) {
	r.together("main", group, func(us []int) {
		z := r.atLeasts(r.biased(us), low)
		y, _ := r.by(of, z)
		for i := range z {
			VMULPS(y[i], z[i], y[i])
		}
		r.puts(y, "dst", us)
	})
	r.end()
}

// activateGrad emits a layer dx = dy·slope(z), which adds dx to sums.
func (r *rows) activateGrad(group int, low operand.Op, of activation) {
	r.together("main", group, func(us []int) {
		_, y := r.by(of, r.atLeasts(r.biased(us), low))
		dy := r.fetches("dy", us)
		for i := range y {
			VMULPS(dy[i], y[i], y[i])
		}
		sums := r.gets("sums", us)
		for i := range y {
			VADDPS(y[i], sums[i], sums[i])
		}
		r.puts(sums, "sums", us)
		r.puts(y, "dx", us)
	})
	r.end()
}

func beginActivation(k kind, name string) *rows {
	r := beginRows(k, name, "func(dst, x, bias []T, stream bool)", nil, "dst", "x", "bias")
	r.loadPacking()
	r.streamed("dst")
	return r
}

func beginActivationGrad(k kind, name string) *rows {
	r := beginRows(k, name, "func(dx []T, sums []float32, dy, x, bias []T, stream bool)", []string{"sums"},
		"dx", "sums", "dy", "x", "bias")
	r.loadPacking()
	r.streamed("dx")
	return r
}

func gelu(k kind) {
	r := beginActivation(k, "gelu")
	of, low, group := r.geluFactors(k.bf16)
	r.activate(group, low, of)
}

func geluGrad(k kind) {
	r := beginActivationGrad(k, "geluGrad")
	of, low, group := r.geluSlopes()
	r.activateGrad(group, low, of)
}

// The constants of erf GELU, of internal/rowwise.
const (
	normalScale = 0.4
	peak        = 0.3989422804014327
)

var normalTail = []float32{
	0.0235113259, 0.0110310866, -0.0492897332, -0.100837998, 0.0496571064, 0.565155149, -0.997355938, 0.5,
}

// newNormal returns what, for AVX2, computes the normal distribution function of clamped x, and
// e^(−x²/2), as normal of internal/rowwise does.
func (f *function) newNormal() func(x vectors) (s, e vectors) {
	unit := f.constant(1)
	return func(x vectors) (s, e vectors) {
		e = f.powers(f.times(f.squares(x), -0.5*math.Log2E))
		one := f.register(unit)
		u, d := f.minus(x), f.vecs(len(x))
		for i := range x {
			VMOVAPS(one, d[i])
			f.withConstant(VFNMADD231PS, VFNMADD231PS_BCST, normalScale, u[i], d[i]) // 1 + scale·|x|
		}
		f.inverses(d, one)
		for i := range x {
			VSUBPS(d[i], one, u[i])
		}
		q := f.polynomials(u, normalTail...)
		for i := range x {
			VMULPS(e[i], q[i], q[i])
		}
		for i := range x {
			VSUBPS(q[i], one, d[i])
		}
		f.choose(x, q, d)
		return d, e
	}
}

func geluErf(k kind) {
	r := beginActivation(k, "geluErf")
	if k.wide {
		r.activate(1, r.constant(-tableFlat), factor(r.newTable("normal", normalFactors)))
		return
	}
	low, high, normal := r.constant(-geluFlat), r.constant(geluFlat), r.newNormal()
	r.activate(1, low, func(z vectors) (s, e vectors) { return normal(r.atMosts(z, high)) })
}

func geluErfGrad(k kind) {
	r := beginActivationGrad(k, "geluErfGrad")
	if k.wide {
		r.activateGrad(1, r.constant(-tableFlat), slope(r.newTable("normalSlope", normalSlopes)))
		return
	}
	low, high, normal := r.constant(-geluFlat), r.constant(geluFlat), r.newNormal()
	r.activateGrad(1, low, slope(func(z vectors) vectors {
		z = r.atMosts(z, high)
		s, e := normal(z)
		for i := range z {
			VMULPS(z[i], e[i], e[i])
		}
		for i := range z {
			r.withConstant(VFMADD231PS, VFMADD231PS_BCST, peak, e[i], s[i])
		}
		return s
	}))
}
