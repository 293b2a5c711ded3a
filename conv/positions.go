package conv

import (
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/gemm"
	"github.com/snug-ml/snug/internal/patch"
)

// positionCopy copies what the taps of a block read for positions of a source whose channels are last: for each position,
// pitch apart, the block's channels, tap after tap.
type positionCopy struct {
	block
	phase  phase
	patch  *patch.Kernels
	pieces []patch.Piece
	src    snug.View
	first  int // element of the block's first channel
	stride int // from position to position

	dst      []float32
	words    []uint16 // in place of dst, for bfloat16
	pitch    int      // from position to position, in dst or words
	tapLen   int      // from tap to tap
	pieceLen int      // from a piece of channels to the next
	panelLen int      // from panel to panel, where words are panels, whose pieces are whole; else 0
}

// copy copies the positions of runs.
func (p *positionCopy) copy(r runs) {
	a, channels := &p.phase.axes, p.c1-p.c0
	// Where all that taps along the last dimension read lies side by side, they are as one tap of more channels.
	together := a[2].offStep == 1 && channels == p.stride && p.t1-p.t0 == p.phase.taps() && p.panelLen == 0
	image := a[0].size * a[1].size * a[2].size * p.stride
	for r.next() {
		from, to := p.first+r.image*image, r.col*p.pitch
		if p.panelLen > 0 {
			r.cutAt(gemm.PairLines)
			to = r.col/gemm.PairLines*p.panelLen + r.col%gemm.PairLines*p.pitch
		}
		if together {
			x := a[2].read(r.at[2], 0)
			lo, _ := a[2].inside(x, r.len)
			_, hi := a[2].inside(x+a[2].taps-1, r.len)
			hi = max(lo, hi)
			for j := range r.len {
				if x := x + j*a[2].step; j < lo || j >= hi {
					p.gather(to+j*p.pitch, from, &r, 0, j, 1, channels*a[2].taps, -x*channels, (a[2].size-x)*channels)
				}
			}
			p.gather(to+lo*p.pitch, from, &r, 0, lo, hi-lo, channels*a[2].taps, 0, channels*a[2].taps)
			continue
		}
		for tx := range a[2].taps {
			lo, hi := a[2].inside(a[2].read(r.at[2], tx), r.len)
			p.gather(to, from, &r, tx, 0, lo, channels, 0, 0)
			p.gather(to+lo*p.pitch, from, &r, tx, lo, hi-lo, channels, 0, channels)
			p.gather(to+hi*p.pitch, from, &r, tx, hi, r.len-hi, channels, 0, 0)
		}
	}
}

// gather copies for positions j to j+n-1 of a run what the taps with x component tx read: width elements a position. Those from lo to
// hi-1 lie in the image; the others are 0.
func (p *positionCopy) gather(to, from int, r *runs, tx, j, n, width, lo, hi int) {
	if n == 0 {
		return
	}
	a := &p.phase.axes
	count, x := 0, a[2].read(r.at[2]+j, tx)
	lo, hi = max(lo, 0), min(hi, width)
	for rest := range a[0].taps * a[1].taps {
		tap := rest*a[2].taps + tx
		if tap < p.t0 || tap >= p.t1 {
			continue
		}
		z, y := a[0].read(r.at[0], rest/a[1].taps), a[1].read(r.at[1], rest%a[1].taps)
		there := uint(z) < uint(a[0].size) && uint(y) < uint(a[1].size)
		at := ((z*a[1].size+y)*a[2].size + x) * p.stride
		for i := 0; i < width; i += patch.PieceLen {
			m := min(patch.PieceLen, width-i)
			first, end := max(lo-i, 0), min(hi-i, m)
			if !there {
				end = 0
			}
			if p.panelLen > 0 {
				m = patch.PieceLen
			}
			p.pieces[count] = patch.NewPiece(at+i+max(first, 0), (tap-p.t0)*p.tapLen+i/patch.PieceLen*p.pieceLen, m, first, end, 1)
			if count++; count == len(p.pieces) {
				p.put(to, from, p.pieces, n)
				count = 0
			}
		}
	}
	p.put(to, from, p.pieces[:count], n)
}

// put copies pieces for n positions.
func (p *positionCopy) put(to, from int, pieces []patch.Piece, n int) {
	next := p.stride * p.phase.axes[2].step
	if p.words != nil {
		p.patch.Words(p.words[to:], gemm.Words(p.src), from, pieces, n, next, p.pitch, 1)
	} else {
		p.patch.Gather(p.dst[to:], p.src, from, pieces, n, next, p.pitch, 1)
	}
}
