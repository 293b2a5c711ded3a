package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"

	"github.com/snug-ml/snug/internal/_gen/half/vec"
)

// fewRows are the numbers of rows of A that dots take.
var fewRows = []int{1, 4}

// dots generates the products of rows of A with lines of B that run along the depth: B is read
// once, where it lies. One row waits for memory; of more, what is loaded of A meets two lines.
func (t tier) dots(rows int) {
	vectors, together := 4, 1 // of a step, lines
	if rows > 1 {
		vectors, together = t.width/32, 2
	}
	name := fmt.Sprintf("dots%d%s", rows, t.name)
	TEXT(name, NOSPLIT, "func(y, x *float32, b *byte, kind, lines, steps, rowY, rowX, lineB int)")
	Pragma("noescape")
	Doc(name+" writes the products of a line of B with rows of x to a column of y, for one line after the",
		fmt.Sprintf("other. A step is %d elements. Distances are in bytes.", vectors*t.lanes()))
	y, line := Load(Param("y"), GP64()), Load(Param("b"), GP64())
	lines, rowX := Load(Param("lines"), GP64()), Load(Param("rowX"), GP64())
	triple, second := GP64(), GP64()
	LEAQ(Mem{Base: rowX, Index: rowX, Scale: 2}, triple)
	sums := make([][][]reg.VecVirtual, together) // by line and row
	for l := range sums {
		sums[l] = make([][]reg.VecVirtual, rows)
		for r := range rows {
			for range vectors {
				sums[l][r] = append(sums[l][r], t.register())
			}
		}
	}

	Label("line")
	x, b, left := GP64(), GP64(), GP64()
	Load(Param("x"), x)
	MOVQ(line, b)
	if together > 1 { // the last line may be alone, and is its own second
		XORQ(second, second)
		CMPQ(lines, Imm(1))
		CMOVQGT(vec.ParamAddr("lineB"), second)
	}
	Load(Param("steps"), left)
	for l := range sums {
		for r := range rows {
			for _, s := range sums[l][r] {
				t.zero(s)
			}
		}
	}
	at := []Mem{{Base: x}, {Base: x, Index: rowX, Scale: 1}, {Base: x, Index: rowX, Scale: 2}, {Base: x, Index: triple, Scale: 1}}
	eachElement("step", "stepped", func(e element, label string) {
		Label(label)
		for v := range vectors {
			w := make([]reg.VecVirtual, together)
			for l, from := range []Mem{{Base: b}, {Base: b, Index: second, Scale: 1}}[:together] {
				w[l] = t.register()
				e.load(from.Offset(v*e.size*t.lanes()), w[l])
			}
			for r := range rows {
				if together == 1 {
					VFMADD231PS(at[r].Offset(v*t.width), w[0], sums[0][r][v])
					continue
				}
				value := t.register()
				VMOVUPS(at[r].Offset(v*t.width), value)
				for l := range w {
					VFMADD231PS(value, w[l], sums[l][r][v])
				}
			}
		}
		ADDQ(U32(vectors*t.width), x)
		ADDQ(U32(vectors*e.size*t.lanes()), b)
		DECQ(left)
		JNZ(LabelRef(label))
	})

	for l := range sums {
		if l > 0 {
			DECQ(lines)
			JZ(LabelRef("done"))
		}
		to := GP64()
		MOVQ(y, to)
		for r := range rows {
			for n := vectors / 2; n > 0; n /= 2 {
				for v := range n {
					VADDPS(sums[l][r][v+n], sums[l][r][v], sums[l][r][v])
				}
			}
			VMOVSS(vec.Total(sums[l][r][0]), Mem{Base: to})
			ADDQ(vec.ParamAddr("rowY"), to)
		}
		ADDQ(vec.ParamAddr("lineB"), line)
		ADDQ(Imm(4), y)
	}
	DECQ(lines)
	JNZ(LabelRef("line"))
	Label("done")
	VZEROUPPER()
	RET()
}
