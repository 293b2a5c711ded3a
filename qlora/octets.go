package qlora

import (
	"fmt"
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/blockq"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/half"
	"github.com/snug-ml/snug/internal/octet"
)

// This file has weights of 8 bits an element: their scales, how they are made and how they are decoded.

// scaleBlock is the rows and columns of [ByBlock].
const scaleBlock = 128

// grid says how many rows and columns of a matrix share a scale. The scales lie row by row. The zero grid is of weights
// in blocks.
type grid struct{ rows, cols int }

// gridOf returns the grid of a matrix [out, in].
func gridOf(t Type, s Scales, out, in int) grid {
	switch {
	case t == INT8 || s == ByRow:
		return grid{1, max(1, in)}
	case s == ByTensor:
		return grid{max(1, out), max(1, in)}
	}
	return grid{scaleBlock, scaleBlock}
}

func (g grid) count(out, in int) int { return cpu.Chunks(out, g.rows) * cpu.Chunks(in, g.cols) }

// of returns the scales of a row.
func (g grid) of(row, in int, scales []float32) []float32 {
	across := cpu.Chunks(in, g.cols)
	return scales[row/g.rows*across:][:across]
}

// perRow reports whether all elements of a row share a scale.
func (g grid) perRow(in int) bool { return g.cols >= in }

// codeBlock returns of how many columns the columns that Backward cuts are multiples in the loops over codes, which
// multiply blocks of the grid, or rows. It returns 0 if they do not take the matrix: columns of outliers they do not
// know.
func (g grid) codeBlock(in, outliers int) int {
	switch {
	case in == 0 || in%octet.Step != 0 || outliers > 0:
		return 0
	case g.perRow(in):
		return octet.Step
	case g.cols%octet.Step != 0 || g.rows%backOutputs != 0:
		return 0
	}
	return g.cols
}

// keptType is the type of the elements of outliers.
func (w *Weight) keptType() snug.DType {
	if w.dtype == snug.F16 {
		return snug.F16
	}
	return snug.BF16
}

// keptView returns the elements of outliers in their type.
func (w *Weight) keptView(m memory) snug.View {
	bits := m.kept.BFloat16s()
	if w.keptType() == snug.F16 {
		return snug.SliceView(snug.Float16s(bits))
	}
	return snug.SliceView(bits)
}

// fillOctets makes the memory of src on a device. It works on the host.
func (w *Weight) fillOctets(dev *snug.Device, src snug.View, opt Options) error {
	if len(w.shape) != 2 {
		return fmt.Errorf("a weight of shape %v, want two dimensions for %s: %w", w.shape, w.t, snug.ErrShape)
	}
	out, in := w.shape[0], w.shape[1]
	for i, c := range opt.Outliers {
		if c < 0 || c >= in || i > 0 && c <= opt.Outliers[i-1] {
			return fmt.Errorf("outlier %d is column %d of %d, want columns that ascend: %w", i, c, in, snug.ErrConfig)
		}
	}
	if !dev.IsCPU() && len(opt.Outliers) > 0 {
		return fmt.Errorf("outliers on %s, want the CPU for a weight that has some: %w", dev.Name(), snug.ErrDevice)
	}
	w.setGrid(gridOf(w.t, opt.Scales, out, in))
	w.outliers = append([]int(nil), opt.Outliers...)
	if w.n == 0 { // however many empty rows there are
		return w.setOctets(dev, nil, nil)
	}
	src, err := finiteSource(src)
	if err != nil {
		return err
	}
	codes, kept := make([]uint8, w.n), make([]snug.BFloat16, out*len(w.outliers))
	w.kept = snug.FromSlice(kept)
	a := octetArgs{Weight: w, src: src, codes: codes, kept: w.keptView(memory{kept: snug.SliceView(kept)})}
	a.scales, a.across = make([]float32, w.scaleCount()), cpu.Chunks(in, w.grid.cols)
	a.maxima = make([]float32, out*a.across)
	maximaTask.Run(out, a)
	for i, v := range a.maxima {
		s := &a.scales[i/a.across/w.grid.rows*a.across+i%a.across]
		*s = max(*s, v)
	}
	if w.t != INT8 {
		largest := w.t.octets().Largest()
		for i, v := range a.scales {
			a.scales[i] = max(v/largest, 0x1p-126) // no scale is 0 or subnormal
		}
	}
	codesTask.Run(out, a)
	return w.setOctets(dev, codes, a.scales)
}

// setOctets puts codes and scales on a device.
func (w *Weight) setOctets(dev *snug.Device, codes []uint8, scales []float32) (err error) {
	if w.packed, err = put(dev, codes); err != nil {
		return err
	}
	w.absmax, err = put(dev, scales)
	return err
}

// setGrid makes w a weight of 8 bits.
func (w *Weight) setGrid(g grid) { w.grid, w.block = g, g.cols }

// octetArgs are the rows of a weight to be made.
type octetArgs struct {
	*Weight
	src            snug.View
	codes          []uint8
	kept           snug.View
	across         int // scales of a row
	scales, maxima []float32
}

