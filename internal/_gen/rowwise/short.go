package main

import (
	"fmt"
	"math"

	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// Piecewise polynomials in z on intervals of length 1/2 around n/2, row n modulo
// 32, so that the lower bits of n choose one in two registers of coefficients:
// for AVX-512, which has the registers. Beyond tableFlat lies the last interval.
// For results of bfloat16 shorter ones do.
const tableFlat = 7.74

// table is such a polynomial.
type table struct {
	*rows
	high         operand.Op
	shift        reg.VecVirtual
	centered     bool                // the powers are of the distance from n/2
	coefficients [][2]reg.VecVirtual // from the constant on
}

// newTable loads a table and returns what computes it for z ≥ −tableFlat.
func (r *rows) newTable(name string, rows [32][]float32) func(z vectors) vectors {
	t := &table{rows: r, high: r.constant(tableFlat), shift: r.register(r.constant(0x1.8p22)), centered: len(rows[0]) > 5}
	for degree := range rows[0] {
		var pair [2]reg.VecVirtual
		for h := range pair {
			var words [16]uint32
			for i := range words {
				words[i] = math.Float32bits(rows[16*h+i][degree])
			}
			pair[h] = ZMM()
			VMOVUPS(symbol(fmt.Sprintf("%s%d%c", name, degree, 'a'+h), words[:]...), pair[h])
		}
		t.coefficients = append(t.coefficients, pair)
	}
	return t.of
}

// of evaluates the polynomials.
func (t *table) of(z vectors) vectors {
	x, n := t.atMosts(z, t.high), t.vecs(len(z))
	for i := range x {
		VADDPS(t.shift, x[i], n[i]) // 2x, rounded, in the lower bits
	}
	if t.centered {
		r := t.vecs(len(z))
		for i := range x {
			VSUBPS(t.shift, n[i], r[i])
		}
		for i := range x {
			VSUBPS(r[i], x[i], r[i])
		}
		x = r
	}
	pick := func(degree, i int) reg.VecVirtual {
		c := t.vec()
		VMOVAPS(n[i], c)
		VPERMI2PS(t.coefficients[degree][1], t.coefficients[degree][0], c)
		return c
	}
	p := make(vectors, len(z))
	for degree := len(t.coefficients) - 1; degree >= 0; degree-- {
		for i := range x {
			c := pick(degree, i)
			if p[i] == nil {
				p[i] = c
			} else {
				VFMADD213PS(c, x[i], p[i]) // p·x + c
			}
		}
	}
	return p
}

// shortSigma is σ of x ≥ −siluFlat with a relative error of 2⁻¹³, and with its
// derivative of 4e-6: 1/(1 + 2^t), t = −x·log₂e.
func (r *rows) shortSigma(slope bool) func(x vectors) (s, ds vectors) {
	one, most := r.register(r.constant(1)), r.constant(126)
	return func(x vectors) (s, ds vectors) {
		t := r.times(x, -math.Log2E)
		n, f := r.vecs(len(x)), r.vecs(len(x))
		for i := range t {
			VRNDSCALEPS(nearest, t[i], n[i])
		}
		for i := range t {
			VSUBPS(n[i], t[i], f[i])
		}
		e := r.polynomials(f, 0.009570101, 0.05591786, 0.24024744, 0.6931218, 0.9999993)
		for i := range e {
			VSCALEFPS(n[i], e[i], e[i])
		}
		for i := range e {
			VADDPS(one, e[i], e[i])
		}
		s = r.vecs(len(x))
		for i := range e {
			VRCP14PS(e[i], s[i])
		}
		if !slope {
			return s, nil
		}
		for i := range e {
			VFNMADD213PS(one, s[i], e[i]) // 1 − e·s
		}
		for i := range e {
			tiny := K()
			VCMPPS(notAbove, most, t[i], tiny)
			VFMADD213PS_Z(s[i], s[i], tiny, e[i]) // s + s·(1 − e·s), 0 below 2⁻¹²⁶
		}
		ds = r.vecs(len(x))
		for i := range e {
			VMOVAPS(e[i], ds[i])
		}
		for i := range e {
			VFNMADD213PS(e[i], e[i], ds[i]) // s − s·s
		}
		return e, ds
	}
}
