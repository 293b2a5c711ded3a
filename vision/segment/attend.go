package segment

import (
	"fmt"
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/attention"
	"github.com/snug-ml/snug/fused"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/layers"
)

// attend is y = x + out(attention(norm(x))) within windows of patches, with relative positions of rows and columns. It has no backward
// step. A query q at row i and column j of its window and a key k at row u and column v have the score
//
//	s = q·k/√dim + q·R[i−u] + q·C[j−v]
//
// for the tables R and C. No matrix of scores exists: queries are longer by the products q·R and q·C for every row u and column v of the
// window, and keys by ones where these are their own, so that tiled attention adds what belongs to a key:
//
//	s = [q, √dim·q·R[i−0], …, √dim·q·C[j−0], …] · [k, 0 … 1 … 0, 0 … 1 … 0]/√dim
//
// Windows at the right and at the bottom are filled up with patches of zeros behind the norm, which attention sees, as the model was trained.
type attend struct {
	norm                layers.Norm
	qkv, out            layers.Linear
	relative            [2]*layers.Param // R and C, [2·window−1, dim], in the order of i−u; nil for none
	heads, grid, window int
}

// tile is about how many queries are prepared at once.
const tile = 1024

// Width implements [layers.Layer].
func (a *attend) Width(in int) (int, error) {
	if _, err := a.qkv.Width(in); err != nil {
		return 0, err
	}
	return a.out.Width(in)
}

// Params implements [layers.Layer].
func (a *attend) Params(yield func(*layers.Param) bool) {
	list := layers.Sequential{a.norm, &a.qkv, &a.out}
	more := true
	list.Params(func(p *layers.Param) bool {
		more = yield(p)
		return more
	})
	for _, p := range a.relative {
		if p != nil && more {
			more = yield(p)
		}
	}
}

// ForwardSave implements [layers.Layer]: a NoGrad calls Forward alone.
func (a *attend) ForwardSave(p *layers.Pass, x *layers.Tensor) (*layers.Tensor, layers.Saved) {
	return a.Forward(p, x), nil
}

// Backward implements [layers.Layer].
func (a *attend) Backward(p *layers.Pass, _ *layers.Tensor, _ layers.Saved, dy *layers.Tensor) *layers.Tensor {
	p.Do(func() error {
		return fmt.Errorf("segment: the encoder of images has no backward step: %w", snug.ErrConfig)
	})
	return dy
}

// Forward implements [layers.Layer].
func (a *attend) Forward(p *layers.Pass, x *layers.Tensor) *layers.Tensor {
	h := p.Get(a.out.Out)
	a.norm.Compute(p, h, layers.Stats{}, x)
	qkv := a.qkv.Forward(p, h)
	switch p.DType {
	case snug.BF16:
		attendIn(a, p, h, qkv, snug.View.BFloat16s)
	case snug.F16:
		attendIn(a, p, h, qkv, snug.View.Float16s)
	default:
		attendIn(a, p, h, qkv, snug.View.Float32s)
	}
	p.Put(qkv)
	y := a.out.Forward(p, h)
	p.Put(h)
	p.Do(func() error { return fused.Add(y.View, y.View, x.View) })
	return y
}

// part is the queries and keys of a row of windows of an image, or some queries of each window.
type part[T any] struct {
	*attend
	qkv, bias []T // of the image, [grid, grid, 3, heads, dim], and what was added to it
	q, k, v   []T // [windows, rows, window, heads, long], and dim for v
	out       []T // [windows, rows, window, heads, dim]
	products  []T // of queries with a table, [windows, rows, window, heads, 2·window−1]
	att       []T // of the image, [grid, grid, heads, dim]
	one       T
	top       int // row of the image where the windows begin
	first     int // row in a window where the queries begin
	rows      int // of queries of a window
	long, dim int
}

// each calls a function for each item in parallel.
var each = cpu.NewTask(func(do *func(item int), item int) { (*do)(item) })

// windows returns the windows in a row of an image.
func (a *attend) windows() int { return (a.grid + a.window - 1) / a.window }

