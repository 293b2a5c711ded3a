package layers

import "cmp"

// This file runs layers in tiles of rows. Package remat's Tiles does so for any stage; here tiles are read and written
// where they lie, in the tensors of all rows.

// WholeRows is the most rows of a batch that is one tile, whatever Options.Tiles says. So each of several tiles has at
// least WholeRows/2 rows, and a row has the same bits as in products of all rows: from 1013 rows on, products of
// float32 cut the depth in the same way; see sharesB in package gemm.
const WholeRows = 2048

// tileCount returns in how many tiles a batch of so many rows is cut.
func tileCount(rows, tiles int) int { return min(max(1, tiles), (rows-1)/WholeRows+1) }

// tileRows returns the rows of the largest of up to so many tiles of a batch. The others have one row less at most.
// There is at most one tile for every 2048 rows begun.
func tileRows(rows, tiles int) int { return (rows-1)/tileCount(rows, tiles) + 1 }

// tiled reports whether MLPs run in tiles.
func (p *Pass) tiled() bool { return p.Tiles > 1 }

// tile is the part of the rows that a layer computes.
type tile struct {
	lo      int    // its first row
	more    bool   // others follow, so gradients of parameters are not complete
	x, y, d Tensor // its rows of tensors of all rows, whose memory they borrow
}

// rowsOf returns the tile's rows of a tensor of all rows.
func (p *Pass) rowsOf(to, whole *Tensor) *Tensor {
	if !p.counts {
		width := whole.Len() / p.Batch.Rows
		to.View = part(whole.View, p.tile.lo*width, p.rows*width)
	}
	return to
}

// eachTile calls do for one tile after the other.
func (p *Pass) eachTile(do func()) {
	rows := p.Batch.Rows
	n := tileCount(rows, p.Tiles)
	for i := range n {
		if p.Err = cmp.Or(p.Err, p.ctx.Err()); p.Err != nil {
			break
		}
		lo, hi := int(int64(rows)*int64(i)/int64(n)), int(int64(rows)*int64(i+1)/int64(n))
		p.tile.lo, p.tile.more = lo, i < n-1
		p.rows = hi - lo
		do()
	}
	p.tile = tile{}
	p.rows = rows
}
