package main

import (
	"fmt"

	. "github.com/snug-ml/snug/internal/_gen/neon"
)

// dot multiplies the values of 16 codes at a time by rows of x. Each row has two vectors of
// sums.
func dot(file *File, rows int) {
	f := file.Func(fmt.Sprintf("dot%dxNEON", rows), "func(y *float32, x *float32, stride int, packed *uint8, absmax *float32, blocks, block int, values *[16]float32)",
		"writes the products of rows of x, stride elements apart, and the values of codes.")
	t, packed, absmax := newTable(f), f.Param("packed"), f.Param("absmax")
	mask, x, sums := f.Word(0x0f0f0f0f), []R{f.Param("x")}, [][]V{f.Zeros(2)}
	stride := f.Param("stride")
	for r := 1; r < rows; r++ {
		x, sums = append(x, f.R()), append(sums, f.Zeros(2))
		f.Go("ADD %s<<2, %s, %s", stride, x[r-1], x[r])
	}
	y := f.Param("y")
	blocks(f, func(n func() R) {
		t.begin(absmax)
		loop(f, "dot", n(), values, func() {
			c := codes(f, packed, mask)
			f.Go("VSHL $2, %s, %s", bytes(c), bytes(c))
			for i := range t.spread {
				f.Scope(func() {
					w, v := t.values(c, i), f.V()
					for r, sum := range sums {
						f.Go("FMOVQ.P 16(%s), %s", x[r], v)
						f.Do(FMLA(sum[i%2], v, w))
					}
				})
			}
		})
	})
	for r, sum := range sums {
		f.Go("FMOVS %s, %d(%s)", f.Sum(sum), 4*r, y)
	}
	f.Return()
}

// axpy adds multiples of a vector of codes to rows of sums.
func axpy(file *File, rows int) {
	f := file.Func(fmt.Sprintf("axpy%dxNEON", rows), "func(y *float32, a *float32, packed *uint8, stride int, absmax *float32, blocks, block int, values *[16]float32)",
		"adds multiples of a vector of codes to rows of y.")
	t, y, a, packed, absmax := newTable(f), f.Param("y"), f.Param("a"), f.Param("packed"), f.Param("absmax")
	mask, factors := f.Word(0x3c3c3c3c), f.Vs(rows) // of codes times 4
	for r, factor := range factors {
		f.Go("FMOVS %d(%s), %s", 4*r, a, factor)
		f.Do(DUP(factor, factor))
	}
	blocks(f, func(n func() R) {
		t.begin(absmax)
		loop(f, "axpy", n(), 2*values, func() {
			even, odd := f.V(), f.V()
			f.Go("FMOVQ.P 16(%s), %s", packed, odd)
			f.Go("VUSHR $2, %s, %s", bytes(odd), bytes(even))
			f.Go("VSHL $2, %s, %s", bytes(odd), bytes(odd))
			f.Do(AND(even, even, mask), AND(odd, odd, mask))
			for i := range t.spread {
				for half, c := range []V{even, odd} {
					f.Scope(func() { multiplyAdd(f, t.values(c, i), factors, y, values*half+Lanes*i) })
				}
			}
			f.Go("ADD $%d, %s", 4*2*values*rows, y)
		})
	})
	f.Return()
}

// multiplyAdd adds the products of values and every factor to sums of its row from at on.
func multiplyAdd(f *Func, w V, factors []V, y R, at int) {
	for r, factor := range factors {
		f.Scope(func() {
			offset := 4 * (2*values*r + at)
			sum := f.V()
			f.Go("FMOVQ %d(%s), %s", offset, y, sum)
			f.Do(FMLA(sum, w, factor))
			f.Go("FMOVQ %s, %d(%s)", sum, offset, y)
		})
	}
}
