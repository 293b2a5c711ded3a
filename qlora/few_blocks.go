package qlora

import (
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/gemm"
	"github.com/snug-ml/snug/internal/ggml"
	"github.com/snug-ml/snug/internal/rowwise"
)

// This file multiplies few rows by weights in the blocks of llama.cpp's files. Where there are no loops over blocks,
// workers decode parts of the weight that stay in their caches.

// fewTile is how many elements are decoded at a time there, or one output.
const fewTile = 1 << 14

// prefetched is how many outputs ahead Backward fetches: a range of columns is not one stream.
const prefetched = 4

// rowsAlike reports whether a product of few rows gives a row the same bits beside any others.
func (w *Weight) rowsAlike() bool {
	return w.t == GGUF && w.Device().IsCPU() && ggml.Registry.Best().Dot[w.format] != nil
}

// blockRow returns the blocks of columns from lo to hi-1 of an output.
func (w *weightCodes) blockRow(o, lo, hi int) []byte {
	elements, size := w.format.Elements(), w.format.Bytes()
	return snug.Host[uint8](w.packed)[(o*w.in+lo)/elements*size : (o*w.in+hi)/elements*size]
}

var fewBlocksTask = cpu.NewTask(func(a *fewArgs, item int) {
	lo, hi := cpu.Chunk(a.out, a.step(), item)
	n := hi - lo
	tile := tiles.Get(n*(a.rows+1) + a.rows)
	defer tiles.Put(tile)
	sums, some, y := (*tile)[:n*a.rows], (*tile)[n*a.rows:n*(a.rows+1)], (*tile)[n*(a.rows+1):]
	dot := ggml.Registry.Best().Dot[a.format]
	if dot == nil {
		a.decodedDots(sums, lo, n)
	} else {
		for j := range n {
			dot(y, a.x, a.in, a.blockRow(lo+j, 0, a.in))
			for r, v := range y {
				sums[r*n+j] = v
			}
		}
	}
	a.store(sums, some, lo)
})

// decodedDots writes the products of x and n outputs from lo on, which it decodes some at a time.
func (a *fewArgs) decodedDots(sums []float32, lo, n int) {
	lines := max(1, fewTile/a.in)
	tile := tiles.Get(lines * a.in)
	defer tiles.Put(tile)
	elements := *tile
	for j := 0; j < n; j += lines {
		count := min(lines, n-j)
		for i := range count {
			ggml.Registry.Best().Decode[a.format](elements[i*a.in:(i+1)*a.in], a.blockRow(lo+j+i, 0, a.in))
		}
		x, w := snug.SliceView(a.x), snug.SliceView(elements)
		gemm.MulSerial(a.rows, count, a.in, 1, gemm.Matrix{Data: x, Stride: a.in}, gemm.Matrix{Data: w, Stride: a.in, Trans: true},
			0, gemm.Matrix{Data: snug.SliceView(sums[j:]), Stride: n})
	}
}

var backBlocksTask = cpu.NewTask(func(a *backArgs, item int) {
	lo, hi := cpu.Chunk(a.in, a.step(), item)
	n := hi - lo
	tile := tiles.Get(a.rows*n + backOutputs*a.sums + max(2*n, backOutputs))
	defer tiles.Put(tile)
	sums, rest := (*tile)[:a.rows*n], (*tile)[a.rows*n:]
	factors, some := rest[:backOutputs*a.sums], rest[backOutputs*a.sums:]
	clear(sums)
	axpy, prefetch := ggml.Registry.Best().Axpy[a.format], rowwise.Registry.Best().Prefetch
	for j := 0; j < a.out; j += backOutputs {
		outs := min(backOutputs, a.out-j)
		a.factors(factors, some[:outs], j)
		if axpy == nil {
			a.decodedAxpys(sums, factors, lo, n, j, outs)
			continue
		}
		for i := range outs {
			if ahead := j + i + prefetched; ahead < a.out {
				prefetch(a.blockRow(ahead, lo, hi))
			}
			axpy(sums, n, factors[i*a.sums:i*a.sums+a.rows], a.blockRow(j+i, lo, hi))
		}
	}
	a.store(sums, some[:n], some[n:2*n], lo, func(x, y []float32, r, _ int) { copy(x, y[r*len(x):]) })
})

// decodedAxpys adds the products of factors and n columns from lo on of outputs from first on, which it decodes some at a
// time.
func (a *backArgs) decodedAxpys(sums, factors []float32, lo, n, first, outs int) {
	lines := max(1, fewTile/n)
	tile := tiles.Get(lines * n)
	defer tiles.Put(tile)
	elements := *tile
	for j := 0; j < outs; j += lines {
		count := min(lines, outs-j)
		for i := range count {
			ggml.Registry.Best().Decode[a.format](elements[i*n:(i+1)*n], a.blockRow(first+j+i, lo, lo+n))
		}
		dy, w := snug.SliceView(factors[j*a.sums:]), snug.SliceView(elements)
		gemm.MulSerial(a.rows, n, count, 1, gemm.Matrix{Data: dy, Stride: a.sums, Trans: true}, gemm.Matrix{Data: w, Stride: n},
			1, gemm.Matrix{Data: snug.SliceView(sums), Stride: n})
	}
}
