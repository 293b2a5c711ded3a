package qlora

import (
	"errors"
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/ggml"
	"github.com/snug-ml/snug/internal/half"
	"github.com/snug-ml/snug/internal/nibble"
	"github.com/snug-ml/snug/internal/octet"
	"github.com/snug-ml/snug/quant8"
)

// fewRows is the largest number of rows for which the loops over codes are used. On the CPU
// they are faster than products of tiles up to that number. Other devices use them for more
// rows, because the outputs of a tile do not fill the device and each tile needs its own launches.
func (w *Weight) fewRows() int {
	switch {
	case !w.Device().IsCPU() && w.grid.rows > 0:
		return 0
	case !w.Device().IsCPU():
		return 4 * nibble.DotRows
	case w.codesTier() == cpu.Go && w.t != GGUF:
		return 2
	}
	return nibble.DotRows
}

// codesTier is the tier of the loops over codes.
func (w *Weight) codesTier() cpu.Tier {
	if w.grid.rows > 0 {
		return octet.Registry.Tier()
	}
	return nibble.Dots.Tier()
}

// few reports whether Forward multiplies by codes.
func (l *Linear) few(rows int, y, x snug.View, beta float32) bool {
	return rows <= l.w.fewRows() && l.byCodes(y, x, beta)
}

// byCodes reports whether the loops over codes can compute y from x. Calls that products of
// tiles refuse go to those products, which return the error.
func (l *Linear) byCodes(y, x snug.View, beta float32) bool {
	return l.block > 0 && l.w.n > 0 &&
		y.DType().IsFloat() && beta-beta == 0 && !device.Mem(&y).Overlaps(*device.Mem(&x))
}

// forwardFew is Forward of few rows.
func (l *Linear) forwardFew(rows int, y, x snug.View, beta float32) (err error) {
	m, err := l.w.hold()
	if err != nil {
		return fmt.Errorf("qlora: linear: forward: %w", err)
	}
	defer func() { err = errors.Join(err, l.w.drop()) }()
	j := fewJob{weightCodes: l.codes(m), y: y, x: x, rows: rows, beta: beta}
	return device.Run(l.w.Device(), j)
}

// weightCodes is W, [out, in] elements, where in is a multiple of the block. With double
// quantization codes and nested replace absmax; without it they are empty. f belongs to 4 bits, o and the grid of
// scales, absmax, to 8 bits, and the format of blocks to GGUF.
type weightCodes struct {
	t                             Type
	format                        ggml.Format
	packed, absmax, codes, nested snug.View
	f                             *nibble.Format
	o                             *octet.Format
	grid                          grid
	block                         int
	offset                        float32
	m                             *quant8.Map // nil without double quantization
	in, out                       int
	groups                        *groups // of Grouped
	zeros                         snug.View
}

func (l *Linear) codes(m memory) weightCodes {
	w := l.w
	c := weightCodes{
		t: w.t, format: w.format,
		packed: m.packed, absmax: m.absmax, codes: m.codes, nested: m.nested,
		f: w.t.nibbles(), o: w.t.octets(), grid: w.grid, block: l.block, offset: w.offset, m: w.m, in: l.in, out: l.out, groups: w.groups,
	}
	if w.groups != nil {
		c.zeros, c.codes = m.codes, snug.View{}
	}
	return c
}

// fewJob computes y = x·Wᵀ + beta·y.
type fewJob struct {
	weightCodes
	y, x snug.View
	rows int
	beta float32
}

func (j *fewJob) Kernel() string { return "qlora.few" }

func (j *fewJob) Operands(yield func(*driver.Mem)) {
	device.Each(yield, &j.y, &j.x, &j.packed, &j.absmax, &j.codes, &j.nested)
}

