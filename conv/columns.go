package conv

import (
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/gemm"
)

// columns computes a tile whose columns are positions: C[m1-m0][n1-n0] = A·B.
func (t *tile) columns() {
	c, strideC := t.c, t.n1-t.n0
	alpha, beta := t.into.Alpha, float32(0)
	if !t.staged {
		t.b = t.c
		r := newRuns(&t.phase, t.n0, t.n1)
		r.next()
		c, strideC = t.dst.Float32s()[t.image(r.image, t.m0, t.results, t.dstSize)+r.place():], t.dstSize
		beta = t.into.Beta
	}
	parts, channels, taps := t.blocks()
	for i := range parts {
		b := t.block(i, parts, channels, taps)
		depth := b.depth()
		if depth == 0 {
			t.scale(c, strideC, beta)
			continue
		}
		t.packColumns(&b)
		strip := evenly(t.m1-t.m0, t.kern.StripRows())
		for m := t.m0; m < t.m1; m += strip {
			rows := min(strip, t.m1-m)
			a := t.packStrip(&b, m, rows)
			t.kern.MulRows(rows, t.n1-t.n0, depth, alpha, a, t.b, beta, c[(m-t.m0)*strideC:], strideC)
		}
		beta = 1
	}
	if t.staged {
		t.storeColumns(strideC)
	}
}

// storeColumns brings the sums of a tile in scratch to the result.
func (t *tile) storeColumns(strideC int) {
	phase := t.phase
	if phase.dense() {
		n := phase.positions()
		one := axis{n: 1, outStep: 1, outSize: 1}
		phase.axes = [3]axis{one, one, {n: n, outStep: 1, outSize: n}}
	}
	line := phase.axes[2].n
	for r := newRuns(&phase, t.n0, t.n1); r.next(); {
		at := t.image(r.image, t.m0, t.results, t.dstSize) + r.place()
		lines := 1
		if r.len == line { // with all lines of the plane that follow
			lines = 1 + min(r.left/line, phase.axes[1].n-1-r.at[1])
		}
		if lines == 1 {
			t.putRows(at, phase.axes[2].outStep, t.dstSize, t.c[r.col:], t.m1-t.m0, r.len, strideC)
			continue
		}
		for m := range t.m1 - t.m0 {
			t.putRows(at+m*t.dstSize, phase.axes[2].outStep, phase.axes[1].outStep*phase.axes[2].outSize, t.c[m*strideC+r.col:], lines, line, line)
		}
		r.skip((lines - 1) * line)
	}
}

// scale is all that a product of depth 0 does.
func (t *tile) scale(c []float32, strideC int, beta float32) {
	for m := range t.m1 - t.m0 {
		row := c[m*strideC:][:t.n1-t.n0]
		if beta == 0 {
			clear(row)
			continue
		}
		for j := range row {
			row[j] *= beta
		}
	}
}

// tapsFirst says whether the depth of a block goes tap after tap, else channel after channel.
func (t *tile) tapsFirst(b *block) bool {
	all, channels := volume(t.kernel), b.c1-b.c0
	return t.adjoint && all > 1 && channels > 0 && channels*all <= tmpRows
}

// packColumns packs B: rows for each channel and tap of the block, in panels of NR positions.
func (t *tile) packColumns(b *block) {
	depth, nr := b.depth(), t.kern.NR
	l := pieceList{from: newRuns(&t.phase, t.n0, t.n1), t0: b.t0, t1: b.t1, panel: nr, panelLen: nr * depth, tapLen: nr}
	l.next, l.images = (b.t1-b.t0)*nr, t.groups*t.channels*t.srcSize
	if t.tapsFirst(b) {
		l.tapLen, l.next = (b.c1-b.c0)*nr, nr
	}
	first := t.image(0, b.c0, t.channels, t.srcSize)
	if t.pointwise() {
		t.packSource(b, l.from, first)
	} else if l.same(t.listed) {
		t.patch.Gather(t.b, t.src, first, t.pieces[:t.listed.n], b.c1-b.c0, t.srcSize, l.next, t.phase.axes[2].step)
	} else {
		for l.list(t.pieces) {
			t.patch.Gather(t.b, t.src, first, t.pieces[:l.n], b.c1-b.c0, t.srcSize, l.next, t.phase.axes[2].step)
		}
		t.listed = l.key()
	}
	if !b.ones {
		return
	}
	for q := range cpu.Chunks(t.n1-t.n0, nr) {
		row := t.b[(q*depth+depth-1)*nr:][:nr]
		for j := range row {
			row[j] = 1
		}
	}
}

// packSource packs B where it is x itself: long parts of each channel.
func (t *tile) packSource(b *block, r runs, first int) {
	depth, nr, images := b.depth(), t.kern.NR, t.groups*t.channels*t.srcSize
	for r.next() {
		at, dst := first+r.image*images+r.at[2], t.b[r.col/nr*nr*depth:]
		begun := (nr - r.col%nr) % nr // columns that a panel has room for
		if n := min(begun, r.len); n > 0 {
			t.patch.Copy(dst[r.col%nr:], t.src, at, b.c1-b.c0, n, t.srcSize, nr, 1)
			dst = dst[nr*depth:]
		}
		if r.len > begun {
			t.kern.CopyRows(dst, t.src, at+begun, b.c1-b.c0, r.len-begun, t.srcSize, nr, nr*depth)
		}
	}
}

// pageLen is the floats from row to row with which all rows share a set of the first cache.
const pageLen = 1024

// packStrip packs rows of A, channels of the result from m on, in panels or, tap after tap, along the depth; or it returns
// them where they lie.
func (t *tile) packStrip(b *block, m, rows int) gemm.Rows {
	switch channels := b.c1 - b.c0; {
	case t.byTaps && !b.ones && channels%t.kern.Lanes == 0:
		return t.packByTaps(b, m, rows)
	case t.tapsFirst(b):
		return t.packAlong(b, m, rows)
	case t.adjoint && volume(t.kernel) == 1:
		return t.packAcross(b, m, rows)
	}
	if !t.adjoint && !b.ones && b.t1-b.t0 == volume(t.kernel) && t.w.DType() == snug.F32 && t.weightRow%pageLen != 0 {
		return gemm.Rows{X: t.w.Float32s()[t.weight(m, b.c0):], Row: t.weightRow, Col: 1}
	}
	pitch, depth := t.kern.Pitch(), b.depth()
	a := gemm.Rows{X: t.a, Row: 1, Col: pitch, Panel: pitch * depth}
	for i := range t.kern.Panels(rows) {
		lo, hi := t.kern.PanelOf(rows, i)
		t.packWeights(b, t.a[i*a.Panel:], m+lo, hi-lo, pitch, false)
	}
	return a
}
