package attention

import (
	"unsafe"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/half"
)

// The sizes of a tile of scores. They fix the order of all sums.
const (
	tileQ = 128 // queries
	tileK = 256 // keys
	maskQ = 64  // queries where the mask cuts the tile
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

func headOf(v snug.View, s Strides, b, h, dim int) head {
	return head{v, b*s.Batch + h*s.Head, s.Row, dim}
}

// load returns rows lo to hi-1 as float32: the tensor's own memory if it holds
// float32, else room filled with them.
func (h head) load(room tile, lo, hi int) tile {
	if h.view.DType() == snug.F32 {
		return tile{h.view.Float32s()[h.at+lo*h.row:], hi - lo, h.dim, h.row}
	}
	room.rows = hi - lo
	k, at := half.Registry.Best(), h.at+lo*h.row
	if h.view.DType() == snug.F16 {
		widen(room, k.F16ToF32, h.view.Float16s()[at:], h.row)
	} else {
		widen(room, k.BF16ToF32, h.view.BFloat16s()[at:], h.row)
	}
	return room
}

// widen fills room with rows of src that lie row elements apart.
func widen[T any](room tile, convert func(dst []float32, src []T), src []T, row int) {
	if row == room.cols {
		convert(room.x[:room.rows*row], src[:room.rows*row])
		return
	}
	for i := range room.rows {
		convert(room.row(i), src[i*row:][:room.cols])
	}
}

// target returns where to compute rows lo to hi-1, for store to finish: the
// tensor's own memory if it holds float32, else room.
func (h head) target(room tile, lo, hi int) tile {
	if h.view.DType() == snug.F32 {
		return h.load(room, lo, hi)
	}
	return room.top(hi - lo)
}

// store finishes what target began.
func (h head) store(t tile, lo int) {
	if h.view.DType() == snug.F32 {
		return
	}
	for i := range t.rows {
		half.Store(h.view, h.at+(lo+i)*h.row, t.row(i))
	}
}

// window is a block of queries and what each of them sees of a tile of keys.
type window struct {
	lo, hi int        // the queries
	cols   int        // keys of the tile that the last one sees
	sees   [tileQ]int // keys that each one sees, from the tile's first
	full   bool       // they all see all cols
}

// next moves w on to queries after its hi, up to q1-1 at most, that see some of
// keys k0 to k1-1, and reports whether there are any. Where the mask cuts the
// tile, a block has at most maskQ queries, so that few products are computed for
// nothing.
func (w *window) next(c *Config, q1, k0, k1 int) bool {
	w.lo = max(w.hi, c.firstQuery(k0))
	if w.lo >= q1 {
		return false
	}
	w.hi = q1
	if c.visible(w.lo) < k1 {
		w.hi = min(w.lo+maskQ, q1)
	}
	for i := range w.hi - w.lo {
		w.sees[i] = min(c.visible(w.lo+i), k1) - k0
	}
	w.cols = w.sees[w.hi-w.lo-1] // later queries see no less
	w.full = w.sees[0] == w.cols
	return true
}

// of returns the rows of the block's queries in a tile of queries from q0 on, and
// factor those of a factor.
func (w *window) of(t tile, q0 int) tile         { return t.from(w.lo - q0).top(w.hi - w.lo) }
func (w *window) factor(f factor, q0 int) factor { return f.from(w.lo - q0).top(w.hi - w.lo) }

// split cuts the scores of query number i of the block into those that it sees
// and those that it does not.
func (w *window) split(row []float32, i int) (seen, unseen []float32) {
	return row[:w.sees[i]], row[w.sees[i]:]
}
