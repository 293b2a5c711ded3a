//go:build cuda || hip || metal || emu

package conv

import (
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/gpu"
)

// convDim is ConvDim of correlate.h.
type convDim struct{ in, out, kernel, stride, dilation, pad int32 }

func (p *problem) dims() (d [3]convDim) {
	for i := range d {
		d[i] = convDim{int32(p.in[i]), int32(p.out[i]), int32(p.kernel[i]), int32(p.stride[i]), int32(p.dilation[i]), int32(p.pad[i])}
	}
	return d
}

// convParams is ConvParams of correlate.h.
type convParams struct {
	jobs, lines       uint64
	dims              [3]convDim
	batch, groups     uint32
	results, channels uint32
	last, adjoint     uint32
	biased, wide      uint32
	alpha, beta       float32
}

// tileForm is a kernel whose thread blocks compute tiles of the result: rows channels by cols positions.
type tileForm struct {
	names      gpu.Floats
	rows, cols int
}

var (
	squareTiles = tileForm{gpu.ForFloats("conv_square"), 64, 64}
	flatTiles   = tileForm{gpu.ForFloats("conv_flat"), 16, 64}
	eachNames   = gpu.ForFloats("conv_each")
)

// busy is the number of thread blocks below which flatTiles, which are smaller, replace squareTiles.
const busy = 128

// fewChannels is the most channels of the result in each of several groups for which a thread computes one element, without tiles.
const fewChannels = 4

// tiles returns how many tiles a result has: results is its number of channels, lines that of its positions.
func (f *tileForm) tiles(results, lines int) int {
	return gpu.CeilDiv(results, f.rows) * gpu.CeilDiv(lines, f.cols)
}

// Bits of wide in units.h: threads bring 8 neighbours of an operand of 16-bit numbers at a time, of a whole vector that starts at a
// multiple of 16 bytes. All neighbours of the left operand are there or none is. Those of the right one are channels of one position.
const (
	wideLeft = 1 << iota
	wideRight
)

// wideIf returns a bit for an operand if all counts of elements are multiples of 8.
func wideIf(bit uint32, v *snug.View, counts ...int) uint32 {
	for _, n := range counts {
		if n%8 != 0 {
			return 0
		}
	}
	if v.DType() == snug.F32 || device.Mem(v).Addr%16 != 0 {
		return 0
	}
	return bit
}

// correlate queues the correlation of gather, or with adjoint set that of scatter.
func (p *problem) correlate(q gpu.Launcher, adjoint bool, dst, src, w, bias snug.View, into snug.Into) error {
	if dst.Len() == 0 {
		return nil
	}
	c := convParams{dims: p.dims(), batch: uint32(p.batch), groups: uint32(p.groups), results: uint32(p.cout), channels: uint32(p.cin),
		last: flag(p.last), adjoint: flag(adjoint), biased: flag(bias.Len() > 0), alpha: into.Alpha, beta: into.Beta}
	phases, n := 1, volume(p.out)
	if adjoint {
		c.results, c.channels, n = c.channels, c.results, 1
		for i := range 3 {
			phases *= p.phases(i)
			n *= gpu.CeilDiv(p.in[i], p.stride[i])
		}
	}
	results, channels, lines, taps := int(c.results), int(c.channels), p.batch*n, volume(p.kernel)
	if p.last {
		c.wide = wideIf(wideRight, &src, channels)
	}
	switch {
	case adjoint && taps == 1 || !adjoint && channels*taps == 1: // a row of the weights for all results
		c.wide |= wideIf(wideLeft, &w, results)
	case !adjoint && (!p.last || taps == 1): // weights lie in the order of the depth
		c.wide |= wideIf(wideLeft, &w, channels*taps)
	}
	if results <= fewChannels && p.groups > 1 {
		c.jobs = uint64(dst.Len())
		return launch(q, nameOf(&eachNames, &dst), gpu.Grid(dst.Len(), threads), c, &dst, &src, &w, &bias)
	}
	form, parts := &squareTiles, phases*p.groups
	units := dst.DType() != snug.F32 && gpu.HasUnits(q)
	if results <= flatTiles.rows || !units && parts*form.tiles(results, lines) < busy {
		form = &flatTiles
	}
	jobs := product(parts, form.tiles(results, lines))
	if err := fits(jobs); err != nil {
		return err
	}
	c.jobs, c.lines = uint64(jobs), uint64(lines)
	return launch(q, nameOf(&form.names, &dst), [3]int{min(jobs, maxBlocks), 1, 1}, c, &dst, &src, &w, &bias)
}

