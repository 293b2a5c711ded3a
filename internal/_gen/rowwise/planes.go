package main

import (
	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// Loops over planes and rows of images, of internal/rowwise. Factors are one number for all elements, or one for each column.

// factors returns what gives the factors of a unit.
func (r *rows) factors(columns bool, name string) func(u int) unit {
	if columns {
		return func(u int) unit { return r.get(name, u) }
	}
	v := r.scalar(name)
	return func(int) unit { return unit{v, v} }
}

// beginPlanes starts a function whose vectors are slices and, with columns, factors as well; else these are scalars.
func beginPlanes(k kind, columns bool, name, rest, result string, factors []string, vectors ...string) *rows {
	slices, scalars := "", ""
	for _, v := range vectors {
		slices += v + " []float32, "
	}
	for _, f := range factors {
		if columns {
			slices += f + " []float32, "
			vectors = append(vectors, f)
		} else {
			scalars += f + " float32, "
		}
	}
	r := beginRows(k, name, "func("+(slices+scalars+rest)+")"+result, nil, vectors...)
	return r
}

func minus(a, b unit) unit {
	return each(a, func(v int, x reg.VecVirtual) { VSUBPS(b[v], x, x) })
}

func times(a, b unit) unit {
	return each(a, func(v int, x reg.VecVirtual) { VMULPS(b[v], x, x) })
}

func plus(a, b unit) unit {
	return each(a, func(v int, x reg.VecVirtual) { VADDPS(b[v], x, x) })
}

func centeredSums(k kind) {
	r := beginPlanes(k, false, "centeredSums", "", " (sum, squares float32)", []string{"center"}, "x")
	center, s, q := r.factors(false, "center"), r.accumulators(2), r.accumulators(2)
	r.pass("main", 1, func(u int) {
		x := minus(r.get("x", u), center(u))
		r.keepUnit(x)
		each(x, func(v int, x reg.VecVirtual) {
			VADDPS(x, s[v], s[v])
			VFMADD231PS(x, x, q[v])
		})
	})
	r.result(s, q)
}

func centeredDots(k kind) {
	r := beginPlanes(k, false, "centeredDots", "", " (sum, dot float32)", []string{"center"}, "dy", "x")
	center, s, q := r.factors(false, "center"), r.accumulators(2), r.accumulators(2)
	r.pass("main", 1, func(u int) {
		x, dy := minus(r.fetch("x", u), center(u)), r.fetch("dy", u)
		r.keepUnit(x)
		each(x, func(v int, x reg.VecVirtual) {
			VADDPS(dy[v], s[v], s[v])
			VFMADD231PS(x, dy[v], q[v])
		})
	})
	r.result(s, q)
}

func affine(k kind, columns bool, name string) {
	r := beginPlanes(k, columns, name, "stream bool", "", []string{"center", "scale", "shift"}, "dst", "x")
	r.streamed("dst")
	center, scale, shift := r.factors(columns, "center"), r.factors(columns, "scale"), r.factors(columns, "shift")
	r.pass("main", 1, func(u int) {
		r.put(plus(times(minus(r.fetch("x", u), center(u)), scale(u)), shift(u)), "dst", u)
	})
	r.end()
}

func affineGrad(k kind, columns bool, name string) {
	r := beginPlanes(k, columns, name, "beta float32, stream bool", "", []string{"center", "a", "b", "c"}, "dx", "dy", "x")
	r.streamed("dx")
	center, a, b, c := r.factors(columns, "center"), r.factors(columns, "a"), r.factors(columns, "b"), r.factors(columns, "c")
	grad := func(u int) unit {
		x := times(minus(r.fetch("x", u), center(u)), b(u))
		return plus(plus(times(r.fetch("dy", u), a(u)), x), c(u))
	}
	beta, bits := r.scalar("beta"), GP32()
	VMOVD(beta.AsX(), bits)
	ADDL(bits, bits) // without the sign
	JNZ(operand.LabelRef("add"))
	r.pass("set", 1, func(u int) { r.put(grad(u), "dx", u) })
	r.end()
	Label("add")
	r.pass("add", 1, func(u int) {
		g, acc := grad(u), r.get("dx", u)
		r.put(plus(times(acc, unit{beta, beta}), g), "dx", u)
	})
	r.end()
}

func columnSums(k kind) {
	r := beginRows(k, "columnSums", "func(sum, squares, x, center []float32)", nil, "x", "sum", "squares", "center")
	r.pass("main", 1, func(u int) {
		x := minus(r.get("x", u), r.get("center", u))
		r.put(plus(r.get("sum", u), x), "sum", u)
		r.put(plus(times(x, x), r.get("squares", u)), "squares", u)
	})
	r.end()
}

func columnDots(k kind) {
	r := beginRows(k, "columnDots", "func(sum, dot, dy, x, center []float32)", nil, "x", "sum", "dot", "dy", "center")
	r.pass("main", 1, func(u int) {
		x, dy := minus(r.fetch("x", u), r.get("center", u)), r.fetch("dy", u)
		r.put(plus(r.get("sum", u), dy), "sum", u)
		r.put(plus(times(x, dy), r.get("dot", u)), "dot", u)
	})
	r.end()
}
