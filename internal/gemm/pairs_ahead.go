package gemm

import (
	"runtime"
	"unsafe"

	"github.com/snug-ml/snug/internal/cpu"
)

// Ahead is memory that Mul fetches to the second cache while it multiplies, as far as it gets: rows of pairs of
// pieces of 128 bytes.
type Ahead struct {
	at    uintptr
	next  int // bytes from a piece to the next
	left  int // pairs of pieces of the row
	back  int // from the end of a row to the next row
	pairs int // of a row
	rows  int // that are left
}

// aheadLen is the most elements of a strip that has room in the second cache beside the one before.
const aheadLen = 1 << 17

// aheadFloats is the room of an Ahead in float32 elements, a line of the cache.
const aheadFloats = 16

// next returns what to fetch during a strip: the operand of the one that the worker is likely to take next.
func (p *pairs) next(strip int) Ahead {
	k0, k1 := p.pc, p.pcEnd
	strip += min(runtime.GOMAXPROCS(0), p.strips)
	if strip >= p.strips {
		strip -= p.strips
		if p.jc+p.jcLines == p.lines {
			k0, k1 = k1, min(k1+p.kc, p.k)
		}
	}
	m, lo := p.b, strip*p.mc
	if !p.sharesA {
		m = p.a
	}
	lines, depth := min(p.mc, p.ownLines-lo), k1-k0
	if depth <= 0 || depth*lines > aheadLen {
		return Ahead{at: uintptr(unsafe.Pointer(&p.packed[0])), pairs: 1, left: 1, rows: 1}
	}
	row, col, rows, bytes := lo, k0, lines, 2*depth
	if !p.along(!p.sharesA) {
		row, col, rows, bytes = k0, lo, depth, 2*lines
	}
	stride := 2 * m.Stride
	at := uintptr(unsafe.Pointer(&words(m.Data)[row*m.Stride+col]))
	if bytes <= 128 {
		rows = cpu.Chunks(rows, 2)
		return Ahead{at: at, next: stride, left: rows, pairs: rows, rows: 1}
	}
	n := cpu.Chunks(bytes, 256)
	return Ahead{at: at, next: 128, left: n, back: stride - 256*n, pairs: n, rows: rows}
}
