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
	coefficients [][2]reg.VecVirtual // from the constant on
}

// newTable returns what loads a table and computes it.
func (r *rows) newTable(name string, rows [32][]float32) func() func(z reg.VecVirtual) reg.VecVirtual {
	return func() func(z reg.VecVirtual) reg.VecVirtual { return r.loadTable(name, rows) }
}

func (r *rows) loadTable(name string, rows [32][]float32) func(z reg.VecVirtual) reg.VecVirtual {
	t := &table{rows: r, high: r.constant(tableFlat), shift: r.register(r.constant(0x1.8p22))}
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

// of evaluates the polynomial at z ≥ −tableFlat.
func (t *table) of(z reg.VecVirtual) reg.VecVirtual {
	x, n := t.atMost(z, t.high), t.vec()
	VADDPS(t.shift, x, n) // 2x, rounded, in the lower bits
	pick := func(degree int) reg.VecVirtual {
		c := t.vec()
		VMOVAPS(n, c)
		VPERMI2PS(t.coefficients[degree][1], t.coefficients[degree][0], c)
		return c
	}
	if !t.bf16 { // in powers of the distance from n/2
		middle, r := t.vec(), t.vec()
		VSUBPS(t.shift, n, middle)
		VSUBPS(middle, x, r)
		x = r
	}
	last := len(t.coefficients) - 1
	p := pick(last)
	for degree := last - 1; degree >= 0; degree-- {
		VFMADD213PS(pick(degree), x, p) // p·x + c
	}
	return p
}

// shortSigma is σ of x ≥ −siluFlat with a relative error of 2⁻¹³, and with its
// derivative of 4e-6: 1/(1 + 2^t), t = −x·log₂e.
func (r *rows) shortSigma(slope bool) func(x reg.VecVirtual) (s, ds reg.VecVirtual) {
	minusLog2e, one := r.constant(-math.Log2E), r.register(r.constant(1))
	most := r.constant(126)
	c := r.constants(0.009570101, 0.05591786, 0.24024744, 0.6931218, 0.9999993)
	return func(x reg.VecVirtual) (s, ds reg.VecVirtual) {
		t, f := r.vec(), r.vec()
		VMULPS(minusLog2e, x, t)
		n := r.round(t)
		VSUBPS(n, t, f)
		e := r.horner(f, c)
		VSCALEFPS(n, e, e)
		VADDPS(one, e, e)
		s = r.vec()
		VRCP14PS(e, s)
		if !slope {
			return s, nil
		}
		tiny := K()
		VCMPPS(notAbove, most, t, tiny)
		VFNMADD213PS(one, s, e)      // 1 − e·s
		VFMADD213PS_Z(s, s, tiny, e) // s + s·(1 − e·s), 0 below 2⁻¹²⁶
		ds = r.vec()
		VMOVAPS(e, ds)
		VFNMADD213PS(e, e, ds) // s − s·s
		return e, ds
	}
}
