package patch

import (
	"math/bits"

	"github.com/snug-ml/snug"
)

// Piece is up to PieceLen elements that one tap reads for results that lie side by side.
type Piece struct {
	Src, Dst int64  // elements from the first of the channel's source, where the first of the piece would be, and of dst
	Read     uint32 // which of them are read; the others are 0
	Written  uint32 // all of them: a bit each, from the lowest
}

// PieceLen is the most elements of a piece.
const PieceLen = 32

// NewPiece returns a piece of n elements, of which elements lo to hi-1 are read, the first of these at src, step apart.
func NewPiece(src, dst, n, lo, hi, step int) Piece {
	if lo >= hi {
		return Piece{0, int64(dst), 0, ones(n)}
	}
	return Piece{int64(src - lo*step), int64(dst), ones(hi) &^ ones(lo), ones(n)}
}

// Join adds n results that follow those of the piece, and read what follows in the source. Of their elements lo to hi-1 are read.
func (p *Piece) Join(n, lo, hi int) {
	at := bits.Len32(p.Written)
	p.Read |= (ones(max(lo, hi)) &^ ones(lo)) << at
	p.Written |= ones(n) << at
}

func ones(n int) uint32 { return uint32(1<<n - 1) }

// Gather copies pieces for all channels, which lie nextSrc apart in src, from element at on, and nextDst apart in dst.
// Elements of the source are step apart.
type Gather func(dst []float32, src snug.View, at int, pieces []Piece, channels, nextSrc, nextDst, step int)

// gather copies a piece after the other by a loop for rows.
func gather(rows Copy) Gather {
	return func(dst []float32, src snug.View, at int, pieces []Piece, channels, nextSrc, nextDst, step int) {
		for _, p := range pieces {
			to := dst[p.Dst:]
			if p.Read != p.Written {
				for i := range channels {
					clear(to[i*nextDst:][:bits.Len32(p.Written)])
				}
			}
			for read, lo := p.Read, 0; read != 0; {
				lo += bits.TrailingZeros32(read >> lo)
				n := bits.TrailingZeros32(^(read >> lo))
				rows(to[lo:], src, at+int(p.Src)+lo*step, channels, n, nextSrc, nextDst, step)
				read &^= ones(n) << lo
			}
		}
	}
}

// GatherWords is Gather of bfloat16 that stays as it is, for steps of 1 and 2.
type GatherWords func(dst, src []uint16, at int, pieces []Piece, channels, nextSrc, nextDst, step int)
