// Sweep generates the NEON passes of internal/sweep, for vectors of float32,
// binary16 and bfloat16.
package main

import (
	"fmt"

	. "github.com/snug-ml/snug/internal/_gen/neon"
)

const (
	group    = 4    // vectors of a step
	lanes    = 8    // float64 partial sums of a quarter
	quarters = 4    // of a block
	quarter  = 2048 // elements
)

func main() {
	f := NewFile("github.com/snug-ml/snug")
	for _, e := range []Elem{Float32, Float16, BFloat16} {
		p := pass{f, e}
		p.scale()
		p.clamp()
		p.squares()
		p.below()
		p.accumulate()
		p.assign()
	}
	pass{f, Float32}.scaleSquares()
	f.Generate()
}

// pass is what the functions differ in.
type pass struct {
	*File
	elem Elem
}

func (p pass) begin(name, doc, signature string) *Func {
	return p.Func(name+p.elem.Name+"NEON", fmt.Sprintf(signature, p.elem.Go), doc)
}

func (p pass) scale() {
	f := p.begin("scale", "multiplies x by factor.", "func(x []%s, factor float32)")
	l := f.Loop().Slice("x", p.elem).Rounding(p.elem)
	factor := f.Scalar("factor")
	l.Each(group, func(u int) {
		v := l.Load("x", u)
		f.Do(FMUL(v, v, factor))
		l.Store(v, "x", u)
	})
	f.Return()
}

// clamp makes NaNs of what is not finite: v-v has no bits for the other values.
func (p pass) clamp() {
	f := p.begin("clamp", "cuts x off above limit and below -limit; what is not finite\nbecomes NaN.", "func(x []%s, limit float32)")
	l := f.Loop().Slice("x", p.elem).Rounding(p.elem)
	high, low := f.Scalar("limit"), f.V()
	f.Do(FNEG(low, high))
	l.Each(group, func(u int) {
		v, bad := l.Load("x", u), f.V()
		f.Do(FSUB(bad, v, v), FMIN(v, v, high), FMAX(v, v, low), ORR(v, v, bad))
		l.Store(v, "x", u)
	})
	f.Return()
}

func (p pass) accumulate() {
	f := p.begin("accumulate", "computes acc = alpha·x + beta·acc, with both products rounded.", "func(acc []float32, x []%s, alpha, beta float32)")
	l := f.Loop("acc").Slice("x", p.elem)
	alpha, beta := f.Scalar("alpha"), f.Scalar("beta")
	l.Each(group, func(u int) {
		v, old := l.Load("x", u), l.Load("acc", u)
		f.Do(FMUL(v, v, alpha), FMUL(old, old, beta), FADD(v, v, old))
		l.Store(v, "acc", u)
	})
	f.Return()
}

func (p pass) assign() {
	f := p.begin("assign", "computes acc = alpha·x.", "func(acc []float32, x []%s, alpha float32)")
	l := f.Loop("acc").Slice("x", p.elem)
	alpha := f.Scalar("alpha")
	l.Each(group, func(u int) {
		v := l.Load("x", u)
		f.Do(FMUL(v, v, alpha))
		l.Store(v, "acc", u)
	})
	f.Return()
}

func (p pass) squares() {
	f := p.begin("squares", "returns sums of squares, without the last len(x) mod 8 elements.", "func(x []%s) (sums [32]float64)")
	p.sumSquares(f, func(base R, i int) V { return f.Load(p.elem, base, i) })
}

func (p pass) scaleSquares() {
	f := p.begin("scaleSquares", "is scale and squares in one pass, without the last len(x) mod 8\nelements.", "func(x []%s, factor float32) (sums [32]float64)")
	factor := f.Scalar("factor")
	p.sumSquares(f, func(base R, i int) V {
		v := f.Load(p.elem, base, i)
		f.Do(FMUL(v, v, factor))
		f.Go("FMOVQ %s, %d(%s)", v, i*p.elem.Size, base)
		return v
	})
}

