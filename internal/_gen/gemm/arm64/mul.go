package main

import (
	"fmt"

	. "github.com/snug-ml/snug/internal/_gen/neon"
)

// tile is a micro-kernel under construction.
type tile struct {
	*Func
	acc  [][]V // of C: rows of vectors
	c    R     // the row of C at hand
	last R     // lanes of C in the last vectors
}

// mul generates a micro-kernel, which keeps its tile of C in registers. A step
// along the depth loads a row of B and each of A's values, which the
// multiply-adds take from lane 0.
func mul(file *File, rows, vectors int) {
	name := fmt.Sprintf("mul%dx%dNEON", rows, vectors)
	t := tile{Func: file.Func(name, "func(a, b, c *float32, depth, rowA, colA, rowB, rowC, last int, alpha, beta float32)",
		fmt.Sprintf("multiplies for a tile of %d rows and %d vectors.", rows, vectors))}
	for range rows {
		t.acc = append(t.acc, t.Zeros(vectors))
	}
	t.Scope(t.steps)
	t.epilogue()
}

func (t *tile) steps() {
	a, rowA, colA := []R{t.Param("a")}, t.Param("rowA"), t.Param("colA")
	for i := range len(t.acc) - 1 {
		a = append(a, t.R())
		t.Go("ADD %s, %s, %s", rowA, a[i], a[i+1])
	}
	b, rowB, depth, at := t.Param("b"), t.Param("rowB"), t.Param("depth"), t.R()
	t.Go("MOVD $0, %s", at)
	row, values := t.Vs(len(t.acc[0])), t.Vs(2)

	t.Label("loop")
	for j, v := range row {
		t.Go("FMOVQ %d(%s), %s", width*j, b, v)
	}
	for i, sums := range t.acc {
		value := values[i%2]
		t.Go("FMOVS (%s)(%s), %s", a[i], at, value)
		for j, v := range row {
			t.Do(FMLAElement(sums[j], v, value))
		}
	}
	t.Go("ADD %s, %s", colA, at)
	t.Go("ADD %s, %s", rowB, b)
	t.Go("SUBS $1, %s", depth)
	t.Go("BNE loop")
}

// epilogue stores alpha·acc + beta·c; of the last vectors only some lanes. With
// beta 0, it does not read c.
func (t *tile) epilogue() {
	t.c, t.last = t.Param("c"), t.Param("last")
	rowC := t.Param("rowC")
	alpha, beta, old := t.Scalar("alpha"), t.Scalar("beta"), t.V()
	t.Go("FCMPS $(0.0), %s", beta)
	t.Go("BEQ store")
	for _, add := range []bool{true, false} {
		if !add {
			t.Label("store")
		}
		for i, row := range t.acc {
			for j, sum := range row {
				t.Do(FMUL(sum, sum, alpha))
				if add {
					t.move(j, fmt.Sprintf("load%d", i), "(%[1]s), %[2]s", old)
					t.Do(FMLA(sum, old, beta))
				}
				t.move(j, fmt.Sprintf("store%d%v", i, add), "%[2]s, (%[1]s)", sum)
			}
			t.Go("ADD %s, %s", rowC, t.c)
		}
		t.Return()
	}
}

// move loads or stores vector j of the row of C, as operands has memory and
// register.
func (t *tile) move(j int, label, operands string, v V) {
	transfer := func(instruction string, offset int, register string) {
		t.Go("ADD $%d, %s, R16", offset, t.c)
		t.Go(instruction+" "+operands, "R16", register)
	}
	if j < len(t.acc[0])-1 {
		transfer("FMOVQ", width*j, v.String())
		return
	}
	t.Go("TBNZ $2, %s, %sFull", t.last, label)
	t.Go("TBZ $1, %s, %sOne", t.last, label)
	transfer("FMOVD", width*j, v.String())
	t.Go("TBZ $0, %s, %sEnd", t.last, label)
	if operands[0] == '(' {
		transfer("VLD1", width*j+8, fmt.Sprintf("V%d.S[2]", v))
	} else {
		transfer("VST1", width*j+8, fmt.Sprintf("V%d.S[2]", v))
	}
	t.Go("B %sEnd", label)
	t.Label(label + "One")
	transfer("FMOVS", width*j, v.String())
	t.Go("B %sEnd", label)
	t.Label(label + "Full")
	transfer("FMOVQ", width*j, v.String())
	t.Label(label + "End")
}
