package conv

import (
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/gemm"
	"github.com/snug-ml/snug/internal/patch"
)

// takesPairs says whether the gradient of weights is a product of pairs of positions.
func (g *weightProduct) takesPairs() bool {
	return g.kern.Pairs != nil && g.patch.Words != nil && g.x.DType() == snug.BF16 && min(g.cin, g.cout) >= pairLeast &&
		(g.last || g.stride[2] <= 2)
}

// addPairs computes the sums of strips, from first on, over positions lo to hi-1.
func (t *weightTile) addPairs(first, strips, lo, hi int) {
	kern := t.kern.Pairs
	packed, a := gemm.AlignedWords(t.b), gemm.AlignedWords(t.a)
	for n := lo; n < hi; n += pairKC {
		t.n0, t.n1, t.listed = n, min(n+pairKC, hi), listKey{}
		steps := cpu.Chunks(t.n1-t.n0, gemm.PairDepth)
		t.packPairsY(packed, steps*stepLen)
		c := t.c
		for i := range strips {
			b := t.strip(first + i)
			rows := b.products()
			t.packPairsX(&b, a, steps*stepLen)
			for r := 0; r < rows; r += gemm.PairLines {
				kern.Mul(gemm.PanelProduct{
					A: a[r/gemm.PairLines*steps*stepLen:], B: packed, C: c[r*t.strideC:],
					Rows: cpu.Chunks(min(gemm.PairLines, rows-r), kern.Rows) * kern.Rows, Count: t.strideC / gemm.PairLines, Steps: steps,
					NextB: steps * stepLen, NextC: gemm.PairLines, StrideC: t.strideC, Add: n > lo,
				})
			}
			c = c[t.room(&b)*t.strideC:]
		}
	}
}

// words returns scratch for operands in order.
func (t *weightTile) words() []uint16 { return gemm.AlignedWords(t.tmp[:sizeTmp+sizeLines]) }

// packPairsY packs B: dy.
func (t *weightTile) packPairsY(dst []uint16, panelLen int) {
	dy, depth, size, stride := gemm.Words(t.dy), t.n1-t.n0, volume(t.out), t.groups*t.cout
	if t.last {
		t.kern.Pairs.AcrossB(dst, dy[t.n0*stride+t.group*t.cout+t.o0:], t.o1-t.o0, depth, stride, panelLen)
		return
	}
	pitch, words := depth+2*rowGap, t.words()
	for o := t.o0; o < t.o1; o += gemm.PairLines {
		lines := min(gemm.PairLines, t.o1-o)
		for i := range lines {
			row := words[i*pitch:]
			for n := t.n0; n < t.n1; {
				image, at := n/size, n%size
				count := min(size-at, t.n1-n)
				copy(row[n-t.n0:], dy[(image*stride+t.group*t.cout+o+i)*size+at:][:count])
				n += count
			}
		}
		t.kern.Pairs.LinesB(dst[(o-t.o0)/gemm.PairLines*panelLen:], words, lines, depth, pitch, panelLen)
	}
}

// packPairsX packs A for a strip of x.
func (t *weightTile) packPairsX(b *block, dst []uint16, panelLen int) {
	depth, rows, channels, words := t.n1-t.n0, b.products(), b.c1-b.c0, t.words()
	all, size := t.groups*t.cin, volume(t.in)
	if t.last {
		p := positionCopy{
			block: *b, phase: t.phase, patch: t.patch, pieces: t.pieces, src: t.x, first: t.group*t.cin + b.c0, stride: all,
			words: words, pitch: rows, tapLen: channels, pieceLen: patch.PieceLen,
		}
		p.copy(newRuns(&t.phase, t.n0, t.n1))
		t.kern.Pairs.AcrossA(dst, words, rows, depth, rows, panelLen)
		return
	}
	pitch := depth + 2*rowGap
	l := pieceList{from: newRuns(&t.phase, t.n0, t.n1), t0: b.t0, t1: b.t1, panel: patch.PieceLen, panelLen: patch.PieceLen, tapLen: pitch}
	l.next, l.images = (b.t1-b.t0)*pitch, all*size
	first, x, step := (t.group*t.cin+b.c0)*size, gemm.Words(t.x), t.phase.axes[2].step
	if l.same(t.listed) {
		t.patch.Words(words, x, first, t.pieces[:t.listed.n], channels, size, l.next, step)
	} else {
		for l.list(t.pieces) {
			t.patch.Words(words, x, first, t.pieces[:l.n], channels, size, l.next, step)
		}
		t.listed = l.key()
	}
	t.kern.Pairs.LinesA(dst, words, rows, depth, pitch, panelLen)
}
