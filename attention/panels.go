package attention

import (
	"unsafe"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/gemm"
	"github.com/snug-ml/snug/internal/half"
	"github.com/snug-ml/snug/internal/rowwise"
)

// panel is how many lines a panel of bfloat16 has, and how deep a step is; see [gemm.Pairs].
const panel = rowwise.TileCols

// panels is a factor of products of bfloat16, packed. Lines and depth are multiples of panel; zeros fill up
// the depth, and anything the lines.
type panels struct {
	x     []uint16
	depth int
}

// up returns n rounded up to a multiple of panel.
func up(n int) int { return cpu.Chunks(n, panel) * panel }

// panels hands out a part for a factor.
func (a *arena) panels(lines, depth int) panels {
	lines, depth = up(lines), up(depth)
	return panels{words(a.halves(lines, depth)), depth}
}

// panelsLen returns the float32 elements that panels takes.
func panelsLen(lines, depth int) int { return up(lines) * up(depth) / 2 }

// words returns the elements of a factor in scratch.
func words(f factor) []uint16 {
	x := f.view.BFloat16s()[f.at:]
	return unsafe.Slice((*uint16)(unsafe.Pointer(unsafe.SliceData(x))), len(x))
}

// from returns the elements from a line and a depth on, multiples of panel.
func (p panels) from(line, depth int) []uint16 { return p.x[line*p.depth+depth*panel:] }

// left packs the rows of f as lines of a left factor.
func (p panels) left(f factor) {
	if f.rows > 0 {
		gemm.Registry.Best().Pairs.LinesA(p.x, words(f), f.rows, f.cols, f.stride, panel*p.depth)
	}
}

// right packs the rows of f as lines of a right factor.
func (p panels) right(f factor) {
	if f.rows > 0 {
		gemm.Registry.Best().Pairs.LinesB(p.x, words(f), f.rows, f.cols, f.stride, panel*p.depth)
	}
}

// across packs the columns of f as lines of a right factor.
func (p panels) across(f factor) {
	if f.rows > 0 {
		gemm.Registry.Best().Pairs.AcrossB(p.x, words(f), f.cols, f.rows, f.stride, panel*p.depth)
	}
}

// keyPanels is a tile of keys and values as products take them: bfloat16, or keys of float32 that lie across
// in panels of as many as the matrix product has columns.
type keyPanels struct {
	pairs  bool
	k, v   panels
	across []float32
	width  int       // of a panel of across; 0: keys are not packed
	rows   []float32 // scratch for queries that meet across
}

// fewQueries is the most queries for which keys are not packed: it takes longer than their product.
const fewQueries = 16

func newKeyPanels(scratch *arena, c *Options, dt snug.DType, queries int) (p keyPanels) {
	switch {
	case queries <= fewQueries:
	case dt == snug.BF16 && gemm.HasPairs() && rowwise.Pairs.Best() != nil && !c.cached():
		p.pairs, p.k, p.v = true, scratch.panels(tileK, c.Dim), scratch.panels(c.DimV, tileK)
	default:
		p.width = gemm.Registry.Best().NR
		p.across, p.rows = scratch.floats(acrossLen(c.Dim)), scratch.floats(queriesLen(c.Dim))
	}
	return p
}

// acrossLen returns the elements of across. Packing writes up to 15 rows of a panel more.
func acrossLen(dim int) int { return tileK*dim + 15*panel }

// queriesLen returns the elements of a block of packed queries.
func queriesLen(dim int) int {
	k := gemm.Registry.Best()
	return k.Panels(blockQ)*k.Pitch()*dim + 15*k.Pitch()
}

// keyPanelsLen returns the float32 elements that newKeyPanels takes at most.
func (c *Options) keyPanelsLen() int {
	return max(acrossLen(c.Dim)+queriesLen(c.Dim), panelsLen(tileK, c.Dim)+panelsLen(c.DimV, tileK))
}

// load packs keys and values. Few queries take the values where they lie, a part of every row at a time, which is
// slow in memory: it fetches them in order first.
func (p *keyPanels) load(k, v factor) {
	switch {
	case p.width == 0 && !p.pairs && v.view.DType() == snug.F32 && v.stride == v.cols:
		x := v.view.Float32s()[v.at:][:v.rows*v.cols]
		rowwise.Registry.Best().Prefetch(unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(x))), 4*len(x)))
	case p.pairs:
		p.k.right(k)
		p.v.across(v)
	case p.width > 0:
		x := k.view.Float32s()[k.at:]
		for j := 0; j < k.rows; j += p.width {
			gemm.Registry.Best().PackLines(p.across[j*k.cols:], x[j*k.stride:], min(p.width, k.rows-j), k.cols, k.stride, p.width)
		}
	}
}

// align returns how many keys before the first of a block products begin.
func (p *keyPanels) align(from int) int {
	switch {
	case p.pairs:
		return from % panel
	case p.width > 0:
		return from % p.width
	}
	return 0
}

// multiply sets dst to the products of the queries and keys from to to-1, where from is aligned.
func (p *keyPanels) multiply(dst tile, q factor, k factor, from, to int) {
	if p.width == 0 {
		productT(dst, q, k.from(from).top(to-from))
		return
	}
	kern := gemm.Registry.Best()
	kern.MulRows(q.rows, to-from, q.cols, 1, p.left(kern, q), p.across[from*k.cols:], 0, dst.x, dst.stride)
}

// left returns queries as the left factor of float32: where they lie, converted, or as columns.
func (p *keyPanels) left(kern *gemm.Kernel, q factor) gemm.Rows {
	if q.view.DType() != snug.F32 {
		for i := range q.rows {
			half.Load(p.rows[i*q.cols:][:q.cols], q.view, q.at+i*q.stride)
		}
		return gemm.Rows{X: p.rows, Row: q.cols, Col: 1}
	}
	x := q.view.Float32s()[q.at:]
	if !kern.Columns {
		return gemm.Rows{X: x, Row: q.stride, Col: 1}
	}
	pitch := kern.Pitch()
	for i := range kern.Panels(q.rows) {
		lo, hi := kern.PanelOf(q.rows, i)
		kern.PackLines(p.rows[i*pitch*q.cols:], x[lo*q.stride:], hi-lo, q.cols, q.stride, pitch)
	}
	return gemm.Rows{X: p.rows, Row: 1, Col: pitch, Panel: pitch * q.cols}
}

// logitPairs sets dst to the products of some panels of queries and the keys from to to-1.
func (p *keyPanels) logitPairs(dst tile, q panels, row, rows, from, to int) {
	for i := 0; i < rows; i += panel {
		mulPanels(dst.from(i).left(to-from), q.from(row+i, 0), p.k, from, 0, p.k.depth, false)
	}
}

// addPairs adds the products of a panel of weights and the values from to to-1 to dst.
func (p *keyPanels) addPairs(dst tile, weights []uint16, from, to int) {
	mulPanels(dst, weights, p.v, 0, from, to-from, true)
}

// mulPanels sets dst, or adds to it, the product of a panel a with lines of b, from one and from a depth of it on.
func mulPanels(dst tile, a []uint16, b panels, line, from, depth int, add bool) {
	gemm.Registry.Best().Pairs.Mul(gemm.PanelProduct{
		A: a, B: b.from(line, from), C: dst.x, Rows: panel, Count: cpu.Chunks(dst.cols, panel), Steps: cpu.Chunks(depth, panel),
		NextB: panel * b.depth, NextC: panel, StrideC: dst.stride, Add: add,
	})
}
