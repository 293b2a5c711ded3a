//go:build cuda || hip || metal || emu

package quant8

import (
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/gpu"
)

func (j *squareSumsJob) Grids(q gpu.Launcher) error {
	params := struct {
		rows, cols                   uint64
		height, bands, width, strips uint64
		byColumns, gType             uint32
		scale                        float32
		skip                         uint32
	}{
		rows: uint64(j.rows), cols: uint64(j.cols),
		height: uint64(j.height), bands: uint64(j.bands), width: uint64(j.width), strips: uint64(j.strips),
		gType: uint32(j.g.DType()), scale: j.scale, skip: j.skip,
	}
	l := gpu.Launch{
		Module: &kernels, Func: "quant8_side_sums", Blocks: gpu.Grid(32*j.strips*j.rows, threads), Threads: threads,
		Operands: []driver.Mem{*device.Mem(&j.all), *device.Mem(&j.g)}, Params: gpu.Params(&params),
	}
	if err := q.LaunchGrid(&l); err != nil {
		return err
	}
	params.byColumns, l.Blocks = 1, gpu.Grid(j.bands*j.cols, threads)
	if err := q.LaunchGrid(&l); err != nil {
		return err
	}
	l.Func, l.Blocks, l.Operands = "quant8_fold_sums", gpu.Grid(max(j.rows, j.cols), threads), l.Operands[:1]
	return q.LaunchGrid(&l)
}

func (j *factorsJob) Grids(q gpu.Launcher) error {
	params := struct {
		rows, cols, behind    uint64
		addRows, addCols, eps uint64
		keep                  float32
		_                     uint32
	}{
		rows: uint64(j.rows), cols: uint64(j.cols), behind: uint64(j.behind(j.rows)), eps: math.Float64bits(j.h.Eps),
	}
	keep, rows := j.h.MeanFactors(j.cols)
	_, cols := j.h.MeanFactors(j.rows)
	params.keep, params.addRows, params.addCols = keep, math.Float64bits(rows), math.Float64bits(cols)
	l := gpu.Launch{
		Module: &kernels, Func: "quant8_averages", Blocks: gpu.Grid(j.rows+j.cols, threads), Threads: threads,
		Operands: []driver.Mem{*device.Mem(&j.both), *device.Mem(&j.old), *device.Mem(&j.sums)}, Params: gpu.Params(&params),
	}
	if err := q.LaunchGrid(&l); err != nil {
		return err
	}
	l.Func, l.Operands = "quant8_roots", []driver.Mem{*device.Mem(&j.roots), *device.Mem(&j.both)}
	return q.LaunchGrid(&l)
}

// sides is Sides of kernels/step.h.
type sides struct {
	rows, cols uint64
	limit      float32
	_          uint32
}

func (j *stepJob) sides() sides {
	return sides{rows: uint64(j.rows), cols: uint64(j.cols), limit: j.rootLimit}
}

// gridStateless runs a kernel of matrices that has no state, with p, g and more operands.
func (j *stepJob) gridStateless(q gpu.Launcher, name string, blocks [3]int, g snug.View, operands ...driver.Mem) error {
	step := *j
	step.g = g
	mems, params := step.params(1)
	params.sType = uint32(j.g.DType()) // always the gradient's
	if j.chunk%4 == 0 {
		params.wide = gpu.Aligned(mems[0].Addr, device.Mem(&g).Addr, device.Mem(&j.g).Addr)
	}
	return kernels.Launch(q, name, blocks, threads, gpu.Params(&params), append(mems[:2], operands...)...)
}

func (j *applyJob) Grids(q gpu.Launcher) error {
	return j.gridStateless(q, "quant8_subtract", j.tileGrid(), j.x, driver.Mem{}, *device.Mem(&j.g))
}