// attendIn computes the attention of all images, in elements of type T, and writes it to h.
func attendIn[T any](a *attend, p *layers.Pass, h, qkv *layers.Tensor, elements func(snug.View) []T) {
	dim := a.out.In / a.heads
	long, side, windows := dim, a.window, a.windows()
	if a.relative[0] != nil {
		long += 2 * side
	}
	rows := min(side, (tile-1)/(windows*side)+1) // of queries at once
	scratch := func(n int) *layers.Tensor { return p.Get((n-1)/p.Rows() + 1) }
	keys, queries := windows*side*side*a.heads, windows*rows*side*a.heads
	k, v, q, out, products := scratch(keys*long), scratch(keys*dim), scratch(queries*long), scratch(queries*dim), scratch(queries*(2*side-1))
	p.Do(func() error {
		one, _, err := snug.MakeView(snug.CPU(), p.DType, 1)
		if err == nil {
			err = amp.Cast(one, []float32{1})
		}
		if err != nil {
			return err
		}
		t := &part[T]{attend: a, k: elements(k.View), v: elements(v.View), q: elements(q.View), out: elements(out.View), products: elements(products.View), one: elements(one)[0], long: long, dim: dim}
		if t.bias = make([]T, 3*a.out.In); a.qkv.Bias != nil {
			t.bias = elements(a.qkv.Bias.Value)
		}
		image := a.grid * a.grid * a.out.In
		for at := 0; at < h.Len(); at += image {
			t.qkv, t.att = elements(qkv.View)[3*at:][:3*image], elements(h.View)[at:][:image]
			for t.top = 0; t.top < a.grid; t.top += side {
				each.Run(windows*side*side, t.key)
				for t.first = 0; t.first < side && t.top+t.first < a.grid; t.first += rows {
					t.rows = min(rows, side-t.first)
					if err := t.compute(q.View, k.View, v.View, out.View, products.View); err != nil {
						return err
					}
				}
			}
		}
		return nil
	})
	p.Put(k, v, q, out, products)
}

// compute computes the attention of some queries, whose keys are ready.
func (t *part[T]) compute(q, k, v, out, products snug.View) error {
	positions := t.windows() * t.rows * t.window
	each.Run(positions, t.query)
	for axis, table := range t.relative {
		if table == nil {
			continue
		}
		err := amp.MatMul(products, q, table.Value, amp.MatMulOptions{
			M: positions * t.heads, N: 2*t.window - 1, K: t.dim, LDA: t.long, TransB: true, Into: snug.Into{Alpha: float32(math.Sqrt(float64(t.dim)))}})
		if err != nil {
			return err
		}
		each.Run(positions, func(item int) { t.extend(item, axis) })
	}
	c := attention.Options{Batch: t.windows(), Heads: t.heads, SeqQ: t.rows * t.window, SeqK: t.window * t.window, Dim: t.long, DimV: t.dim, Scale: float32(1 / math.Sqrt(float64(t.dim)))}
	if err := attention.Forward(out, snug.ViewOf([]float32(nil)), q, k, v, attention.SequenceMajor(c)); err != nil {
		return err
	}
	each.Run(positions, t.leave)
	return nil
}

// at returns q, k and v of a position of the image, those of a patch of zeros beyond it.
func (t *part[T]) at(row, column int) []T {
	if row >= t.grid || column >= t.grid {
		return t.bias
	}
	return t.qkv[(row*t.grid+column)*3*t.heads*t.dim:][:3*t.heads*t.dim]
}

// place returns the window, the row and the column in it of an item, for windows of so many rows.
func (t *part[T]) place(item, rows int) (window, row, column int) {
	return item / (rows * t.window), item / t.window % rows, item % t.window
}

// key prepares a key and a value.
func (t *part[T]) key(item int) {
	window, row, column := t.place(item, t.window)
	from, width := t.at(t.top+row, window*t.window+column), t.heads*t.dim
	copy(t.v[item*width:], from[2*width:])
	for head := range t.heads {
		to := t.k[(item*t.heads+head)*t.long:][:t.long]
		rest := to[copy(to, from[width+head*t.dim:][:t.dim]):]
		if clear(rest); len(rest) > 0 {
			rest[t.window-1-row], rest[2*t.window-1-column] = t.one, t.one
		}
	}
}

// query prepares a query, without its products.
func (t *part[T]) query(item int) {
	window, row, column := t.place(item, t.rows)
	from := t.at(t.top+t.first+row, window*t.window+column)
	for head := range t.heads {
		copy(t.q[(item*t.heads+head)*t.long:], from[head*t.dim:][:t.dim])
	}
}

// extend puts the products of a query with the table of an axis behind it: of the last row or column first, in the order of the table.
func (t *part[T]) extend(item, axis int) {
	_, row, column := t.place(item, t.rows)
	from := [2]int{t.first + row, column}[axis]
	for head := range t.heads {
		i := item*t.heads + head
		copy(t.q[i*t.long+t.dim+axis*t.window:][:t.window], t.products[i*(2*t.window-1)+from:])
	}
}

// leave writes the output for a query to the image.
func (t *part[T]) leave(item int) {
	window, row, column := t.place(item, t.rows)
	row, column = t.top+t.first+row, window*t.window+column
	if width := t.heads * t.dim; row < t.grid && column < t.grid {
		copy(t.att[(row*t.grid+column)*width:][:width], t.out[item*width:])
	}
}
