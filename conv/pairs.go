package conv

import (
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/gemm"
	"github.com/snug-ml/snug/internal/patch"
	"github.com/snug-ml/snug/internal/rowwise"
)

// On processors that multiply bfloat16 by pairs along the depth, the columns of a tile are packed for that: the pieces
// of patches are gathered as they are, row by row, and two rows become one of pairs. Weights run along the depth as they
// lie, or are brought in order first. Sums are float32, in scratch.

// pairDepth is the most depth of a block: rows of patches, and the pairs that are made of them, have half of B each.
const pairDepth = 256

// takesPairs says whether a correlation is one for pairs.
func (g *correlation) takesPairs() bool {
	return g.kern.Pairs != nil && g.patch.Words != nil && g.src.DType() == snug.BF16 && volume(g.kernel) <= tmpRows &&
		(g.last && g.channels >= pairLeast || !g.last && g.axisStep() <= 2)
}

// axisStep returns the step of the last dimension.
func (g *correlation) axisStep() int {
	if g.adjoint {
		return 1
	}
	return g.stride[2]
}

// pairParts are what a tile of pairs has in addition.
type pairParts struct {
	patches, packed []uint16 // of B
	panels          int      // of B
	strideC         int
	weightPieces    []patch.Piece // of a line of A and a channel, where weights are brought in order
	weightPieceN    int
}

// columnsOfPairs is columns for bfloat16.
func (t *tile) columnsOfPairs() {
	kern := t.kern.Pairs
	t.panels = cpu.Chunks(t.n1-t.n0, gemm.PairLines)
	t.strideC = t.panels * gemm.PairLines
	words := gemm.AlignedWords(t.b)
	t.patches, t.packed = words[:pairDepth*nc], words[pairDepth*nc:][:pairDepth*nc]
	t.pieces, t.weightPieces = t.pieces[:mostListed], t.pieces[mostListed:]
	t.start()
	parts, channels, taps := t.blocks()
	for i := range parts {
		b := t.block(i, parts, channels, taps)
		b.ones = false
		depth := b.depth()
		if depth == 0 {
			break
		}
		t.packPairs(&b)
		t.listWeights(&b)
		steps := cpu.Chunks(depth, gemm.PairDepth)
		panelLen := steps * gemm.PairDepth * gemm.PairLines
		for m := t.m0; m < t.m1; m += gemm.PairLines {
			lines := min(gemm.PairLines, t.m1-m)
			a := t.packLines(&b, m, lines)
			kern.Mul(gemm.PanelProduct{
				A: a, B: t.packed, C: t.c[(m-t.m0)*t.strideC:], Rows: cpu.Chunks(lines, kern.Rows) * kern.Rows, Count: t.panels,
				Steps: steps, NextB: panelLen, NextC: gemm.PairLines, StrideC: t.strideC, Add: true,
			})
		}
	}
	if t.into.Alpha != 1 {
		sums := t.c[:(t.m1-t.m0)*t.strideC]
		rowwise.Registry.Best().Scale(sums, sums, t.into.Alpha)
	}
	t.storeColumns(t.strideC)
}

// start sets the sums to the bias, or to 0.
func (t *tile) start() {
	for m := range t.m1 - t.m0 {
		row := t.c[m*t.strideC:][:t.strideC]
		if t.bias.Len() == 0 {
			clear(row)
			continue
		}
		bias := at(t.bias, t.group*t.results+t.m0+m)
		for j := range row {
			row[j] = bias
		}
	}
}

// packPairs packs B.
func (t *tile) packPairs(b *block) {
	depth := b.depth()
	first, src := t.image(0, b.c0, t.channels, t.srcSize), gemm.Words(t.src)
	l := pieceList{from: newRuns(&t.phase, t.n0, t.n1), t0: b.t0, t1: b.t1}
	l.panel, l.panelLen, l.tapLen = gemm.PairLines, gemm.PairLines*depth, gemm.PairLines
	l.next, l.images = (b.t1-b.t0)*gemm.PairLines, t.groups*t.channels*t.srcSize
	if l.same(t.listed) {
		t.patch.Words(t.patches, src, first, t.pieces[:t.listed.n], b.c1-b.c0, t.srcSize, l.next, t.phase.axes[2].step)
	} else {
		for l.list(t.pieces) {
			t.patch.Words(t.patches, src, first, t.pieces[:l.n], b.c1-b.c0, t.srcSize, l.next, t.phase.axes[2].step)
		}
		t.listed = l.key()
	}
	panelLen := cpu.Chunks(depth, gemm.PairDepth) * gemm.PairDepth * gemm.PairLines
	for i := range t.panels {
		t.kern.Pairs.AcrossB(t.packed[i*panelLen:][:panelLen], t.patches[i*gemm.PairLines*depth:], gemm.PairLines, depth, gemm.PairLines, panelLen)
	}
}

// packLines packs a panel of A: the weights of lines channels of the result from m on.
func (t *tile) packLines(b *block, m, lines int) []uint16 {
	w, dst := gemm.Words(t.w), gemm.AlignedWords(t.a)
	all, depth := volume(t.kernel), b.depth()
	panelLen := cpu.Chunks(depth, gemm.PairDepth) * gemm.PairDepth * gemm.PairLines
	dst = dst[:panelLen]
	if !t.adjoint && b.t1-b.t0 == all {
		t.kern.Pairs.LinesA(dst, w[t.weight(m, b.c0):], lines, depth, t.weightRow, panelLen)
		return dst
	}
	if t.adjoint && all == 1 {
		t.kern.Pairs.AcrossA(dst, w[t.weight(m, b.c0):], lines, depth, t.weightC, panelLen)
		return dst
	}
	tmp, taps := gemm.AlignedWords(t.tmp), b.t1-b.t0
	for c := b.c0; c < b.c1; c++ {
		t.patch.Words(tmp[(c-b.c0)*taps:], w, t.weight(m, c), t.weightPieces[:t.weightPieceN], lines, t.weightRow, depth, 1)
	}
	t.kern.Pairs.LinesA(dst, tmp, lines, depth, depth, panelLen)
	return dst
}

// listWeights lists the pieces of the weights of a channel that the block's taps are.
func (t *tile) listWeights(b *block) {
	all, taps := volume(t.kernel), b.t1-b.t0
	t.weightPieceN = 0
	for i := 0; i < taps; {
		n, k := 1, t.phase.kernelTap(b.t0+i, t.kernel)
		if taps == all {
			n = min(patch.PieceLen, all-i)
		}
		t.weightPieces[t.weightPieceN] = patch.NewPiece(k, i, n, 0, n, 1)
		t.weightPieceN++
		i += n
	}
}
