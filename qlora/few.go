package qlora

import (
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/half"
	"github.com/snug-ml/snug/internal/nibble"
)

// fewRows is how many rows the loops over codes are faster for than those of a product.
func fewRows() int {
	if nibble.Dots.Tier() == cpu.Go {
		return 2
	}
	return nibble.DotRows
}

// few reports whether Forward multiplies by codes. What the products of tiles refuse is
// left to them.
func (l *Linear) few(rows int, y, x snug.View, beta float32) bool {
	return rows <= fewRows() && l.w.Device().IsCPU() && l.in%l.w.block == 0 &&
		l.w.packed.View().Len() > 0 && y.DType().IsFloat() && beta-beta == 0 && !overlap(y, x)
}

func overlap(y, x snug.View) bool {
	a, b := uintptr(y.Mem().Host), uintptr(x.Mem().Host)
	return a < b+uintptr(x.Bytes()) && b < a+uintptr(y.Bytes())
}

// forwardFew is Forward of few rows.
func (l *Linear) forwardFew(rows int, y, x snug.View, beta float32) {
	floats := x.Float32s()
	if floats == nil {
		tile := tiles.Get(x.Len())
		defer tiles.Put(tile)
		half.Load(*tile, x, 0)
		floats = *tile
	}
	a := fewArgs{w: l.w, y: y, x: floats, rows: rows, in: l.in, out: l.out, beta: beta}
	fewTask.Run(cpu.Chunks(l.out, a.step()), a)
}

type fewArgs struct {
	w             *Weight
	y             snug.View
	x             []float32 // [rows, in]
	rows, in, out int
	beta          float32
}

// step returns how many outputs an item has: those of 32 KiB of codes.
func (a *fewArgs) step() int { return max(1, 4*grain/a.in) }

var fewTask = cpu.NewTask(func(a *fewArgs, item int) {
	lo, hi := cpu.Chunk(a.out, a.step(), item)
	blocks := a.in / a.w.block // of an output
	n := hi - lo
	tile := tiles.Get(n*(blocks+a.rows) + max(n, a.rows))
	defer tiles.Put(tile)
	absmax, sums, some := (*tile)[:n*blocks], (*tile)[n*blocks:n*(blocks+a.rows)], (*tile)[n*(blocks+a.rows):]
	a.w.blockMaxima(absmax, lo*blocks)
	clear(sums)
	for from := 0; from < blocks; from += a.span() {
		a.dots(sums, some[:a.rows], absmax, lo, from, min(from+a.span(), blocks))
	}
	for r := range a.rows {
		row, at := sums[r*n:(r+1)*n], r*a.out+lo
		if a.beta != 0 {
			for i, v := range half.Floats(a.y, at, some[:n]) {
				row[i] += float32(a.beta * v)
			}
		}
		half.Store(a.y, at, row)
	}
})

// span is how many blocks of a row are multiplied at a time: x of them stays in the
// nearest cache.
func (a *fewArgs) span() int { return max(1, 1<<13/a.rows/a.w.block) }

// dots adds the products by blocks from to to-1 of outputs from lo on to sums, those of
// every row side by side. y has room for one output.
func (a *fewArgs) dots(sums, y, absmax []float32, lo, from, to int) {
	packed, dot, f := snug.Host[uint8](a.w.packed.View()), *nibble.Dots.Best(), a.w.t.format()
	blocks, begin, end := a.in/a.w.block, from*a.w.block, to*a.w.block
	n := len(sums) / a.rows
	for j := range n {
		at := (lo + j) * a.in
		dot(y, a.x[begin:], a.in, packed[(at+begin)/2:(at+end)/2], absmax[j*blocks+from:j*blocks+to], a.w.block, f)
		for r, v := range y {
			sums[r*n+j] += v
		}
	}
}

// blockMaxima writes the absmax of blocks first and up, on the CPU.
func (w *Weight) blockMaxima(absmax []float32, first int) {
	if w.m == nil {
		copy(absmax, w.absmax.Host()[first:])
		return
	}
	unnest(absmax, w.codes.Host(), w.nested.Host(), w.offset, w.m, first)
}
