package main

import (
	"fmt"

	. "github.com/snug-ml/snug/internal/_gen/neon"
)

// tile is the micro-kernel under construction.
type tile struct {
	*Func
	acc    [maxRows][]V // of C: vectors before the last, and the last
	row    []V          // of B, in the same places
	values []V          // of A, in turn

	rows, before         R // of the tile; bytes before its last vectors
	a                    []R
	b, colA, rowB, depth R
	at                   R // bytes from the start of the rows of A
}

const last = maxVectors - 1

// mul generates the micro-kernel, which keeps its tile of C in registers: a loop over the depth for each number of
// rows and vectors, and what they share.
func mul(file *File) {
	t := tile{Func: file.Func("mulNEON", "func(a, b, c *float32, rows, before, last, depth, rowA, colA, rowB, rowC int, alpha, beta float32)",
		fmt.Sprintf("multiplies for a tile of up to %d rows, of last floats after before bytes, which\nare up to %d vectors.", maxRows, maxVectors-1))}
	t.rows, t.before = t.Param("rows"), t.Param("before")
	for i := range t.acc {
		t.acc[i] = t.Vs(maxVectors)
	}
	t.Scope(t.steps)
	t.epilogue()
}

// steps goes through the depth.
func (t *tile) steps() {
	t.a = []R{t.Param("a")}
	rowA := t.Param("rowA")
	for i := range maxRows - 1 {
		t.a = append(t.a, t.R())
		t.Go("ADD %s, %s, %s", rowA, t.a[i], t.a[i+1])
	}
	t.b, t.colA, t.rowB, t.depth, t.at = t.Param("b"), t.Param("colA"), t.Param("rowB"), t.Param("depth"), t.R()
	t.Go("MOVD $0, %s", t.at)
	t.row, t.values = t.Vs(maxVectors), t.Vs(2)
	t.choose("vectors", t.before, width, 0, last, func(full int) {
		t.choose(fmt.Sprintf("x%dRows", full+1), t.rows, 1, 1, maxRows, func(rows int) { t.loop(rows, full) })
	})
	t.Label("stepped")
}

// choose goes to what do makes for the value of r, which is unit times a number from lo to hi.
func (t *tile) choose(label string, r R, unit, lo, hi int, do func(n int)) {
	if lo == hi {
		do(lo)
		return
	}
	middle := (lo + hi) / 2
	t.Go("CMP $%d, %s", unit*middle, r)
	t.Go("BGT %s%d", label, middle+1)
	t.choose(label, r, unit, lo, middle, do)
	t.Label(fmt.Sprintf("%s%d", label, middle+1))
	t.choose(label, r, unit, middle+1, hi, do)
}

// loop clears the sums of a tile and generates a loop along the depth. A step loads a row of B and each of A's values, which the
// multiply-adds take from lane 0.
func (t *tile) loop(rows, full int) {
	label := fmt.Sprintf("loop%dx%d", rows, full+1)
	vectors := append([]int{0, 1, 2}[:full:full], last)
	for _, sums := range t.acc[:rows] {
		for _, v := range vectors {
			t.Do(EOR(sums[v], sums[v], sums[v]))
		}
	}
	t.Label(label)
	for j, v := range vectors {
		t.Go("FMOVQ %d(%s), %s", width*j, t.b, t.row[v])
	}
	for i, sums := range t.acc[:rows] {
		value := t.values[i%2]
		t.Go("FMOVS (%s)(%s), %s", t.a[i], t.at, value)
		for _, v := range vectors {
			t.Do(FMLAElement(sums[v], t.row[v], value))
		}
	}
	t.Go("ADD %s, %s", t.colA, t.at)
	t.Go("ADD %s, %s", t.rowB, t.b)
	t.Go("SUBS $1, %s", t.depth)
	t.Go("BNE %s", label)
	t.Go("B stepped")
}

// epilogue stores alpha·acc + beta·c; of the last vectors only some lanes. With
// beta 0, it does not read c.
func (t *tile) epilogue() {
	c, n, rowC := t.Param("c"), t.Param("last"), t.Param("rowC")
	alpha, beta, old, end := t.Scalar("alpha"), t.Scalar("beta"), t.V(), t.R()
	t.Go("ADD %s, %s, %s", t.before, c, end)
	t.Go("FCMPS $(0.0), %s", beta)
	t.Go("BEQ set")
	for _, add := range []bool{true, false} {
		name := "add"
		if !add {
			name = "set"
			t.Label(name)
		}
		for i, sums := range t.acc {
			label := fmt.Sprintf("%s%d", name, i)
			for j, sum := range sums[:last] {
				t.Go("CMP $%d, %s", width*j, t.before)
				t.Go("BEQ %sLast", label)
				t.Do(FMUL(sum, sum, alpha))
				if add {
					t.Go("FMOVQ %d(%s), %s", width*j, c, old)
					t.Do(FMLA(sum, old, beta))
				}
				t.Go("FMOVQ %s, %d(%s)", sum, width*j, c)
			}
			t.Label(label + "Last")
			sum := sums[last]
			t.Do(FMUL(sum, sum, alpha))
			if add {
				t.some(label+"Load", "(%s), %s", n, end, old)
				t.Do(FMLA(sum, old, beta))
			}
			t.some(label+"Store", "%[2]s, (%[1]s)", n, end, sum)
			if i < maxRows-1 {
				t.Go("SUBS $1, %s", t.rows)
				t.Go("BEQ done")
				t.Go("ADD %s, %s", rowC, c)
				t.Go("ADD %s, %s", rowC, end)
			}
		}
		t.Go("B done")
	}
	t.Label("done")
	t.Return()
}

// some loads or stores the first n floats of v at a place, as operands has memory and
// register.
func (t *tile) some(label, operands string, n, at R, v V) {
	part := "VST1 "
	if operands[0] == '(' {
		part = "VLD1 "
	}
	t.Go("TBNZ $2, %s, %sFull", n, label)
	t.Go("TBZ $1, %s, %sOne", n, label)
	t.Go("FMOVD "+operands, at, v)
	t.Go("TBZ $0, %s, %sEnd", n, label)
	t.Go("ADD $8, %s, R16", at)
	t.Go(part+operands, "R16", fmt.Sprintf("V%d.S[2]", v))
	t.Go("B %sEnd", label)
	t.Label(label + "One")
	t.Go("FMOVS "+operands, at, v)
	t.Go("B %sEnd", label)
	t.Label(label + "Full")
	t.Go("FMOVQ "+operands, at, v)
	t.Label(label + "End")
}
