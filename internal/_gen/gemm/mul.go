package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"

	"github.com/snug-ml/snug/internal/_gen/half/vec"
)

// micro is a micro-kernel under construction. Its tile of C stays in registers: at most
// 6 rows of 2 vectors in 12 of AVX2's 16, 14 rows of 2 in 28 of AVX-512's 32.
type micro struct {
	tier
	acc   [2][]reg.VecVirtual // of C, the first vector of a row and the last, by row
	row   [2]reg.VecVirtual   // of B
	value reg.VecVirtual      // of A
	c     Mem                 // holds the place of the tile in C

	a               rowPointers
	colA, b, rowB   reg.Register
	far, left, rest reg.GPVirtual
}

// mul generates the micro-kernel: a loop over the depth for each number of rows and vectors, and what they share.
func (t tier) mul() {
	name := "mul" + t.name
	TEXT(name, NOSPLIT, "func(a, b, c *float32, tiles, rows, before, last, depth, rowA, colA, nextA, rowB, rowC int, alpha, beta float32)")
	Pragma("noescape")
	Doc(name+" multiplies for tiles of C, which lie below one another, with the same columns of B. Their rows",
		fmt.Sprintf("of A begin nextA bytes apart. A tile has up to %d rows, of last floats after before bytes: 0, or %d", t.rows, t.width),
		"for a vector.")
	m := micro{tier: t, c: AllocLocal(8), value: t.register()}
	for j := range m.acc {
		m.row[j] = t.register()
		for range t.rows {
			m.acc[j] = append(m.acc[j], t.register())
		}
	}
	at, tiles := Load(Param("c"), GP64()), Load(Param("tiles"), GP64())
	MOVQ(at, m.c)
	m.a = newRowPointers(t.rows)

	Label("tile")
	m.zero()
	m.b, m.left = Load(Param("b"), GP64()), GP64()
	Load(Param("depth"), m.left)
	if t.unrolls {
		m.unrolledLoops()
	} else {
		m.loops()
	}

	m.epilogue()
	DECQ(tiles)
	JZ(LabelRef("done"))
	m.a.nextTile()
	JMP(LabelRef("tile"))
	Label("done")
	VZEROUPPER()
	RET()
}

// loops goes through the depth by steps.
func (m *micro) loops() {
	m.rest = GP64()
	XORQ(m.rest, m.rest)
	CMPQ(m.left, Imm(3*near))
	JLE(LabelRef("near"))
	m.prefetch("early", PREFETCHT1)
	SUBQ(Imm(near), m.left)
	MOVQ(U32(near), m.rest)
	JMP(LabelRef("loop"))
	Label("near")
	m.prefetch("late", PREFETCHT0)
	Label("loop")
	m.strides()
	CMPQ(vec.ParamAddr("rows"), Imm(quickRows))
	JG(LabelRef("slow"))
	SHLQ(Imm(farAhead-ahead), m.far)
	Label("slow")
	m.chooseLoop()
	XCHGQ(m.rest, m.left)
	TESTQ(m.left, m.left)
	JNZ(LabelRef("near"))
}

// unrolledLoops goes through the depth by some steps at a time.
func (m *micro) unrolledLoops() {
	m.prefetch("tileOfC", PREFETCHT0)
	m.strides()
	SHLQ(Imm(farAhead-ahead), m.far)
	CMPQ(vec.ParamAddr("before"), Imm(0))
	JE(LabelRef("one"))
	m.columns()
	m.chooseLoop()
}

// strides loads the distances between what steps read.
func (m *micro) strides() {
	m.colA, m.rowB, m.far = Load(Param("colA"), GP64()), Load(Param("rowB"), GP64()), GP64()
	MOVQ(m.rowB, m.far)
	SHLQ(Imm(ahead), m.far)
}

// chooseLoop generates the loops for each number of rows and vectors.
func (m *micro) chooseLoop() {
	CMPQ(vec.ParamAddr("before"), Imm(0))
	JE(LabelRef("one"))
	m.choose(2, 1, m.rows)
	Label("one")
	m.choose(1, 1, m.rows)
	Label("stepped")
}

