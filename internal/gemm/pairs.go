package gemm

import (
	"runtime"
	"sync/atomic"
	"unsafe"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
)

// Products of bfloat16 are C = alpha·A·B + beta·C in the loops of BLIS (Van Zee and van de Geijn 2015, ACM TOMS 41(3)). The
// smaller of A and B is the shared operand, which takes the place of BLIS's B; its lines are rows of A or columns of B.
//
//	for parts of KC of the depth                              pairs.run
//	  for groups of NC lines of the shared operand            pairs.run: all workers pack the group
//	    for strips of MC lines of the other operand           pairs.multiply: a worker packs its strip
//	      for panels of NR lines of the group                 pairStrip.multiplyPanel
//	        for panels of MR lines of the strip               Pairs.Mul
//	          C[MR][NR] += A[MR][KC]·B[KC][NR]
//
// MR and NR are both 32. Which of the sums go to C at once, and which wait in memory to be rounded, is decided in
// multiplyPanel.

// Pairs is what a tier does on bfloat16 that it multiplies by pairs along the
// depth, with sums in float32: AMX and AVX512_BF16. Subnormal numbers may count
// as 0.
//
// Operands are packed in panels of MR lines, in steps of kr. What a step lacks of the depth is 0. What a panel lacks of
// lines may be any numbers, which reach no element of C. In a step, a panel of A has the depth of each line side by side,
// one of B the pairs of all lines, for lines 0 to 15 and then for 16 to 31.
type Pairs struct {
	// Mul computes a product of panels with sums of float32. MulBF16, unless nil, does it with sums that are rounded to
	// bfloat16 as Finish does, to c in place of C, and without Add.
	Mul     func(p PanelProduct)
	MulBF16 func(p PanelProduct, c []uint16)

	Rows        int // Mul does this many rows at a time
	LeastPanels int // of a strip of a worker's own operand, if the operand has as many

	// LinesA and LinesB pack lines that run along the depth, and AcrossA and AcrossB rows that lie across the
	// lines, to panels of A and of B.
	LinesA, LinesB, AcrossA, AcrossB packing

	// Transpose converts steps of panels of B to steps of panels of A.
	Transpose func(steps []uint16)

	// Finish sets a part of C to alpha·sums + beta·C. The rows of sums are
	// mr apart. It does not read C if beta is 0.
	Finish func(c Matrix, row, col, rows, cols int, alpha float32, sums []float32, beta float32)
}

// packing packs lines of an operand, stride apart along or across them, to panels that lie next apart.
type packing func(dst, src []uint16, lines, depth, stride, next int)

// PanelProduct is the innermost loop: c = a·b, or c + a·b with Add, for panels a and b at Count places, between which a, b
// and c move on by NextA, NextB and NextC elements.
type PanelProduct struct {
	A, B    []uint16
	C       []float32
	Rows    int // of each panel of A, rounded up to a multiple of Pairs.Rows
	Count   int
	Steps   int // of kr of the depth
	NextA   int
	NextB   int
	NextC   int
	StrideC int // elements between rows of C
	Add     bool
	Ahead   *Ahead // may be nil
}

const (
	mr      = 32 // MR and NR: lines of a panel
	kr      = 32 // depth of a step
	stepLen = mr * kr
)

// The sizes of parts. A worker's strip of its own operand, 512 KiB, stays in the second-level
// cache. The shared operand's group is 2 MiB: half of that would stay there too, but the other
// operand would be packed twice as often, which costs more.
const (
	kc          = 2048    // KC: the most depth that is packed at a time where sums can be held
	kcWhole     = 4096    // and where they cannot, lest they be rounded twice
	mcLen       = 1 << 18 // MC·KC: elements of a strip
	mcPanels    = 8
	wantStrips  = 16
	leastAcross = 2       // panels of a strip whose lines lie across: of each row, a panel is but a line of the cache
	ncLen       = 1 << 20 // NC·KC: elements of a group
	pieceLines  = 64      // of the shared operand that a worker packs at a time
	minPairs    = 1 << 10 // elements of B from which packing pays
	nearLen     = 1 << 18 // elements of a group that stays in the second cache
)