// sumSquares ends a function that adds the squares of the 4 values that load
// returns. A square of a float32 is exact in float64, so fusing the addition
// changes nothing.
func (p pass) sumSquares(f *Func, load func(base R, i int) V) {
	x, n := f.Param("x_base"), f.Param("x_len")
	var sums [quarters][]V
	for q := range sums {
		sums[q] = f.Zeros(lanes / 2)
	}
	add := func(q int, base R) {
		for i := 0; i < lanes; i += Lanes {
			f.Scope(func() {
				v, high := load(base, i), f.V()
				low, high2 := sums[q][i/2], sums[q][i/2+1]
				f.Do(FCVTL2x2D(high, v), FCVTLx2D(v, v), FMLAx2D(low, v, v), FMLAx2D(high2, high, high))
			})
		}
		f.Go("ADD $%d, %s", lanes*p.elem.Size, base)
	}

	bases, count := []R{x, f.R(), f.R(), f.R()}, f.R()
	f.Label("block")
	f.Go("CMP $%d, %s", quarters*quarter, n)
	f.Go("BLT rest")
	for q, base := range bases[1:] {
		f.Go("ADD $%d, %s, %s", quarter*p.elem.Size, bases[q], base)
	}
	f.Go("MOVD $%d, %s", quarter/lanes, count)
	f.Label("quarters")
	for q, base := range bases {
		add(q, base)
	}
	f.Go("SUBS $1, %s", count)
	f.Go("BNE quarters")
	f.Go("MOVD %s, %s", bases[quarters-1], x)
	f.Go("SUB $%d, %s", quarters*quarter, n)
	f.Go("B block")

	f.Label("rest")
	f.Go("CMP $%d, %s", lanes, n)
	f.Go("BLT done")
	add(0, x)
	f.Go("SUB $%d, %s", lanes, n)
	f.Go("B rest")
	f.Label("done")
	to := f.ResultAt("sums")
	for q := range sums {
		for i, v := range sums[q] {
			f.Go("FMOVQ %s, %d(%s)", v, 8*(q*lanes+2*i), to)
		}
	}
	f.Return()
}

// below compares once for a block. As integers magnitudes keep their order.
func (p pass) below() {
	const steps = 64 // of a block, 16 elements each
	f := p.begin("below", "returns a number of leading elements whose magnitudes times scale have bits\nbelow limit: all except the last len(x) mod 16, or those of whole blocks.",
		"func(x []%s, scale float32, limit uint32) (count int)")
	x, n := f.Param("x_base"), f.Param("x_len")
	scale, magnitude := f.Scalar("scale"), f.Word(0x7fffffff)
	limit := f.ParamWord("limit")
	known, left, most, top := f.R(), f.R(), f.R(), f.R()
	f.Go("MOVD $0, %s", known)
	f.Go("MOVD $%d, %s", steps, most)

	f.Label("block")
	f.Go("SUB %s, %s, %s", known, n, left)
	f.Go("LSR $4, %s", left)
	f.Go("CBZ %s, done", left)
	f.Go("CMP %s, %s", most, left)
	f.Go("CSEL LT, %s, %s, %s", left, most, left)
	f.Go("ADD %s<<4, %s, %s", left, known, top) // known if the block is below limit
	tops := f.Zeros(group)
	f.Label("step")
	for u := range group {
		f.Scope(func() {
			v := f.Load(p.elem, x, u*Lanes)
			f.Do(FMUL(v, v, scale), AND(v, v, magnitude), UMAX(tops[u], tops[u], v))
		})
	}
	f.Go("ADD $%d, %s", group*Lanes*p.elem.Size, x)
	f.Go("SUBS $1, %s", left)
	f.Go("BNE step")
	f.Do(UMAX(tops[0], tops[0], tops[1]), UMAX(tops[2], tops[2], tops[3]), UMAX(tops[0], tops[0], tops[2]), UMAXV(tops[0], tops[0]))
	f.Go("FMOVS %s, %s", tops[0], left)
	f.Go("CMPW %s, %s", limit, left)
	f.Go("BHS done")
	f.Go("MOVD %s, %s", top, known)
	f.Go("B block")
	f.Label("done")
	f.ResultInt(known, "count")
	f.Return()
}