// maxBlocks is the most thread blocks of a launch. Each loops over several parts of the result if there are more.
const maxBlocks = 1 << 24

func (j *forwardJob) Grids(q gpu.Launcher) error {
	if err := fits(j.y.Len(), j.x.Len(), j.w.Len()); err != nil {
		return err
	}
	p := newProblem(&j.s)
	return p.correlate(q, j.s.Transposed, j.y, j.x, j.w, j.bias, snug.Into{Alpha: 1})
}

func (j *inputJob) Grids(q gpu.Launcher) error {
	if err := fits(j.dx.Len(), j.dy.Len(), j.w.Len()); err != nil {
		return err
	}
	p := newProblem(&j.s)
	return p.correlate(q, !j.s.Transposed, j.dx, j.dy, j.w, snug.View{}, j.into)
}

// weightParams is WeightParams of weights.h.
type weightParams struct {
	jobs, depth, part, wLen uint64
	dims                    [3]convDim
	groups, rows, channels  uint32
	last                    uint32
	first, end              uint32
	parts, wide             uint32
	alpha, beta             float32
}

// weightSumParams is WeightSumParams of weights.h.
type weightSumParams struct {
	wLen, all, first, end uint64
	parts                 uint32
	alpha, beta           float32
	_                     uint32
}

var (
	weightNames     = gpu.ForFloats("conv_weights")
	weightEachNames = gpu.ForFloats("conv_weights_each")
)

func (j *weightJob) Grids(q gpu.Launcher) error {
	if err := fits(j.x.Len(), j.dy.Len(), j.s.wLen()); err != nil {
		return err
	}
	for _, w := range j.s.passes(j.dw.Len() > 0, j.db.Len() > 0) {
		x, dy := &j.x, &j.dy // the bias alone reads no x
		if w.s.Transposed {
			x, dy = dy, x
		}
		if err := w.launch(q, j, x, dy); err != nil {
			return err
		}
	}
	return nil
}

// launch queues the product of x and dy, and the sum of its parts. If the convolution is transposed, the caller has swapped x and dy.
func (w *weightPass) launch(q gpu.Launcher, j *weightJob, x, dy *snug.View) error {
	p := newProblem(&w.s)
	c := weightParams{depth: uint64(p.batch * volume(p.out)), part: uint64(w.part), wLen: uint64(w.elements), dims: p.dims(), groups: uint32(p.groups),
		rows: uint32(p.cout), channels: uint32(p.cin), last: flag(p.last), end: uint32(w.cols), parts: uint32(w.parts),
		alpha: j.into.Alpha, beta: j.into.Beta}
	s := weightSumParams{wLen: c.wLen, all: uint64(w.elements + w.rows), end: c.wLen, parts: c.parts, alpha: c.alpha, beta: c.beta}
	if p.last {
		c.wide = wideIf(wideRight, x, p.cin)
	}
	if size := volume(p.out); p.last || size == 1 {
		c.wide |= wideIf(wideLeft, dy, p.cout)
	} else {
		c.wide |= wideIf(wideLeft, dy, size, w.part)
	}
	if !w.weights {
		c.first, s.first = uint32(w.cols), s.wLen
	}
	if w.bias {
		c.end, s.end = c.end+1, s.all
	}
	cols := int(c.end - c.first)
	names, jobs := &weightNames, p.groups*squareTiles.tiles(p.cout, cols)
	if w.each {
		lanes := 1
		if p.last {
			lanes = 32
		}
		names, jobs = &weightEachNames, gpu.CeilDiv(w.rows, lanes)*cols
	}
	jobs *= w.parts
	c.jobs = uint64(jobs)
	err := launch(q, nameOf(names, dy), [3]int{min(jobs, maxBlocks), 1, 1}, c, &j.dw, &j.db, &j.sums, x, dy)
	if err != nil || w.parts == 1 {
		return err
	}
	return launch(q, "conv_weight_sums", gpu.Grid(int(s.end-s.first), threads), s, &j.dw, &j.db, &j.sums)
}