// row returns a row of src in tile, with columns of outliers cleared, which it writes to kept if keep is set.
func (a *octetArgs) row(row int, tile []float32, keep bool) []float32 {
	half.Load(tile, a.src, row*len(tile))
	if len(a.outliers) == 0 {
		return tile
	}
	some := tiles.Get(len(a.outliers))
	defer tiles.Put(some)
	for i, c := range a.outliers {
		(*some)[i], tile[c] = tile[c], 0
	}
	if keep {
		half.Store(a.kept, row*len(a.outliers), (*some)[:len(a.outliers)])
	}
	return tile
}

// maximaTask finds the largest magnitudes of the parts of a row that share scales.
var maximaTask = cpu.NewTask(func(a *octetArgs, row int) {
	in := a.shape[1]
	tile := tiles.Get(in)
	defer tiles.Put(tile)
	x := a.row(row, (*tile)[:in], false)
	for i := range a.across {
		lo, hi := cpu.Chunk(in, a.grid.cols, i)
		a.maxima[row*a.across+i] = blockq.Registry.Best().AbsMax(x[lo:hi])
	}
})

// codesTask writes the codes of a row.
var codesTask = cpu.NewTask(func(a *octetArgs, row int) {
	in := a.shape[1]
	tile := tiles.Get(in)
	defer tiles.Put(tile)
	x, codes := a.row(row, (*tile)[:in], true), a.codes[row*in:(row+1)*in]
	for i, s := range a.grid.of(row, in, a.scales) {
		lo, hi := cpu.Chunk(in, a.grid.cols, i)
		encodeOctets(codes[lo:hi], x[lo:hi], s, a.t)
	}
})

// encodeOctets writes the codes of x, which it overwrites.
func encodeOctets(codes []uint8, x []float32, scale float32, t Type) {
	if t == INT8 {
		factor := 127 / scale
		for i, v := range x {
			codes[i] = 0
			if v != 0 {
				codes[i] = uint8(int8(min(127, max(-127, math.RoundToEven(float64(v*factor))))))
			}
		}
		return
	}
	for i, v := range x {
		x[i] = v / scale
	}
	dt := snug.F8E4M3
	if t == FP8E5M2 {
		dt = snug.F8E5M2
	}
	half.Store(octetView(codes, dt), 0, x)
}

// octetView returns codes as numbers of a type.
func octetView(codes []uint8, dt snug.DType) snug.View {
	if dt == snug.F8E5M2 {
		return snug.SliceView(snug.Float8s[snug.Float8E5M2](codes))
	}
	return snug.SliceView(snug.Float8s[snug.Float8E4M3](codes))
}

// decodeRows returns the job that decodes whole rows to dst, those from element begin on.
func (w *Weight) decodeRows(dst snug.View, begin int, m memory) rowsJob {
	in := max(1, w.shape[1])
	j := rowsJob{w: w, dst: dst, codes: part(m.packed, begin, begin+dst.Len()), scales: m.absmax, first: begin / in, in: in}
	if len(w.outliers) > 0 {
		j.kept = w.keptView(m)
	}
	return j
}

// rowsJob decodes rows of a weight of 8 bits to dst, which begins with row first. codes has the rows of dst alone; scales
// and kept have all rows of the weight.
type rowsJob struct {
	w                        *Weight
	dst, codes, scales, kept snug.View
	first, in                int
}

func (j *rowsJob) Kernel() string { return "qlora.octets" }

func (j *rowsJob) Operands(yield func(*driver.Mem)) { device.Each(yield, &j.dst, &j.codes, &j.scales) }

func (j rowsJob) Run() { rowsTask.Run(cpu.Chunks(j.dst.Len()/j.in, j.step()), j) }

// step returns how many rows an item decodes.
func (j *rowsJob) step() int { return max(1, grain/j.in) }

var rowsTask = cpu.NewTask(func(j *rowsJob, item int) {
	lo, hi := cpu.Chunk(j.dst.Len()/j.in, j.step(), item)
	codes, scales := snug.Host[uint8](j.codes), j.scales.Float32s()
	for r := lo; r < hi; r++ {
		to := part(j.dst, r*j.in, (r+1)*j.in)
		octet.Decode(to, codes[r*j.in:(r+1)*j.in], j.w.grid.of(j.first+r, j.in, scales), j.w.grid.cols, j.w.t.octets())
		if n := len(j.w.outliers); n > 0 {
			tile := tiles.Get(n)
			half.Load((*tile)[:n], j.kept, (j.first+r)*n)
			scatter(to, j.w.outliers, *tile)
			tiles.Put(tile)
		}
	}
})

// scatter writes x to columns of a row.
func scatter(row snug.View, columns []int, x []float32) {
	for i, c := range columns {
		switch row.DType() {
		case snug.F32:
			row.Float32s()[c] = x[i]
		case snug.F16:
			row.Float16s()[c] = half.Float32ToF16(x[i])
		case snug.BF16:
			row.BFloat16s()[c] = snug.ToBFloat16(x[i])
		}
	}
}
