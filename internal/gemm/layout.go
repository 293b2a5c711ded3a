package gemm

import (
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
)

// The largest blocks. A block of B, 256 KiB, stays in the second-level cache. Where workers share B, it is
// deeper and narrower, since C is read and written for each block of the depth.
const (
	maxRows       = 448 // of a tile
	maxRowsStaged = 224 // of a staged tile
	maxCols       = 256 // of a tile
	maxDepth      = 256 // of a block
	sharedCols    = 128 // of a tile where workers share B
	sharedDepth   = 512 // of its block
)

// A product is cut further until it has wantTiles tiles, unless they would do
// less than minWork multiply-adds or have fewer than minSide rows and columns.
const (
	wantTiles = 16
	minWork   = 1 << 20
	minSide   = 64
)

// layout is how a product is cut. It depends on its shape, on C's type and on
// the micro-kernel.
type layout struct {
	tilesM, tilesN int
	cols           int  // of a tile, a multiple of NR; the last may have fewer
	shares         bool // workers share the packed B; see [args.shared]
	blocks         int  // of the depth
	swapped        bool // the product is of the transposes, Bᵀ·Aᵀ = Cᵀ
	staged         bool // tiles are summed in scratch: C is transposed or not float32
}

func newLayout(kern *Kernel, m, n, k int, swapped bool, dtypeC snug.DType) layout {
	l := layout{blocks: cpu.Chunks(k, maxDepth), swapped: swapped, staged: swapped || dtypeC != snug.F32}
	rows, cols := maxRows, maxCols
	if l.staged {
		rows = maxRowsStaged
	}
	if l.shares = !l.staged && sharesB(m, n, k); l.shares {
		cols, l.blocks = sharedCols, cpu.Chunks(k, sharedDepth)
	}
	l.tilesM, l.tilesN = cpu.Chunks(m, rows), cpu.Chunks(n, cols)
	work := float64(m) * float64(n) * float64(k)
	for l.tiles() < wantTiles && work >= 2*minWork*float64(l.tiles()) {
		rows, cols := m/l.tilesM, n/l.tilesN
		if max(rows, cols) < 2*minSide {
			break
		}
		if cols >= rows {
			l.tilesN++
		} else {
			l.tilesM++
		}
	}
	l.cols = cpu.Chunks(cpu.Chunks(n, l.tilesN), kern.NR) * kern.NR
	l.tilesN = cpu.Chunks(n, l.cols)
	return l
}

func (l *layout) tiles() int { return l.tilesM * l.tilesN }

// skinny is the most rows or columns for which packing the other operand would
// take too much of the time.
const skinny = 32

// transposes says whether the transposed product spares the transposing of
// the operand that makes up nearly all of the memory.
func transposes(m, n int, a, b Matrix) bool {
	return m <= skinny && m < n && b.Trans || n <= skinny && n < m && a.Trans
}

// part returns the bounds of part i of n elements, in parts whose sizes differ
// by at most 1.
func part(n, parts, i int) (lo, hi int) {
	size, larger := n/parts, n%parts
	return i*size + min(i, larger), (i+1)*size + min(i+1, larger)
}
