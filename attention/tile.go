package attention

import (
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/gemm"
	"github.com/snug-ml/snug/internal/half"
)

// The sizes of a tile of scores. They fix the order of all sums.
const (
	tileQ = 64  // queries
	tileK = 128 // keys
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

// finite reports whether t has neither NaN nor infinity.
func (t tile) finite() bool {
	for i := range t.rows {
		for _, x := range t.row(i) {
			if x-x != 0 {
				return false
			}
		}
	}
	return true
}

func (t tile) matrix() gemm.Matrix {
	return gemm.Matrix{Data: snug.SliceView(t.x), Stride: t.stride}
}

func (t tile) transposed() gemm.Matrix {
	return gemm.Matrix{Data: snug.SliceView(t.x), Stride: t.stride, Trans: true}
}

// productT sets dst to alpha·a·bᵀ.
func productT(dst, a, b tile, alpha float32) {
	gemm.MulSerial(a.rows, b.rows, a.cols, alpha, a.matrix(), b.transposed(), 0, dst.matrix())
}

// arena hands out parts of a scratch buffer.
type arena []float32

func (a *arena) floats(n int) []float32 {
	f := (*a)[:n:n]
	*a = (*a)[n:]
	return f
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
	for i := range room.rows {
		half.Load(room.row(i), h.view, h.at+(lo+i)*h.row)
	}
	return room
}

// store rounds t into the rows from lo on.
func (h head) store(t tile, lo int) {
	for i := range t.rows {
		half.Store(h.view, h.at+(lo+i)*h.row, t.row(i))
	}
}

// window is what the queries of one tile see of the keys of another.
type window struct {
	sees [tileQ]int // how many of the tile's keys, from its first, a query sees
	full bool       // every query sees every key
}

// look sets w for queries q0 to q1-1 and keys k0 to k1-1.
func (w *window) look(c *Config, q0, q1, k0, k1 int) {
	for i := range q1 - q0 {
		w.sees[i] = min(max(c.visible(q0+i)-k0, 0), k1-k0)
	}
	w.full = w.sees[0] == k1-k0 // later queries see no less
}

// add adds alpha·p·x to dst, for p of queries × keys that is 0 where a query
// does not see a key. Since 0·NaN is NaN, rows of x that are not finite must
// not meet those zeros.
func (w *window) add(dst, p, x tile, alpha float32) {
	if w.full || x.finite() {
		gemm.MulSerial(p.rows, x.cols, p.cols, alpha, p.matrix(), x.matrix(), 1, dst.matrix())
		return
	}
	for i := range p.rows {
		for j, pij := range p.row(i)[:w.sees[i]] {
			axpy(dst.row(i), alpha*pij, x.row(j))
		}
	}
}

// addT adds alpha·pᵀ·x to dst, for p as in add.
func (w *window) addT(dst, p, x tile, alpha float32) {
	if w.full || x.finite() {
		gemm.MulSerial(p.cols, x.cols, p.rows, alpha, p.transposed(), x.matrix(), 1, dst.matrix())
		return
	}
	for i := range p.rows {
		for j, pij := range p.row(i)[:w.sees[i]] {
			axpy(dst.row(j), alpha*pij, x.row(i))
		}
	}
}

// axpy adds a·x to dst.
func axpy(dst []float32, a float32, x []float32) {
	for i, xi := range x {
		dst[i] += a * xi
	}
}
