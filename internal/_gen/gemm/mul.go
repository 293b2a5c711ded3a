package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// mul generates a micro-kernel. It keeps its tile of C in registers: at most
// 6 rows of 2 vectors in 12 of AVX2's 16, 14 rows of 2 in 28 of AVX-512's 32. A
// step along the depth loads a row of B, broadcasts each of A's values and
// does rows·vectors multiply-adds, which is far more arithmetic than loads, so
// the multipliers are what it waits for.
func (t tier) mul(rows, vectors int) {
	name := fmt.Sprintf("mul%dx%d%s", rows, vectors, t.name)
	TEXT(name, NOSPLIT, "func(a, b, c *float32, tiles, depth, rowA, colA, nextA, rowB, rowC, last int, alpha, beta float32)")
	Pragma("noescape")
	Doc(fmt.Sprintf("%s multiplies for tiles of %d rows and %d vectors, which lie below one", name, rows, vectors),
		"another, with the same columns of B. Their rows of A begin nextA bytes apart.")
	c := AllocLocal(8)
	at, tiles := Load(Param("c"), GP64()), Load(Param("tiles"), GP64())
	MOVQ(at, c)
	a := newRowPointers(rows)

	Label("tile")
	acc := make([][]reg.VecVirtual, rows)
	for i := range acc {
		acc[i] = make([]reg.VecVirtual, vectors)
		for j := range acc[i] {
			acc[i][j] = t.register()
			t.zero(acc[i][j])
		}
	}
	row := make([]reg.VecVirtual, vectors)
	for j := range row {
		row[j] = t.register()
	}
	value := t.register()

	colA := Load(Param("colA"), GP64())
	b, rowB := Load(Param("b"), GP64()), Load(Param("rowB"), GP64())
	far, left, rest := GP64(), GP64(), GP64()
	distance, prefetchB := uint64(ahead), PREFETCHT0
	if rows <= quickRows {
		distance, prefetchB = farAhead, PREFETCHT1
	}
	MOVQ(rowB, far)
	SHLQ(Imm(distance), far)
	XORQ(rest, rest)
	Load(Param("depth"), left)
	CMPQ(left, Imm(3*near))
	JLE(LabelRef("near"))
	t.prefetch(c, rows, vectors, PREFETCHT1)
	SUBQ(Imm(near), left)
	MOVQ(U32(near), rest)
	JMP(LabelRef("loop"))
	Label("near")
	t.prefetch(c, rows, vectors, PREFETCHT0)
	Label("loop")
	for j := 0; j < vectors*t.width; j += 64 {
		prefetchB(Mem{Base: b, Index: far, Scale: 1, Disp: j})
	}
	for j := range row {
		VMOVUPS(Mem{Base: b, Disp: j * t.width}, row[j])
	}
	for i := range acc {
		VBROADCASTSS(a.at(i), value)
		for j := range row {
			VFMADD231PS(value, row[j], acc[i][j])
		}
	}
	for _, base := range a.bases {
		ADDQ(colA, base)
	}
	ADDQ(rowB, b)
	DECQ(left)
	JNZ(LabelRef("loop"))
	XCHGQ(rest, left)
	TESTQ(left, left)
	JNZ(LabelRef("near"))

	t.epilogue(c, acc)
	DECQ(tiles)
	JZ(LabelRef("done"))
	a.nextTile()
	JMP(LabelRef("tile"))
	Label("done")
	VZEROUPPER()
	RET()
}

// A step of at most quickRows is over so soon that B must be asked for farAhead, the binary logarithm of
// rows, and in the second cache: in the first, rows a multiple of 4 KiB apart would displace one another.
const (
	quickRows = 11
	farAhead  = 6
)

// near is how many steps before the end a micro-kernel brings its tile of C to the first cache. When a tile of more
// than 3·near steps begins, it asks for it in the second: the first would have lost it by the end, in particular
// where rows lie a multiple of 4 KiB apart and share a set.
const near = 32

