package attention

import (
	"unsafe"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/half"
)

// The sizes of a tile of scores. They fix the order of all sums.
const (
	tileQ  = 128 // queries
	tileK  = 256 // keys
	blockQ = 64  // queries of Forward that meet a tile of keys at a time: their scores stay in near caches
	maskQ  = 64  // queries where the mask cuts the tile
)

// scratch holds the tiles of running workers.
var scratch cpu.Scratch

// tile is a float32 matrix in host memory.
type tile struct {
	x                  []float32
	rows, cols, stride int
}

func (t tile) row(i int) []float32 { return t.x[i*t.stride:][:t.cols] }

// top returns the first n rows.
func (t tile) top(n int) tile {
	t.rows = n
	return t
}

// from returns the rows from i on.
func (t tile) from(i int) tile {
	t.x, t.rows = t.x[i*t.stride:], t.rows-i
	return t
}

// left returns the first n columns.
func (t tile) left(n int) tile {
	t.cols = n
	return t
}

func (t tile) clear() {
	for i := range t.rows {
		clear(t.row(i))
	}
}

// arena hands out parts of a scratch buffer.
type arena []float32

func (a *arena) floats(n int) []float32 {
	f := (*a)[:n:n]
	*a = (*a)[n:]
	return f
}

// halves hands out a part as bfloat16.
func (a *arena) halves(rows, cols int) factor {
	f := a.floats(rows * cols / 2)
	x := unsafe.Slice((*snug.BFloat16)(unsafe.Pointer(unsafe.SliceData(f))), 2*len(f))
	return factor{snug.SliceView(x), 0, rows, cols, cols}
}

func (a *arena) tile(rows, cols int) tile { return tile{a.floats(rows * cols), rows, cols, cols} }

// head is one head of one batch element of a tensor.
type head struct {
	view         snug.View
	at, row, dim int // first element, elements between rows, elements of a row
}

// load returns rows lo to hi-1 as float32: the tensor's own memory if it holds
// float32, else a copy in scratch.
func (h head) load(scratch tile, lo, hi int) tile {
	if h.view.DType() == snug.F32 {
		return tile{h.view.Float32s()[h.at+lo*h.row:], hi - lo, h.dim, h.row}
	}
	scratch.rows = hi - lo
	k, at := half.Registry.Best(), h.at+lo*h.row
	if h.view.DType() == snug.F16 {
		widen(scratch, k.F16ToF32, h.view.Float16s()[at:], h.row)
	} else {
		widen(scratch, k.BF16ToF32, h.view.BFloat16s()[at:], h.row)
	}
	return scratch
}

// widen fills scratch with rows of src that lie row elements apart.
func widen[T any](scratch tile, convert func(dst []float32, src []T), src []T, row int) {
	if row == scratch.cols {
		convert(scratch.x[:scratch.rows*row], src[:scratch.rows*row])
		return
	}
	for i := range scratch.rows {
		convert(scratch.row(i), src[i*row:][:scratch.cols])
	}
}

// target returns memory in which to compute rows lo to hi-1: the tensor's own if it holds
// float32, else scratch. store completes the rows.
func (h head) target(scratch tile, lo, hi int) tile {
	if h.view.DType() == snug.F32 {
		return h.load(scratch, lo, hi)
	}
	return scratch.top(hi - lo)
}

// store writes rows that were computed in the memory of target to the tensor.
func (h head) store(t tile, lo int) {
	if h.view.DType() == snug.F32 {
		return
	}
	for i := range t.rows {
		half.Store(h.view, h.at+(lo+i)*h.row, t.row(i))
	}
}
