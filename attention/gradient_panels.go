package attention

import (
	"unsafe"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/gemm"
	"github.com/snug-ml/snug/internal/rowwise"
)

// gradPanels are the packed factors of the products of gradients, for bfloat16. They are packed once for the
// loaded queries or keys, and the weights are written where the next products take them.
type gradPanels struct {
	on                           bool   // for these operands
	used                         bool   // for the block
	k, v, kAcross                panels // of the loaded keys
	q, dout, qAcross, doutAcross panels // of the loaded queries
	p, ds, dsAcross              []uint16
	masks                        []uint32 // of each query of the block, the keys that it sees
	row, rows, keys0, depth      int      // the part of the tiles that the block's panels cover: queries and keys
}

// takesPanels reports whether gradients can be computed in panels: they cover whole rows of the results.
func (c *Options) takesPanels() bool { return c.Dim%panel == 0 && c.DimV%panel == 0 }

// masksRow is the number of words of a row of masks.
const masksRow = tileK / 32

func newGradPanels(scratch *arena, c *Options, dt snug.DType) (p gradPanels) {
	if dt != snug.BF16 || !gemm.HasPairs() || rowwise.Pairs.Best() == nil || !c.takesPanels() {
		return p
	}
	p.on = true
	p.k, p.v, p.kAcross = scratch.panels(tileK, c.Dim), scratch.panels(tileK, c.DimV), scratch.panels(c.Dim, tileK)
	p.q, p.dout = scratch.panels(tileQ, c.Dim), scratch.panels(tileQ, c.DimV)
	p.qAcross, p.doutAcross = scratch.panels(c.Dim, tileQ), scratch.panels(c.DimV, tileQ)
	p.p, p.ds, p.dsAcross = words(scratch.halves(tileQ, tileK)), words(scratch.halves(tileQ, tileK)), words(scratch.halves(tileQ, tileK))
	m := scratch.floats(tileQ * masksRow)
	p.masks = unsafe.Slice((*uint32)(unsafe.Pointer(unsafe.SliceData(m))), len(m))
	return p
}

// gradPanelsLen returns the float32 elements that newGradPanels takes at most.
func (c *Options) gradPanelsLen() int {
	if !c.takesPanels() {
		return 0
	}
	return tileK*(2*c.Dim+c.DimV)/2 + tileQ*(c.Dim+c.DimV) + 3*tileQ*tileK/2 + tileQ*masksRow
}

// packQueries and packKeys pack the loaded queries and keys.
func (g *gradients) packQueries() {
	if p := &g.panels; p.on {
		p.q.left(g.q)
		p.dout.left(g.dout)
		p.qAcross.across(g.q)
		p.doutAcross.across(g.dout)
	}
}

func (g *gradients) packKeys() {
	if p := &g.panels; p.on {
		p.k.right(g.k)
		p.v.right(g.v)
		p.kAcross.across(g.k)
	}
}

// cover sets the part of the tiles that the panels of the block cover, and reports whether they can compute it:
// they lie in the tiles, and factors of weights that are 0 only there are neither NaN nor infinite.
func (g *gradients) cover(q0 int) bool {
	w, p := &g.seen, &g.panels
	row, from, to := w.lo-q0, w.from-g.k0, w.to-g.k0
	p.row, p.keys0 = row/panel*panel, from/panel*panel
	p.rows, p.depth = up(w.hi-q0)-p.row, up(to)-p.keys0
	end := min(up(to), g.k.rows)
	switch {
	case p.row+p.rows > g.q.rows:
		return false
	case w.full && p.row == row && p.rows == w.hi-w.lo && p.keys0 == from && end == to:
		return true
	}
	return g.q.from(p.row).top(p.rows).finite(g.sums.row) && g.dout.from(p.row).top(p.rows).finite(g.sums.row) &&
		g.k.from(p.keys0).top(end-p.keys0).finite(g.sums.row)
}

// setMasks sets masks to the keys that the queries of the block see.
func (g *gradients) setMasks(q0 int) {
	w, p := &g.seen, &g.panels
	before, above := w.from-g.k0-p.keys0, w.lo-q0-p.row
	for i := range p.rows {
		masks := p.masks[i*masksRow:][:p.depth/panel]
		lo, hi := 0, 0
		if n := i - above; n >= 0 && n < w.hi-w.lo {
			lo, hi = w.sees[n].Lo+before, w.sees[n].Hi+before
		}
		for c := range masks {
			masks[c] = ones(hi-c*panel) &^ ones(lo-c*panel)
		}
	}
}

// ones returns a word with the first n bits, of 32 at most, set.
func ones(n int) uint32 { return uint32(1<<min(max(n, 0), 32) - 1) }

// panelGrads computes p and ds of the block in panels.
func (g *gradients) panelGrads(q0 int) {
	c, p, k := g.scorer.c, &g.panels, rowwise.Pairs.Best()
	g.setMasks(q0)
	across := p.rows * panel
	for i := 0; i < p.rows; i += panel {
		x, dp := g.pTile.from(i), g.dsTile.from(i)
		mulPanels(x.left(p.depth), p.q.from(p.row+i, 0), p.k, p.keys0, 0, p.k.depth, false)
		mulPanels(dp.left(p.depth), p.dout.from(p.row+i, 0), p.v, p.keys0, 0, p.v.depth, false)
		at := p.row + i
		k.GradRows(rowwise.PairGrads{
			Masks: p.masks[i*masksRow:], MaskRow: masksRow,
			DS: p.ds[i*p.depth:], Next: panel * panel,
			P: p.p[i*panel:], Across: p.dsAcross[i*panel:], NextAcross: across,
		}, x.x, dp.x, panel, p.depth, x.stride, c.scale2(), g.lse2[at:], g.delta[at:], c.Scale)
	}
}

// addQueryPanels is addQuery in panels.
func (g *gradients) addQueryPanels(dq tile) {
	p := &g.panels
	for i := 0; i < p.rows; i += panel {
		mulPanels(dq.from(p.row+i), p.ds[i*p.depth:], p.kAcross, 0, p.keys0, p.depth, true)
	}
}

// addKeyPanels is addKeys in panels.
func (g *gradients) addKeyPanels(dk, dv tile) {
	p := &g.panels
	for _, f := range [...]struct {
		weights []uint16
		x       panels
		to      tile
	}{{p.p, p.doutAcross, dv}, {p.dsAcross, p.qAcross, dk}} {
		gemm.Registry.Best().Pairs.Transpose(f.weights[:p.depth*p.rows])
		for j := 0; j < p.depth; j += panel {
			mulPanels(f.to.from(p.keys0+j), f.weights[j*p.rows:], f.x, 0, p.row, p.rows, true)
		}
	}
}