// PairsBytes is the most memory of a bfloat16 product in addition to ScratchBytes: the
// packed part of the smaller operand. Where C cannot hold the sums of several parts of the depth, a block of
// sums takes half of that memory.
const PairsBytes = 2*ncLen + 4*lineFloats

// HasPairs reports whether bfloat16 products are faster than float32 products.
func HasPairs() bool { return Registry.Best().Pairs != nil }

// pairs is a product of bfloat16 that is under way. The smaller of A and B is
// packed for all workers; of the other, each worker packs strips of its own.
type pairs struct {
	args
	kern *Pairs

	sharesA         bool
	lines, ownLines int // of the shared operand, and of the other
	kc, parts       int // the most depth of a part, and their number
	nc              int // lines of the shared operand that are packed at a time, a group
	mc, strips      int // lines of a strip, and how many there are
	pc, pcEnd       int // the part
	jc, jcLines     int // the group: first line, lines
	pieces          int // in which it is packed: of pieceLines lines, or of pieceDepth where it lies across
	pieceDepth      int
	ready           int32 // how many of them are
	old             float32
	held            []float32 // sums of C, a panelPair after the other, of a product that cannot add to C
	packed          []uint16  // the group
}

// takesPairs says whether the product is one for pairs. It does not ask for m, nor
// does any sum depend on it: beyond few rows, a row of C has the same bits in products of fewer rows.
func (g *args) takesPairs() bool {
	isPairs := g.a.Data.DType() == snug.BF16 && g.b.Data.DType() == snug.BF16
	return g.kern.Pairs != nil && isPairs && g.k > 0 && float64(g.n)*float64(g.k) >= minPairs
}

// newPairs lays out a product whose parts have at most the given depth, and whose group has at most room
// elements.
func newPairs(g *args, depth, room int) pairs {
	p := pairs{args: *g, kern: g.kern.Pairs, sharesA: g.m < g.n, lines: g.n, ownLines: g.m, parts: cpu.Chunks(g.k, depth)}
	if p.sharesA {
		p.lines, p.ownLines = g.m, g.n
	}
	p.kc = cpu.Chunks(cpu.Chunks(g.k, p.parts), kr) * kr
	p.nc = min(mr*cpu.Chunks(p.lines, mr), room/p.kc/mr*mr)
	panels, least := cpu.Chunks(p.ownLines, mr), p.kern.LeastPanels
	if !p.along(!p.sharesA) {
		least = max(least, leastAcross)
	}
	most := min(mcPanels, max(1, mcLen/p.kc/mr), max(least, cpu.Chunks(panels, wantStrips)))
	p.strips = cpu.Chunks(panels, most)
	p.mc = cpu.Chunks(panels, p.strips) * mr
	p.strips = cpu.Chunks(p.ownLines, p.mc)
	return p
}

// runPairs computes the product, with tasks if it is for several workers.
func (g *args) runPairs(parallel bool) {
	depth := kc
	if !g.c.isFloat32() {
		if depth = kcWhole; g.k > depth {
			g.deepPairs(parallel)
			return
		}
	}
	p := newPairs(g, depth, ncLen)
	buf := sharedScratch.Get(p.groupFloats())
	defer sharedScratch.Put(buf)
	p.run(parallel, *buf)
}

// The most lines of the shared and of the other operand that meet in a block of C whose sums a deep
// product holds. Workers meet at the end of each part of the depth, so the other operand has many.
const (
	deepShared = 256
	deepOwn    = 1024
)

// deepPairs computes a product whose sums take several parts of the depth, and
// C cannot hold: it does so for a block of C at a time.
func (g *args) deepPairs(parallel bool) {
	rows, cols := deepOwn, deepShared
	if g.m < g.n {
		rows, cols = deepShared, deepOwn
	}
	held := cpu.Chunks(min(rows, g.m), mr) * cpu.Chunks(min(cols, g.n), mr) * stepLen
	const room = ncLen - 2*deepShared*deepOwn
	buf := sharedScratch.Get(held + room/2 + lineFloats)
	defer sharedScratch.Put(buf)
	for row := 0; row < g.m; row += rows {
		for col := 0; col < g.n; col += cols {
			block := *g
			block.m, block.n = min(rows, g.m-row), min(cols, g.n-col)
			block.a, block.b, block.c = g.a.from(row, 0), g.b.from(0, col), g.c.from(row, col)
			p := newPairs(&block, kc, room)
			p.held = (*buf)[:held]
			p.run(parallel, (*buf)[held:])
		}
	}
}