// zero clears the sums.
func (m *micro) zero() {
	for i := range m.rows {
		if i&(i-1) == 0 && i > 0 {
			CMPQ(vec.ParamAddr("rows"), Imm(uint64(i)))
			JLE(LabelRef("zeroed"))
		}
		for j := range m.acc {
			m.tier.zero(m.acc[j][i])
		}
	}
	Label("zeroed")
}

// choose goes to the loop for the rows, which are from lo to hi.
func (m *micro) choose(vectors, lo, hi int) {
	if lo == hi {
		m.loop(vectors, lo)
		return
	}
	middle := (lo + hi) / 2
	higher := fmt.Sprintf("from%dx%d", middle+1, vectors)
	CMPQ(vec.ParamAddr("rows"), Imm(uint64(middle)))
	JG(LabelRef(higher))
	m.choose(vectors, lo, middle)
	Label(higher)
	m.choose(vectors, middle+1, hi)
}

// loop generates a loop along the depth. A step loads a row of B, broadcasts each of A's values and
// does rows·vectors multiply-adds. With AVX-512 that is far more arithmetic than loads; AVX2's few registers make it as many
// instructions as the processor takes meanwhile, so its loops are unrolled, and do not prefetch a B that meets many rows.
func (m *micro) loop(vectors, rows int) {
	label := fmt.Sprintf("loop%dx%d", rows, vectors)
	fetch := PREFETCHT0
	if rows <= quickRows {
		fetch = PREFETCHT1
	}
	steps := func(n int) {
		for range n {
			for j := 0; j < vectors*m.width && (!m.unrolls || rows <= coldRows); j += 64 {
				fetch(Mem{Base: m.b, Index: m.far, Scale: 1, Disp: j})
			}
			m.step(vectors, rows, 0, m.a.at)
			for _, base := range m.a.bases[:(rows+4)/5] {
				ADDQ(m.colA, base)
			}
			ADDQ(m.rowB, m.b)
		}
	}
	if m.unrolls {
		m.unrolled(label, steps)
	} else {
		Label(label)
		steps(1)
		DECQ(m.left)
		JNZ(LabelRef(label))
	}
	JMP(LabelRef("stepped"))
}

// step adds the products of a row of B, some bytes on, and the elements of a column of A.
func (m *micro) step(vectors, rows, on int, a func(row int) Mem) {
	first := 2 - vectors
	for j := first; j < 2; j++ {
		VMOVUPS(Mem{Base: m.b, Disp: on + (j-first)*m.width}, m.row[j])
	}
	for i := range rows {
		VBROADCASTSS(a(i), m.value)
		for j := first; j < 2; j++ {
			VFMADD231PS(m.value, m.row[j], m.acc[j][i])
		}
	}
}

// columns goes through the depth where B is a packed panel and a column of A is contiguous: one pointer reaches it.
func (m *micro) columns() {
	CMPQ(vec.ParamAddr("rowA"), Imm(4))
	JNE(LabelRef("strided"))
	CMPQ(m.rowB, Imm(uint64(2*m.width)))
	JNE(LabelRef("strided"))
	for rows := m.rows; rows > coldRows; rows-- {
		label, fewer := fmt.Sprint("column", rows), fmt.Sprint("below", rows)
		CMPQ(vec.ParamAddr("rows"), Imm(uint64(rows)))
		JNE(LabelRef(fewer))
		m.unrolled(label, func(steps int) {
			for u := range steps {
				m.step(2, rows, 2*u*m.width, func(row int) Mem { return Mem{Base: m.a.bases[0], Disp: 4 * row} })
				ADDQ(m.colA, m.a.bases[0])
			}
			ADDQ(U32(2*m.width*steps), m.b)
		})
		for i, base := range m.a.bases[1:] {
			LEAQ(Mem{Base: m.a.bases[0], Disp: 4 * 5 * (i + 1)}, base)
		}
		JMP(LabelRef("stepped"))
		Label(fewer)
	}
	Label("strided")
}

