package qlora

import (
	"errors"
	"fmt"
	"math/bits"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/half"
	"github.com/snug-ml/snug/internal/nibble"
)

// backOutputs is how many outputs an item of Backward takes at a time.
const backOutputs = 1 << 6

// fewRowsBackward is the largest number of rows, at most nibble.DotRows, for which the loops
// over codes are faster on the CPU than products of tiles.
func (w *Weight) fewRowsBackward() int {
	if w.codesTier() == cpu.Go && w.t != GGUF {
		return nibble.DotRows / 2
	}
	return nibble.DotRows
}

// fewBackward reports whether Backward multiplies by codes.
func (l *Linear) fewBackward(rows int, dx, dy snug.View, beta float32) bool {
	return l.w.Device().IsCPU() && rows <= l.w.fewRowsBackward() && l.byCodes(dx, dy, beta)
}

// backwardFew is Backward of few rows on the CPU.
func (l *Linear) backwardFew(rows int, dx, dy snug.View, beta float32) (err error) {
	m, err := l.w.hold()
	if err != nil {
		return fmt.Errorf("qlora: linear: backward: %w", err)
	}
	defer func() { err = errors.Join(err, l.w.drop()) }()
	a := backArgs{weightCodes: l.codes(m), dx: dx, dy: dy, rows: rows, sums: 1 << bits.Len(uint(rows-1)), beta: beta}
	if a.groups != nil && a.groups.order != nil {
		tile := tiles.Get(rows * a.in)
		defer tiles.Put(tile)
		a.dx, a.beta = snug.SliceView((*tile)[:rows*a.in]), 0
		defer func() { a.groups.fromOrder(dx, (*tile)[:rows*a.in], a.in, beta) }()
	}
	switch {
	case a.t == GGUF:
		backBlocksTask.Run(cpu.Chunks(a.in, a.step()), a)
	case a.o != nil:
		backOctetsTask.Run(cpu.Chunks(a.in, a.step()), a)
	default:
		backTask.Run(cpu.Chunks(a.in, a.step()), a)
	}
	return nil
}

// backArgs are dx = dy·W + beta·dx for up to nibble.DotRows rows.
type backArgs struct {
	weightCodes
	dx, dy snug.View
	rows   int // of dx and dy
	sums   int // at least rows, a power of two
	beta   float32
}

// step returns how many columns an item computes, in whole blocks. It is a quarter of the
// columns, but enough to read codes in sequence, and few enough to keep the sums in the
// nearest cache.
func (a *backArgs) step() int {
	columns := min(max(1<<8, a.in/4), 1<<10, 1<<12/a.sums)
	return max(1, columns/a.block) * a.block
}

var backTask = cpu.NewTask(func(a *backArgs, item int) {
	lo, hi := cpu.Chunk(a.in, a.step(), item)
	n, blocks := hi-lo, (hi-lo)/a.block
	tile := tiles.Get(a.sums*n + backOutputs*(a.sums+blocks) + max(2*n, backOutputs) + a.rows*blocks)
	defer tiles.Put(tile)
	sums, rest := (*tile)[:a.sums*n], (*tile)[a.sums*n:]
	factors, rest := rest[:backOutputs*a.sums], rest[backOutputs*a.sums:]
	absmax, rest := rest[:backOutputs*blocks], rest[backOutputs*blocks:]
	zeros, some := rest[:a.rows*blocks], rest[a.rows*blocks:]
	clear(zeros)
	clear(sums)
	clear(factors)
	axpy, packed := *nibble.Axpys.Best(), snug.Host[uint8](a.packed)
	for j := 0; j < a.out; j += backOutputs {
		outs := min(backOutputs, a.out-j)
		a.factors(factors, some[:outs], j)
		for o := range outs {
			first := ((j+o)*a.in + lo) / a.block
			a.blockMaxima(absmax[o*blocks:(o+1)*blocks], first)
			if a.groups != nil && a.groups.zeros {
				a.addZeros(zeros, absmax[o*blocks:(o+1)*blocks], factors[o*a.sums:], first)
			}
		}
		axpy(sums, factors[:outs*a.sums], a.sums, packed[(j*a.in+lo)/2:], a.in/2, absmax, a.block, a.f)
	}
	gather := nibble.Gather
	if a.groups != nil && a.groups.zeros {
		gather = func(x, y []float32, r, rows int) {
			nibble.Gather(x, y, r, rows)
			for b, zero := range zeros[r*blocks:][:blocks] {
				for i := range x[b*a.block:][:a.block] {
					x[b*a.block+i] += zero
				}
			}
		}
	}
	a.store(sums, some[:n], some[n:2*n], lo, gather)
})

// factors writes the elements of dy for the outputs from first on, one output after the
// other. some has space for the elements of one row.
func (a *backArgs) factors(to, some []float32, first int) {
	for r := range a.rows {
		for i, v := range half.Floats(a.dy, r*a.out+first, some) {
			to[i*a.sums+r] = v
		}
	}
}

// store writes the columns of dx from first on. row and some have space for them in one row. gather takes a row from
// the sums.
func (a *backArgs) store(sums, row, some []float32, first int, gather func(x, y []float32, r, rows int)) {
	for r := range a.rows {
		at := r*a.in + first
		gather(row, sums, r, a.sums)
		if a.beta != 0 {
			for i, v := range half.Floats(a.dx, at, some) {
				row[i] += float32(a.beta * v)
			}
		}
		half.Store(a.dx, at, row)
	}
}