// from returns the part of an operand from element (i, j) on.
func (m Matrix) from(i, j int) Matrix {
	if m.Trans {
		i, j = j, i
	}
	m.Data, _ = m.Data.Slice(i*m.Stride+j, m.Data.Len()) // an element
	return m
}

// groupFloats returns the floats of memory of a group.
func (p *pairs) groupFloats() int { return p.nc*p.kc/2 + lineFloats }

// run computes the product. C holds sums if the depth has several parts. buf has groupFloats.
func (p *pairs) run(parallel bool, buf []float32) {
	parallel = parallel && p.strips > 1
	p.packed = alignedWords(buf)
	for part := range p.parts {
		p.pc, p.pcEnd = min(part*p.kc, p.k), min((part+1)*p.kc, p.k)
		p.old = 1
		if part == 0 {
			p.old = p.beta
		}
		for p.jc = 0; p.jc < p.lines; p.jc += p.nc {
			p.jcLines = min(p.nc, p.lines-p.jc)
			p.cutGroup()
			if parallel {
				pairItems.Run(p.pieces+p.strips, *p)
				continue
			}
			for i := range p.pieces + p.strips {
				p.do(i)
			}
		}
	}
}

// pairItems packs the group and multiplies all strips with it.
var pairItems = cpu.NewTask(func(p *pairs, item int) { p.do(item) })

// do packs a piece of the group or multiplies a strip. Pieces come first, so that
// somebody is at work on each when the first strip waits for them.
func (p *pairs) do(item int) {
	if item < p.pieces {
		p.packShared(item)
		atomic.AddInt32(&p.ready, 1)
	} else {
		p.multiply(item - p.pieces)
	}
}

// wait returns when the group is packed.
func (p *pairs) wait() {
	for atomic.LoadInt32(&p.ready) < int32(p.pieces) {
		runtime.Gosched()
	}
}

// steps returns the steps of the part, and panelLen the elements of a panel.
func (p *pairs) steps() int    { return cpu.Chunks(p.pcEnd-p.pc, kr) }
func (p *pairs) panelLen() int { return p.steps() * stepLen }

// cutGroup cuts the packing of the group into pieces. Rows that lie across the lines are read whole.
func (p *pairs) cutGroup() {
	p.pieces, p.ready = cpu.Chunks(p.jcLines, pieceLines), 0
	if !p.along(p.sharesA) {
		depth := p.pcEnd - p.pc
		p.pieceDepth = cpu.Chunks(cpu.Chunks(depth, p.pieces), kr) * kr
		p.pieces = cpu.Chunks(depth, p.pieceDepth)
	}
}

// packShared packs a piece of the group.
func (p *pairs) packShared(i int) {
	depth := p.pcEnd - p.pc
	if p.along(p.sharesA) {
		at, lines := i*pieceLines, min(pieceLines, p.jcLines-i*pieceLines)
		p.pack(p.packed[at*p.steps()*kr:], p.sharesA, p.jc+at, lines, 0, depth)
	} else {
		at := i * p.pieceDepth
		p.pack(p.packed, p.sharesA, p.jc, p.jcLines, at, min(p.pieceDepth, depth-at))
	}
}

// along says whether the lines of A or of B run along the depth.
func (p *pairs) along(isA bool) bool {
	if isA {
		return !p.a.Trans
	}
	return p.b.Trans
}

