package attention

import (
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/gemm"
	"github.com/snug-ml/snug/internal/half"
	"github.com/snug-ml/snug/internal/rowwise"
)

// factor is a matrix of float32 or bfloat16 in host memory that products take without
// conversion.
type factor struct {
	view               snug.View
	at                 int // first element
	rows, cols, stride int
}

func (t tile) factor() factor {
	return factor{snug.SliceView(t.x), 0, t.rows, t.cols, t.stride}
}

// factor returns rows lo to hi-1 for products: the tensor's own memory if products take its
// type, else a float32 copy in scratch.
func (h head) factor(scratch tile, lo, hi int) factor {
	if h.view.DType() == snug.BF16 && gemm.HasPairs() {
		return factor{h.view, h.at + lo*h.row, hi - lo, h.dim, h.row}
	}
	return h.load(scratch, lo, hi).factor()
}

// rounded returns weights t in the type of x, their other factor: t itself, or a rounded
// copy in scratch, which has at least as many rows and columns.
func (t tile) rounded(scratch, x factor) factor {
	if x.view.DType() == snug.F32 {
		return t.factor()
	}
	scratch.rows, scratch.cols = t.rows, t.cols
	if t.cols == t.stride && t.cols == scratch.stride {
		half.Store(scratch.view, 0, t.x[:t.rows*t.cols])
		return scratch
	}
	for i := range t.rows {
		half.Store(scratch.view, i*scratch.stride, t.row(i))
	}
	return scratch
}

// top returns the first n rows.
func (f factor) top(n int) factor {
	f.rows = n
	return f
}

// from returns the rows from i on.
func (f factor) from(i int) factor {
	f.at, f.rows = f.at+i*f.stride, f.rows-i
	return f
}

func (f factor) matrix() gemm.Matrix {
	data := f.view
	if f.rows > 0 {
		data, _ = f.view.Slice(f.at, f.view.Len()) // at is an element
	}
	return gemm.Matrix{Data: data, Stride: f.stride}
}

func (f factor) transposed() gemm.Matrix {
	m := f.matrix()
	m.Trans = true
	return m
}

// row returns row i as float32, where it lies or in scratch.
func (f factor) row(i int, scratch []float32) []float32 {
	at := f.at + i*f.stride
	if f.view.DType() == snug.F32 {
		return f.view.Float32s()[at:][:f.cols]
	}
	half.Load(scratch[:f.cols], f.view, at)
	return scratch[:f.cols]
}

// finite reports whether f has neither NaN nor infinity.
func (f factor) finite(scratch []float32) bool {
	k := rowwise.Registry.Best()
	for i := range f.rows {
		if !k.Finite(f.row(i, scratch)) {
			return false
		}
	}
	return true
}

// productT sets dst to a·bᵀ.
func productT(dst tile, a, b factor) {
	gemm.MulSerial(a.rows, b.rows, a.cols, 1, a.matrix(), b.transposed(), 0, dst.factor().matrix())
}

// products adds products of weights to tiles.
type products struct {
	low factor    // scratch for weights as bfloat16
	row []float32 // scratch for a row of at most dim elements
}

func newProducts(scratch *arena, dim int) products {
	return products{scratch.halves(tileQ, tileK), scratch.floats(dim)}
}

// productsScratch returns the float32 elements that newProducts carves up.
func productsScratch(dim int) int { return tileQ*tileK/2 + dim }

// add adds p·x to dst. p has a weight for each of the block's queries and keys, 0 where a
// query does not see a key. Since 0·NaN is NaN, add keeps rows of x that are not finite
// away from those zeros.
func (s *products) add(w *block, dst, p tile, x factor) {
	if w.full || s.finite(w.common(), x) {
		gemm.MulSerial(p.rows, x.cols, p.cols, 1, p.rounded(s.low, x).matrix(), x.matrix(), 1, dst.factor().matrix())
		return
	}
	k := rowwise.Registry.Best()
	w.each(p, func(i, j int, pij float32) { k.Axpby(dst.row(i), x.row(j, s.row), pij, 1) })
}

// finite reports whether x has neither NaN nor infinity outside of some of its rows.
func (s *products) finite(some keyRange, x factor) bool {
	if some.Lo >= some.Hi {
		return x.finite(s.row)
	}
	return x.top(some.Lo).finite(s.row) && x.from(some.Hi).finite(s.row)
}

// addT adds pᵀ·x to dst, for p as in add.
func (s *products) addT(w *block, dst, p tile, x factor) {
	if w.full || x.finite(s.row) {
		gemm.MulSerial(p.cols, x.cols, p.rows, 1, p.rounded(s.low, x).transposed(), x.matrix(), 1, dst.factor().matrix())
		return
	}
	k := rowwise.Registry.Best()
	w.each(p, func(i, j int, pij float32) { k.Axpby(dst.row(j), x.row(i, s.row), pij, 1) })
}
