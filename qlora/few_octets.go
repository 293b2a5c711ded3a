package qlora

import (
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/octet"
	"github.com/snug-ml/snug/internal/rowwise"
)

// This file multiplies few rows by weights of 8 bits. Their loops over codes know no scales. A scale of a row
// multiplies its sums. One of a block multiplies x, once for all outputs of an item, or the factors of Backward, once
// for all columns of the block.

// octetStep is step for weights of 8 bits: an item has outputs of one row of blocks.
func (a *fewArgs) octetStep() int {
	if a.grid.perRow(a.in) {
		return a.step()
	}
	if a.grid.rows%scaleBlock == 0 {
		return scaleBlock
	}
	return backOutputs
}

var fewOctetsTask = cpu.NewTask(func(a *fewArgs, item int) {
	lo, hi := cpu.Chunk(a.out, a.octetStep(), item)
	n, span := hi-lo, a.span()*a.block
	buffer := span * a.rows
	if a.grid.perRow(a.in) {
		buffer = 0
	}
	tile := tiles.Get(n*a.rows + max(n, a.rows) + buffer)
	defer tiles.Put(tile)
	sums, some, scaled := (*tile)[:n*a.rows], (*tile)[n*a.rows:][:max(n, a.rows)], (*tile)[n*a.rows+max(n, a.rows):]
	clear(sums)
	codes, scales := snug.Host[uint8](a.packed), a.absmax.Float32s()
	unit := a.o.Unit * a.o.Factor
	for from := 0; from < a.in; from += span {
		to := min(from+span, a.in)
		x, stride := a.x[from:], a.in
		if !a.grid.perRow(a.in) {
			x, stride = scaled, to-from
			a.scale(scaled, a.grid.of(lo, a.in, scales), unit, from, to)
		}
		y := some[:a.rows]
		dot := octet.Registry.Best().Dot
		for j := range n {
			at := (lo + j) * a.in
			dot(y, x, stride, codes[at+from:at+to], a.o)
			for r, v := range y {
				sums[r*n+j] += v
			}
		}
	}
	if a.grid.perRow(a.in) {
		for j := range n {
			s := a.grid.of(lo+j, a.in, scales)[0] * unit
			for r := range a.rows {
				sums[r*n+j] *= s
			}
		}
	}
	a.store(sums, some[:n], lo)
})

// scale writes columns from to to-1 of x times the scales of their blocks.
func (a *fewArgs) scale(scaled, scales []float32, unit float32, from, to int) {
	n := to - from
	for r := range a.rows {
		for lo := from; lo < to; lo += a.grid.cols {
			hi := min(lo+a.grid.cols, to)
			rowwise.Registry.Best().Scale(scaled[r*n+lo-from:r*n+hi-from], a.x[r*a.in+lo:r*a.in+hi], scales[lo/a.grid.cols]*unit)
		}
	}
}

var backOctetsTask = cpu.NewTask(func(a *backArgs, item int) {
	lo, hi := cpu.Chunk(a.in, a.step(), item)
	n := hi - lo
	tile := tiles.Get(a.sums*n + 2*backOutputs*a.sums + max(2*n, backOutputs))
	defer tiles.Put(tile)
	sums, rest := (*tile)[:a.sums*n], (*tile)[a.sums*n:]
	factors, rest := rest[:backOutputs*a.sums], rest[backOutputs*a.sums:]
	scaled, some := rest[:backOutputs*a.sums], rest[backOutputs*a.sums:]
	clear(sums)
	clear(factors)
	k, codes, scales := octet.Registry.Best(), snug.Host[uint8](a.packed), a.absmax.Float32s()
	unit := a.o.Unit * a.o.Factor
	for j := 0; j < a.out; j += backOutputs {
		outs := min(backOutputs, a.out-j)
		a.factors(factors, some[:outs], j)
		if a.grid.perRow(a.in) {
			for o := range outs {
				s := a.grid.of(j+o, a.in, scales)[0] * unit
				for i := o * a.sums; i < (o+1)*a.sums; i++ {
					scaled[i] = factors[i] * s
				}
			}
			k.Axpy(sums, scaled[:outs*a.sums], a.sums, codes[j*a.in+lo:], a.in, a.o)
			continue
		}
		of := a.grid.of(j, a.in, scales)
		for from := lo; from < hi; from += a.grid.cols {
			to := min(from+a.grid.cols, hi)
			rowwise.Registry.Best().Scale(scaled[:outs*a.sums], factors[:outs*a.sums], of[from/a.grid.cols]*unit)
			k.Axpy(sums[(from-lo)*a.sums:(to-lo)*a.sums], scaled[:outs*a.sums], a.sums, codes[j*a.in+from:], a.in, a.o)
		}
	}
	a.store(sums, some[:n], some[n:2*n], lo, octet.Gather)
})