// pack packs depth elements, from element at of the part on, of lines from line lo on, of A or of B.
func (p *pairs) pack(dst []uint16, isA bool, lo, lines, at, depth int) {
	m, packLines, packRows := p.b, p.kern.LinesB, p.kern.AcrossB
	if isA {
		m, packLines, packRows = p.a, p.kern.LinesA, p.kern.AcrossA
	}
	src := words(m.Data)
	dst = dst[at*mr : cpu.Chunks(lines, mr)*p.panelLen()]
	if p.along(isA) {
		packLines(dst, src[lo*m.Stride+p.pc+at:], lines, depth, m.Stride, p.panelLen())
	} else {
		packRows(dst, src[(p.pc+at)*m.Stride+lo:], lines, depth, m.Stride, p.panelLen())
	}
}

// multiply multiplies a strip with the group.
func (p *pairs) multiply(strip int) {
	buf := scratch.Get(ScratchBytes / 4)
	defer scratch.Put(buf)
	lo := strip * p.mc
	lines := min(p.mc, p.ownLines-lo)
	sums, own := (*buf)[:mcPanels*stepLen], alignedWords((*buf)[mcPanels*stepLen:])
	p.pack(own, !p.sharesA, lo, lines, 0, p.pcEnd-p.pc)
	p.wait()
	ahead := (*Ahead)(unsafe.Pointer(&(*buf)[ScratchBytes/4-aheadFloats]))
	*ahead = p.next(strip)
	s := pairStrip{pairs: *p, ahead: ahead, lo: lo, lines: lines, panels: cpu.Chunks(lines, mr), own: own, sums: sums}
	for i := s.multiplyRows(); i < p.jcLines; i += mr {
		s.multiplyPanel(p.packed[i*s.steps()*kr:], p.jc+i, min(mr, p.jcLines-i))
	}
}

// pairStrip is a worker's strip of its own operand, packed.
type pairStrip struct {
	pairs
	ahead             *Ahead // in scratch memory
	lo, lines, panels int
	own               []uint16
	sums              []float32
}

// multiplyPanel multiplies the strip with a panel of the shared operand, the
// lines from lo on. Where the sums are what C is to hold, but for their rounding, whole panels are summed
// in place, and the others in the same way.
func (s *pairStrip) multiplyPanel(panel []uint16, lo, lines int) {
	if s.held != nil {
		s.holdPanel(panel, lo, lines)
		return
	}
	whole, rows := lines == mr, mr
	if s.sharesA {
		whole, rows = lines%s.kern.Rows == 0, lines
	}
	direct := 0
	if whole && s.isDirect() {
		direct = s.lines / mr
	}
	if direct > 0 {
		row, col, next := s.lo, lo, mr*s.c.Stride
		if s.sharesA {
			row, col, next = lo, s.lo, mr
		}
		a, b, nextA, nextB := s.operands(panel, 0)
		s.mul(PanelProduct{A: a, B: b, Rows: rows, Count: direct, NextA: nextA, NextB: nextB, NextC: next}, row, col)
	}
	if direct == s.panels {
		return
	}
	old := s.old
	if s.inPlace() && old == 1 {
		for i := direct; i < s.panels; i++ {
			s.part(lo, lines, i, direct).load()
		}
		old = 0
	}
	s.sum(panel, rows, direct, old != s.old)
	s.finish(lo, lines, direct, old)
}

// inPlace says whether C can hold sums, and isDirect whether the sums of whole panels go to C as they are.
func (s *pairStrip) inPlace() bool {
	return s.alpha == 1 && (s.old == 0 || s.old == 1) && s.c.isFloat32()
}

func (s *pairStrip) isDirect() bool {
	return s.inPlace() || s.alpha == 1 && s.old == 0 && s.c.Data.DType() == snug.BF16 && s.kern.MulBF16 != nil
}

// mul multiplies panels of A and B to C, from an element on.
func (s *pairStrip) mul(p PanelProduct, row, col int) {
	at := row*s.c.Stride + col
	p.Steps, p.StrideC, p.Add, p.Ahead = s.steps(), s.c.Stride, s.old == 1, s.ahead
	if s.c.isFloat32() {
		p.C = s.c.Data.Float32s()[at:]
		s.kern.Mul(p)
	} else {
		s.kern.MulBF16(p, words(s.c.Data)[at:])
	}
}

