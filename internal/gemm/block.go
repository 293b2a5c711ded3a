package gemm

import "github.com/snug-ml/snug/internal/cpu"

// block is the part of a product that one worker does at a time: the tile of C
// at (m0, n0), over the depth from k0 to k1-1.
type block struct {
	args
	m0, n0     int
	rows, cols int
	k0, k1     int
	old        float32   // factor of what the tile holds: beta, then 1
	from       int       // the column of the tile from which B is packed
	packed     []float32 // panels of B
	work       []float32
	to         strided // the tile: C's memory, or scratch if it is staged
}

// setDepth moves the block to block p of the depth.
func (t *block) setDepth(p int) {
	t.k0, t.k1 = part(t.k, t.blocks, p)
	t.old = 1
	if p == 0 {
		t.old = t.beta
	}
}

func (t *block) depth() int { return t.k1 - t.k0 }

const (
	stripPanels = 5   // panels of A that are prepared together, unless the kernel says how many
	rowGap      = 16  // floats between their rows, which keeps these from the same sets of the caches
	nearRows    = 256 // floats from row to row with which the rows of a panel lie in enough sets
)

// rowsOfA are rows of a tile's part of A.
type rowsOfA struct {
	strided
	panel int // floats of a packed panel; 0: the rows lie as in a matrix
}

// from returns the panels from i on, of rows each, and the distance between them.
func (s rowsOfA) from(i, rows, before int) (strided, int) {
	if s.panel == 0 {
		return s.at(before, 0), rows * s.row
	}
	return strided{s.x[i*s.panel:], s.row, s.col}, s.panel
}

// strips returns the number of strips of the tile.
func (t *block) strips() int { return cpu.Chunks(t.rows, t.kern.strip()*t.kern.MR) }

// strip returns rows lo to hi-1 of the tile's part of A: in A's memory, or in work if they need conversion, or
// if rows or columns lie far apart.
func (t *block) strip(lo, hi int) rowsOfA {
	switch {
	case t.a.isFloat32() && (t.a.Trans && t.a.Stride < 512 || !t.a.Trans && (t.a.Stride <= nearRows || t.n <= skinny)):
		return rowsOfA{strided: t.a.floats().at(t.m0+lo, t.k0)}
	case t.a.Trans:
		t.lines(t.work, t.a, t.k0, t.k1, t.m0+lo, hi-lo, hi-lo)
		return rowsOfA{strided: strided{t.work, 1, hi - lo}}
	case t.a.isFloat32():
		return t.packPanels(hi-lo, func(first, _ int) strided { return t.a.floats().at(t.m0+lo+first, t.k0) })
	}
	pitch := t.depth() + rowGap
	if t.kern.Columns && t.n > skinny {
		lines := t.work[t.kern.strip()*t.kern.Pitch()*t.depth():] // of a panel, beside those that are made of them
		return t.packPanels(hi-lo, func(first, end int) strided {
			t.lines(lines, t.a, t.m0+lo+first, t.m0+lo+end, t.k0, t.depth(), pitch)
			return strided{lines, pitch, 1}
		})
	}
	t.lines(t.work, t.a, t.m0+lo, t.m0+hi, t.k0, t.depth(), pitch)
	return rowsOfA{strided: strided{t.work, pitch, 1}}
}

// packPanels packs rows in the panels that the micro-kernel reads. from returns some of the rows as lines.
func (t *block) packPanels(rows int, from func(first, end int) strided) rowsOfA {
	panels, pitch := t.kern.Panels(rows), t.kern.Pitch()
	s := rowsOfA{strided{t.work, 1, pitch}, pitch * t.depth()}
	for i := range panels {
		first, end := t.kern.PanelOf(rows, i)
		lines := from(first, end)
		t.kern.PackLines(s.x[i*s.panel:], lines.x, end-first, t.depth(), lines.row, pitch)
	}
	return s
}

// mulStrip multiplies rows lo to hi-1 of the tile; a is their part of A. A panel of B meets all panels of the strip
// while it is in the first-level cache.
func (t *block) mulStrip(a rowsOfA, lo, hi int) {
	nr, depth := t.kern.NR, t.depth()
	panels := cpu.Chunks(hi-lo, t.kern.MR)
	rows, higher := (hi-lo)/panels, (hi-lo)%panels // the first have a row more
	for q := 0; q < t.cols; q += nr {
		b := strided{t.packed[q*depth:], nr, 1}
		if q < t.from {
			b = t.b.floats().at(t.k0, t.n0+q)
		}
		cols := min(nr, t.cols-q)
		if higher > 0 {
			x, next := a.from(0, rows+1, 0)
			t.kern.Mul(higher, rows+1, cols, depth, t.alpha, x, next, b, t.old, t.to.at(lo, q))
		}
		if higher < panels {
			i := higher * (rows + 1)
			x, next := a.from(higher, rows, i)
			t.kern.Mul(panels-higher, rows, cols, depth, t.alpha, x, next, b, t.old, t.to.at(lo+i, q))
		}
	}
}

// lines copies n elements, from element at, of rows lo to hi-1 of m's memory to
// dst, pitch apart, as float32. It may write up to NR-1 floats beyond a line.
func (t *block) lines(dst []float32, m Matrix, lo, hi, at, n, pitch int) {
	t.kern.CopyRows(dst, m.Data, lo*m.Stride+at, hi-lo, n, m.Stride, pitch, t.kern.NR)
}