// unrolled generates a loop of steps, some at a time.
func (m *micro) unrolled(label string, steps func(n int)) {
	SUBQ(Imm(unroll), m.left)
	JLT(LabelRef(label + "Rest"))
	Label(label)
	steps(unroll)
	SUBQ(Imm(unroll), m.left)
	JGE(LabelRef(label))
	Label(label + "Rest")
	ADDQ(Imm(unroll), m.left)
	JZ(LabelRef(label + "Done"))
	Label(label + "Single")
	steps(1)
	DECQ(m.left)
	JNZ(LabelRef(label + "Single"))
	Label(label + "Done")
}

const (
	unroll   = 4 // steps of the depth that an unrolled loop does at a time
	coldRows = 3 // up to so many rows of A meet a row of B, its memory is what they wait for
)

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
func (m *micro) prefetch(label string, prefetch func(Op)) {
	at, before, rowC, left := GP64(), GP64(), Load(Param("rowC"), GP64()), Load(Param("rows"), GP64())
	MOVQ(m.c, at)
	if m.width == 64 {
		Load(Param("before"), before)
	}
	Label(label)
	prefetch(Mem{Base: at})
	if m.width == 64 {
		prefetch(Mem{Base: at, Index: before, Scale: 1})
	}
	ADDQ(rowC, at)
	DECQ(left)
	JNZ(LabelRef(label))
}

// epilogue stores alpha·acc + beta·c, of the last vectors only some lanes, and
// moves c on. With beta 0, it does not read c.
func (m *micro) epilogue() {
	e := epilogue{micro: m, alpha: m.register(), beta: m.register(), old: m.register(), at: GP64()}
	VBROADCASTSS(vec.ParamAddr("alpha"), e.alpha)
	VBROADCASTSS(vec.ParamAddr("beta"), e.beta)
	e.rows, e.rowC = Load(Param("rows"), GP64()), Load(Param("rowC"), GP64())
	bits := GP32()
	MOVL(vec.ParamAddr("beta"), bits)
	SHLL(Imm(1), bits) // drops the sign
	JZ(LabelRef("set"))
	e.tile("add", true)
	JMP(LabelRef("next"))
	Label("set")
	e.tile("set", false)
	Label("next")
	SUBQ(vec.ParamAddr("before"), e.at)
	MOVQ(e.at, m.c)
}

type epilogue struct {
	*micro
	alpha, beta, old reg.VecVirtual
	at               reg.GPVirtual
	rows, rowC       reg.Register
}

// tile stores both columns of vectors.
func (e epilogue) tile(label string, add bool) {
	all := moves{func(m Mem, r reg.VecVirtual) { VMOVUPS(m, r) }, func(r reg.VecVirtual, m Mem) { VMOVUPS(r, m) }}
	MOVQ(e.c, e.at)
	CMPQ(vec.ParamAddr("before"), Imm(0))
	JE(LabelRef(label + "Last"))
	e.column(label+"Last", e.acc[0], add, all)
	MOVQ(e.c, e.at)
	ADDQ(vec.ParamAddr("before"), e.at)
	n := Load(Param("last"), GP64()).(reg.GPVirtual)
	CMPQ(n, Imm(uint64(e.lanes()))) // masked stores are slow
	JNE(LabelRef(label + "Some"))
	e.column(label+"All", e.acc[1], add, all)
	JMP(LabelRef("next"))
	Label(label + "Some")
	some := e.tier.first(n)
	e.column(label+"Done", e.acc[1], add, moves{some.load, some.store})
}

// moves is how the vectors of a column are loaded and stored.
type moves struct {
	load  func(Mem, reg.VecVirtual)
	store func(reg.VecVirtual, Mem)
}

// column stores a column of vectors, from at on.
func (e epilogue) column(end string, acc []reg.VecVirtual, add bool, v moves) {
	for i, sum := range acc {
		VMULPS(e.alpha, sum, sum)
		if add {
			v.load(Mem{Base: e.at}, e.old)
			VFMADD231PS(e.old, e.beta, sum)
		}
		v.store(sum, Mem{Base: e.at})
		ADDQ(e.rowC, e.at)
		if i < len(acc)-1 {
			CMPQ(e.rows, Imm(uint64(i+1)))
			JE(LabelRef(end))
		}
	}
	Label(end)
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
	IMULQ(vec.ParamAddr("colA"), back)
	Load(Param("nextA"), on)
	SUBQ(back, on)
	for _, base := range p.bases {
		ADDQ(on, base)
	}
}
