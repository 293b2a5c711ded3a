package transformer

import (
	"cmp"
	"context"
)

// This file runs the MLPs in tiles of rows, the idea of the tiled MLPs in Bekman et al., "Arctic Long Sequence
// Training" (2025, arXiv:2506.13996). Package remat's Tiles does so for any stage; here tiles are read and written where
// they lie, in the tensors of all rows. A stage keeps its output alone. The backward step computes what it needs of a
// tile again.

// wholeRows is the most rows of a batch that is one tile, whatever Options.Tiles says. So each of several tiles has at
// least wholeRows/2 rows, and a row has the same bits as in products of all rows: from 1013 rows on, products of
// float32 cut the depth in the same way; see sharesB in package gemm.
const wholeRows = 2048

// tileCount returns in how many tiles a batch of so many rows is cut.
func tileCount(rows, tiles int) int { return min(max(1, tiles), (rows-1)/wholeRows+1) }

// tileRows returns the rows of the largest of the tiles. The others have one row less at most.
func tileRows(rows, tiles int) int { return (rows-1)/tileCount(rows, tiles) + 1 }

// tileRoom returns the most rows of a tile in a batch of up to so many rows.
func tileRoom(rows, tiles int) int { return max(min(rows, wholeRows), tileRows(rows, tiles)) }

// tiled reports whether the MLPs run in tiles.
func (m *Model) tiled() bool { return m.options.Tiles > 1 }

// tile is the part of the rows that the operations of a stage compute.
type tile struct {
	lo      int    // its first row
	more    bool   // others follow, so gradients of parameters are not complete
	x, y, d tensor // its rows of tensors of all rows, whose memory they borrow
}

// rows returns the tile's rows of a tensor of all rows.
func (o *ops) rows(to, whole *tensor) *tensor {
	width := whole.Len() / o.batch.rows
	to.View = part(whole.View, o.tile.lo*width, o.pool.rows*width)
	return to
}

// eachTile calls do for one tile after the other.
func (o *ops) eachTile(ctx context.Context, do func()) error {
	rows := o.batch.rows
	n := tileCount(rows, o.options.Tiles)
	for i := range n {
		if o.err = cmp.Or(o.err, ctx.Err()); o.err != nil {
			break
		}
		lo, hi := int(int64(rows)*int64(i)/int64(n)), int(int64(rows)*int64(i+1)/int64(n))
		o.tile.lo, o.tile.more = lo, i < n-1
		o.pool.cut(hi - lo)
		do()
	}
	o.tile = tile{}
	o.pool.whole(rows)
	return o.err
}
