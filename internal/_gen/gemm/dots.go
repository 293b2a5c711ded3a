package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"

	"github.com/snug-ml/snug/internal/_gen/half/vec"
)

// fewRows are the numbers of rows of A that dots take. Eight sums hide the latency of adding.
var fewRows = []int{1, 4}

// dots generates the products of rows of A with lines of B that run along the depth: B is read
// once, where it lies.
func (t tier) dots(e element, rows int) {
	vectors := 8 / rows // of a step
	if rows == 1 {
		vectors = 4 // one row waits for memory
	}
	name := fmt.Sprintf("dots%d%s%s", rows, e.name, t.name)
	TEXT(name, NOSPLIT, "func(y, x *float32, b *"+e.typ+", lines, steps, rowY, rowX, lineB int)")
	Pragma("noescape")
	Doc(name+" writes the products of a line of B with rows of x to a column of y, for one line after the",
		fmt.Sprintf("other. A step is %d elements. Distances are in bytes.", vectors*t.lanes()))
	y, line := Load(Param("y"), GP64()), Load(Param("b"), GP64())
	lines, lineB := Load(Param("lines"), GP64()), Load(Param("lineB"), GP64())
	rowX, rowY := Load(Param("rowX"), GP64()), Load(Param("rowY"), GP64())
	triple, first := GP64(), Load(Param("x"), GP64())
	LEAQ(Mem{Base: rowX, Index: rowX, Scale: 2}, triple)
	sums := make([][]reg.VecVirtual, rows)
	for r := range sums {
		for range vectors {
			sums[r] = append(sums[r], t.register())
		}
	}

	Label("line")
	x, b, left := GP64(), GP64(), GP64()
	MOVQ(first, x)
	MOVQ(line, b)
	Load(Param("steps"), left)
	for r := range sums {
		for _, s := range sums[r] {
			t.zero(s)
		}
	}
	at := []Mem{{Base: x}, {Base: x, Index: rowX, Scale: 1}, {Base: x, Index: rowX, Scale: 2}, {Base: x, Index: triple, Scale: 1}}
	Label("step")
	for v := range vectors {
		w := t.register()
		e.load(Mem{Base: b, Disp: v * e.size * t.lanes()}, w)
		for r := range sums {
			VFMADD231PS(at[r].Offset(v*t.width), w, sums[r][v])
		}
	}
	ADDQ(U32(vectors*t.width), x)
	ADDQ(U32(vectors*e.size*t.lanes()), b)
	DECQ(left)
	JNZ(LabelRef("step"))

	to := GP64()
	MOVQ(y, to)
	for r := range sums {
		for n := vectors / 2; n > 0; n /= 2 {
			for v := range n {
				VADDPS(sums[r][v+n], sums[r][v], sums[r][v])
			}
		}
		VMOVSS(vec.Total(sums[r][0]), Mem{Base: to})
		ADDQ(rowY, to)
	}
	ADDQ(lineB, line)
	ADDQ(Imm(4), y)
	DECQ(lines)
	JNZ(LabelRef("line"))
	VZEROUPPER()
	RET()
}