// prefetch asks for the tile of C.
func (t tier) prefetch(c Mem, rows, vectors int, prefetch func(Op)) {
	at, rowC := GP64(), Load(Param("rowC"), GP64())
	MOVQ(c, at)
	for range rows {
		for j := 0; j < vectors*t.width; j += 64 {
			prefetch(Mem{Base: at, Disp: j})
		}
		ADDQ(rowC, at)
	}
}

// epilogue stores alpha·acc + beta·c, of the last vectors only some lanes, and
// moves c on. With beta 0, it does not read c.
func (t tier) epilogue(c Mem, acc [][]reg.VecVirtual) {
	last := t.first(Load(Param("last"), GP64()).(reg.GPVirtual))
	alpha, beta, old := t.register(), t.register(), t.register()
	VBROADCASTSS(paramAddr("alpha"), alpha)
	VBROADCASTSS(paramAddr("beta"), beta)
	bits := GP32()
	MOVL(paramAddr("beta"), bits)
	SHLL(Imm(1), bits) // drops the sign
	JZ(LabelRef("store"))

	t.eachVector(c, acc, func(sum reg.VecVirtual, at Mem, isLast bool) {
		if isLast {
			last.load(at, old)
		} else {
			VMOVUPS(at, old)
		}
		VMULPS(alpha, sum, sum)
		VFMADD231PS(old, beta, sum)
		t.store(sum, at, isLast, last)
	})
	JMP(LabelRef("next"))

	Label("store")
	t.eachVector(c, acc, func(sum reg.VecVirtual, at Mem, isLast bool) {
		VMULPS(alpha, sum, sum)
		t.store(sum, at, isLast, last)
	})
	Label("next")
}

// eachVector calls do for every accumulator and its place in c, and moves c on.
func (t tier) eachVector(c Mem, acc [][]reg.VecVirtual, do func(sum reg.VecVirtual, at Mem, isLast bool)) {
	base, rowC := GP64(), Load(Param("rowC"), GP64())
	MOVQ(c, base)
	for _, row := range acc {
		for j, sum := range row {
			do(sum, Mem{Base: base, Disp: j * t.width}, j == len(row)-1)
		}
		ADDQ(rowC, base)
	}
	MOVQ(base, c)
}

func (t tier) store(r reg.VecVirtual, at Mem, isLast bool, last first) {
	if isLast {
		last.store(r, at)
	} else {
		VMOVUPS(r, at)
	}
}

// paramAddr returns where an argument lies on the stack.
func paramAddr(name string) Mem {
	b, err := Param(name).Resolve()
	if err != nil {
		panic(err)
	}
	return b.Addr
}

// rowPointers addresses the elements of a column of A, rowA bytes apart, with
// few registers: every fifth element has its own, and the four after it and
// some more are rowA or 3·rowA, scaled, away.
type rowPointers struct {
	bases      []reg.GPVirtual
	one, three reg.GPVirtual
}

func newRowPointers(rows int) rowPointers {
	p := rowPointers{one: GP64(), three: GP64()}
	base := GP64()
	Load(Param("a"), base)
	Load(Param("rowA"), p.one)
	LEAQ(Mem{Base: p.one, Index: p.one, Scale: 2}, p.three)
	p.bases = append(p.bases, base)
	for len(p.bases)*5 < rows {
		next := GP64()
		LEAQ(Mem{Base: base, Index: p.one, Scale: 4}, next)
		ADDQ(p.one, next)
		p.bases, base = append(p.bases, next), next
	}
	return p
}

// at returns the place of element i.
func (p rowPointers) at(i int) Mem {
	m := Mem{Base: p.bases[i/5]}
	switch i % 5 {
	case 1, 2, 4:
		m.Index, m.Scale = p.one, uint8(i%5)
	case 3:
		m.Index, m.Scale = p.three, 1
	}
	return m
}

// nextTile moves p, which went through the depth, to the start of the next tile's rows.
func (p rowPointers) nextTile() {
	back, on := GP64(), GP64()
	Load(Param("depth"), back)
	IMULQ(paramAddr("colA"), back)
	Load(Param("nextA"), on)
	SUBQ(back, on)
	for _, base := range p.bases {
		ADDQ(on, base)
	}
}
