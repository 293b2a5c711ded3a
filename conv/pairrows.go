package conv

import (
	"unsafe"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/gemm"
	"github.com/snug-ml/snug/internal/half"
	"github.com/snug-ml/snug/internal/rowwise"
)

// With channels last, positions are the rows of a product of pairs. Their channels run along the depth, so that pieces of 32 channels
// of a tap are copied to a panel of A as they lie; what a tap lacks of 32 channels is 0. Weights are brought in order as float32, which
// changes no bfloat16, a panel of B at a time.

const (
	pairLeast = 16  // least channels of a group, of x and of y
	pairRows  = 96  // positions that are packed together
	pairKC    = 512 // most depth of a block of rows, and of positions of a gradient of weights
	stepLen   = gemm.PairDepth * gemm.PairLines
)

// rowsOfPairs is rows for bfloat16.
func (t *tile) rowsOfPairs() {
	panels := cpu.Chunks(t.m1-t.m0, gemm.PairLines)
	t.strideC = panels * gemm.PairLines
	t.startRows()
	all := t.phase.taps()
	taps := evenly(max(all, 1), pairKC/gemm.PairDepth)
	channels := min(pairKC/taps/gemm.PairDepth*gemm.PairDepth, t.channels)
	for c := 0; c < t.channels; c += channels {
		for tap := 0; tap < all; tap += taps {
			b := block{c0: c, c1: min(c+channels, t.channels), t0: tap, t1: min(tap+taps, all)}
			t.addBlock(&b, panels)
		}
	}
	sums := t.c[:(t.n1-t.n0)*t.strideC]
	if t.into.Alpha != 1 {
		rowwise.Registry.Best().Scale(sums, sums, t.into.Alpha)
	}
	t.storeRows(t.strideC)
}

// startRows sets the sums to the bias, or to 0.
func (t *tile) startRows() {
	clear(t.c[:cpu.Chunks(t.n1-t.n0, gemm.PairLines)*gemm.PairLines*t.strideC])
	if t.bias.Len() == 0 {
		return
	}
	bias := t.lines[:t.m1-t.m0]
	half.Load(bias, t.bias, t.group*t.results+t.m0)
	for n := range t.n1 - t.n0 {
		copy(t.c[n*t.strideC:], bias)
	}
}

// addBlock adds the products of a block.
func (t *tile) addBlock(b *block, panels int) {
	kern := t.kern.Pairs
	perTap := cpu.Chunks(b.c1-b.c0, gemm.PairDepth) // steps
	steps := perTap * (b.t1 - b.t0)
	panelLen := steps * stepLen
	packed := gemm.AlignedWords(t.b)
	for i := range panels {
		t.packPanel(b, packed[i*panelLen:][:panelLen], t.m0+i*gemm.PairLines)
	}
	a := gemm.AlignedWords(t.a)
	p := positionCopy{
		block: *b, phase: t.phase, patch: t.patch, pieces: t.pieces, src: t.src, first: t.group*t.channels + b.c0, stride: t.groups * t.channels,
		words: a, pitch: gemm.PairDepth, panelLen: panelLen, tapLen: perTap * stepLen, pieceLen: stepLen,
	}
	for n := t.n0; n < t.n1; n += pairRows {
		end := min(n+pairRows, t.n1)
		p.copy(newRuns(&t.phase, n, end))
		for row := n; row < end; row += gemm.PairLines {
			kern.Mul(gemm.PanelProduct{
				A: a[(row-n)/gemm.PairLines*panelLen:], B: packed, C: t.c[(row-t.n0)*t.strideC:],
				Rows: cpu.Chunks(min(gemm.PairLines, end-row), kern.Rows) * kern.Rows, Count: panels, Steps: steps,
				NextB: panelLen, NextC: gemm.PairLines, StrideC: t.strideC, Add: true,
			})
		}
	}
}

// packPanel packs a panel of B: the weights of channels of the result from m on.
func (t *tile) packPanel(b *block, dst []uint16, m int) {
	const pitch = gemm.PairLines
	channels, taps, lines := b.c1-b.c0, b.t1-b.t0, min(pitch, t.m1-m)
	rest := t.a[tmpRows*pitch+1024:]
	words := gemm.AlignedWords(rest)
	ordered := snug.SliceView(unsafe.Slice((*snug.BFloat16)(unsafe.Pointer(&words[0])), pairKC*pitch))
	together := max(1, tmpRows/volume(t.kernel))
	for c := b.c0; c < b.c1; c += together {
		part := block{c0: c, c1: min(c+together, b.c1), t0: b.t0, t1: b.t1}
		n := part.c1 - c
		t.packWeights(&part, t.a, m, lines, pitch, true)
		for tap := range taps {
			half.Store(ordered, (tap*channels+c-b.c0)*pitch, t.a[tap*n*pitch:][:n*pitch])
		}
	}
	tapLen := len(dst) / taps
	for tap := range taps {
		t.kern.Pairs.AcrossB(dst[tap*tapLen:][:tapLen], words[tap*channels*pitch:], lines, channels, pitch, tapLen)
	}
}
