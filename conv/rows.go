package conv

import (
	"github.com/snug-ml/snug/internal/gemm"
	"github.com/snug-ml/snug/internal/patch"
)

// rows computes a tile whose rows are positions: C[n1-n0][m1-m0] = A·B.
func (t *tile) rows() {
	cols := t.m1 - t.m0
	c, strideC := t.c, cols
	alpha, beta := t.into.Alpha, float32(0)
	if !t.staged {
		strideC = t.groups * t.results
		c = t.dst.Float32s()[t.n0*strideC+t.group*t.results+t.m0:]
		beta = t.into.Beta
	}
	if t.windows(c, strideC, beta) {
		t.storeRows(strideC)
		return
	}
	parts, channels, taps := t.blocks()
	strip := evenly(t.n1-t.n0, t.kern.StripRows())
	for i := range parts {
		b := t.block(i, parts, channels, taps)
		depth := b.depth()
		if depth == 0 {
			t.scaleRows(c, t.n1-t.n0, strideC, beta)
			continue
		}
		t.packPanels(&b)
		for n := t.n0; n < t.n1; n += strip {
			rows := min(strip, t.n1-n)
			a := t.packPositions(&b, n, rows)
			t.kern.MulRows(rows, cols, depth, alpha, a, t.b, beta, c[(n-t.n0)*strideC:], strideC)
		}
		beta = 1
	}
	t.storeRows(strideC)
}

// storeRows brings the sums of a tile in scratch to the result.
func (t *tile) storeRows(strideC int) {
	if !t.staged {
		return
	}
	cols := t.m1 - t.m0
	stride := t.groups * t.results
	for r := newRuns(&t.phase, t.n0, t.n1); r.next(); {
		at := (r.image*t.dstSize+r.place())*stride + t.group*t.results + t.m0
		t.putRows(at, 1, t.phase.axes[2].outStep*stride, t.c[r.col*strideC:], r.len, cols, strideC)
	}
}

// scaleRows is all that a product of depth 0 does.
func (t *tile) scaleRows(c []float32, rows, strideC int, beta float32) {
	for n := range rows {
		row := c[n*strideC:][:t.m1-t.m0]
		if beta == 0 {
			clear(row)
			continue
		}
		for j := range row {
			row[j] *= beta
		}
	}
}

// packPanels packs B: the weights of the tile's channels in panels of NR.
func (t *tile) packPanels(b *block) {
	nr, depth := t.kern.NR, b.depth()
	for m := t.m0; m < t.m1; m += nr {
		t.packWeights(b, t.b[(m-t.m0)*depth:], m, min(nr, t.m1-m), nr, true)
	}
}

// packPositions copies rows of A: for positions from n on what the taps read of the block's channels, tap after tap.
func (t *tile) packPositions(b *block, n, rows int) gemm.Rows {
	stride, pitch := t.groups*t.channels, b.depth()+rowGap
	p := positionCopy{
		block: *b, phase: t.phase, patch: t.patch, pieces: t.pieces, src: t.src, first: t.group*t.channels + b.c0, stride: stride,
		dst: t.a, pitch: pitch, tapLen: b.c1 - b.c0, pieceLen: patch.PieceLen,
	}
	p.copy(newRuns(&t.phase, n, n+rows))
	if b.ones {
		for i := range rows {
			t.a[i*pitch+b.products()] = 1
		}
	}
	return gemm.Rows{X: t.a, Row: pitch, Col: 1}
}