func (j fewJob) Run() {
	floats, evensFirst := j.x.Float32s(), j.f != nil && nibble.Dots.Best().EvensFirst
	if floats == nil || evensFirst || j.groups != nil && j.groups.order != nil {
		tile := tiles.Get(j.x.Len())
		defer tiles.Put(tile)
		j.groups.inOrder((*tile)[:j.x.Len()], j.x, j.in)
		floats = (*tile)[:j.x.Len()]
	}
	var xSums []float32
	blocks := 0
	if j.groups != nil && j.groups.zeros {
		blocks = j.in / j.block
		tile := tiles.Get(j.rows * blocks)
		defer tiles.Put(tile)
		xSums = (*tile)[:j.rows*blocks]
		blockSums(xSums, floats, j.block)
	}
	if evensFirst {
		nibble.EvensFirst(floats)
	}
	for lo := 0; lo < j.rows; lo += nibble.DotRows {
		hi := min(lo+nibble.DotRows, j.rows)
		a := fewArgs{fewJob: j, x: floats[lo*j.in : hi*j.in]}
		a.y, a.rows = part(j.y, lo*j.out, hi*j.out), hi-lo
		a.xSums = xSums[lo*blocks : hi*blocks]
		switch {
		case j.t == GGUF:
			fewBlocksTask.Run(cpu.Chunks(j.out, a.step()), a)
		case j.o != nil:
			fewOctetsTask.Run(cpu.Chunks(j.out, a.octetStep()), a)
		default:
			fewTask.Run(cpu.Chunks(j.out, a.step()), a)
		}
	}
}

// fewArgs is a job of up to nibble.DotRows rows on the CPU.
type fewArgs struct {
	fewJob
	x     []float32 // [rows, in]
	xSums []float32 // of blocks, where there are zero points
}

// step returns how many outputs an item computes: as many as 32 KiB of codes hold.
func (a *fewArgs) step() int { return max(1, 4*grain/a.in) }

var fewTask = cpu.NewTask(func(a *fewArgs, item int) {
	lo, hi := cpu.Chunk(a.out, a.step(), item)
	blocks := a.in / a.block // of an output
	n := hi - lo
	tile := tiles.Get(n * (blocks + a.rows + 1))
	defer tiles.Put(tile)
	absmax, sums, some := (*tile)[:n*blocks], (*tile)[n*blocks:n*(blocks+a.rows)], (*tile)[n*(blocks+a.rows):]
	a.blockMaxima(absmax, lo*blocks)
	clear(sums)
	for from := 0; from < blocks; from += a.span() {
		a.dots(sums, absmax, lo, from, min(from+a.span(), blocks))
	}
	if a.xSums != nil {
		a.addZeros(sums, absmax, lo)
	}
	a.store(sums, some, lo)
})

// store writes the outputs from lo on, and some has space for them in a row.
func (a *fewArgs) store(sums, some []float32, lo int) {
	n := len(some)
	for r := range a.rows {
		row, at := sums[r*n:(r+1)*n], r*a.out+lo
		if a.beta != 0 {
			for i, v := range half.Floats(a.y, at, some) {
				row[i] += float32(a.beta * v)
			}
		}
		half.Store(a.y, at, row)
	}
}

// span is how many blocks of a row are multiplied at a time: their part of x stays in the
// nearest cache.
func (a *fewArgs) span() int { return max(1, 1<<13/a.rows/a.block) }

// dots adds the products of blocks from to to-1 to sums, for the outputs from lo on. sums
// holds the outputs of one row after the other.
func (a *fewArgs) dots(sums, absmax []float32, lo, from, to int) {
	blocks, begin := a.in/a.block, from*a.block
	l := nibble.Lines{
		N: len(sums) / a.rows, Blocks: to - from, Block: a.block,
		Packed: snug.Host[uint8](a.packed)[(lo*a.in+begin)/2:], Pitch: a.in / 2, Absmax: absmax[from:], AbsmaxPitch: blocks,
	}
	nibble.Dots.Best().Dot(sums, a.x[begin:], a.rows, a.in, l, a.f)
}

// blockMaxima writes the absmax of the blocks from first on.
func (w *weightCodes) blockMaxima(absmax []float32, first int) {
	if w.m == nil {
		copy(absmax, w.absmax.Float32s()[first:])
		return
	}
	unnest(absmax, snug.Host[uint8](w.codes), w.nested.Float32s(), w.offset, w.m, first)
}