// multiplyRows multiplies some rows after the other with all whole panels of a B that stays in the second cache, so that
// whole rows of C are written. It returns how many columns it did.
func (s *pairStrip) multiplyRows() int {
	panels := s.jcLines / mr
	if s.sharesA || panels < 2 || s.jcLines*s.steps()*kr > nearLen || s.held != nil || s.lines%s.kern.Rows != 0 || !s.isDirect() {
		return 0
	}
	for i := 0; i < s.lines; i += s.kern.Rows {
		in := i % mr
		a := s.own[(i-in)*s.steps()*kr+in*kr:]
		s.mul(PanelProduct{A: a, B: s.packed, Rows: s.kern.Rows, Count: panels, NextB: s.panelLen(), NextC: mr}, s.lo+i, s.jc)
	}
	return panels * mr
}

// holdPanel is multiplyPanel where sums are held from part to part of the depth.
func (s *pairStrip) holdPanel(panel []uint16, lo, lines int) {
	at := (lo/mr*cpu.Chunks(s.ownLines, mr) + s.lo/mr) * stepLen
	s.sums = s.held[at:]
	s.sum(panel, mr, 0, s.pc > 0)
	if s.pcEnd == s.k {
		s.finish(lo, lines, 0, s.beta)
	}
}

// finish brings the sums of panels of the strip, from panel first on, to C.
func (s *pairStrip) finish(lo, lines, first int, old float32) {
	for i := first; i < s.panels; i++ {
		p := s.part(lo, lines, i, first)
		s.kern.Finish(s.c, p.row, p.col, p.rows, p.cols, s.alpha, p.sums, old)
	}
}

// panelPair is the part of C that two panels give, and its sums.
type panelPair struct {
	c                    Matrix
	row, col, rows, cols int
	sums                 []float32
}

// part returns the part of lines from lo on of the shared operand and panel i of the
// strip. The strip's sums begin with panel first.
func (s *pairStrip) part(lo, lines, i, first int) panelPair {
	p := panelPair{s.c, s.lo + i*mr, lo, min(mr, s.lines-i*mr), lines, s.sums[(i-first)*stepLen:][:stepLen]}
	if s.sharesA {
		p.row, p.col, p.rows, p.cols = p.col, p.row, p.cols, p.rows
	}
	return p
}

// load sets the sums to what a C of float32 holds.
func (p panelPair) load() {
	x := p.c.floats().at(p.row, p.col)
	for i := range p.rows {
		copy(p.sums[i*mr:], x.at(i, 0).x[:p.cols])
	}
}

// sum multiplies panels of the strip, from panel first on, with one of the shared operand, to the strip's sums.
func (s *pairStrip) sum(shared []uint16, rows, first int, add bool) {
	a, b, nextA, nextB := s.operands(shared, first)
	s.kern.Mul(PanelProduct{
		A: a, B: b, C: s.sums, Rows: rows, Count: s.panels - first, Steps: s.steps(),
		NextA: nextA, NextB: nextB, NextC: stepLen, StrideC: mr, Add: add, Ahead: s.ahead,
	})
}

// operands returns panels of A and of B, those of the strip from panel first on, and how far it is to the next.
func (s *pairStrip) operands(shared []uint16, first int) (a, b []uint16, nextA, nextB int) {
	own := s.own[first*s.panelLen():]
	if s.sharesA {
		return shared, own, 0, s.panelLen()
	}
	return own, shared, s.panelLen(), 0
}

// words returns the bits of a vector of bfloat16.
func words(v snug.View) []uint16 {
	x := v.BFloat16s()
	return unsafe.Slice((*uint16)(unsafe.Pointer(unsafe.SliceData(x))), len(x))
}

// lineFloats is what alignedWords may leave out.
const lineFloats = 16

// alignedWords returns buf from its first cache line on, as words.
func alignedWords(buf []float32) []uint16 {
	skip := -uintptr(unsafe.Pointer(unsafe.SliceData(buf))) % 64 / 4
	buf = buf[skip:]
	return unsafe.Slice((*uint16)(unsafe.Pointer(unsafe.SliceData(buf))), 2*len(buf))
}
