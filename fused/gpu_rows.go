//go:build cuda || hip || metal || emu

package fused

import (
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/gemm"
	"github.com/snug-ml/snug/internal/gpu"
)

// This file launches the layers that look at whole rows, and the sums over rows.

var (
	layerNormNames = gpu.ForFloats("fused_layernorm")
	layerNormGrads = normNames{
		gpu.ForFloats("fused_layernorm_grads"), gpu.ForFloats("fused_layernorm_sums"), gpu.ForFloats("fused_layernorm_backward"),
	}
	rmsNormNames      = gpu.ForFloats("fused_rmsnorm")
	rmsNormGrads      = normNames{gpu.ForFloats("fused_rmsnorm_grads"), gpu.ForFloats("fused_rmsnorm_sums"), gpu.ForFloats("fused_rmsnorm_backward")}
	biasSumsNames     = gpu.ForFloats("fused_bias_sums")
	geluBackwardNames = [...]gpu.Floats{gpu.ForFloats("fused_bias_gelu_backward"), gpu.ForFloats("fused_bias_gelu_erf_backward")}
	embeddingNames    = gpu.ForFloats("fused_embedding")
	scatterNames      = gpu.ForFloats("fused_embedding_backward")
	rotaryNames       = gpu.ForFloats("fused_rotary")
)

// normParams is NormParams of norms.h.
type normParams struct {
	rows       uint64
	cols, wide uint32
	eps        float32
	keep       uint32
}

func keeps(statistic *snug.View) uint32 {
	if statistic.Len() > 0 {
		return 1
	}
	return 0
}

func (j *layerNormJob) Grids(q gpu.Launcher) error {
	p := normParams{uint64(j.rows), uint32(j.cols), wide(j.cols, &j.out, &j.x, &j.gamma, &j.beta), j.eps, keeps(&j.mean)}
	return grid(q, nameOf(&layerNormNames, &j.x), rowGrid(j.rows), threads, p,
		&j.out, &j.mean, &j.rstd, &j.x, &j.gamma, &j.beta)
}

func (j *rmsNormJob) Grids(q gpu.Launcher) error {
	p := normParams{uint64(j.rows), uint32(j.cols), wide(j.cols, &j.out, &j.x, &j.gamma), j.eps, keeps(&j.rstd)}
	return grid(q, nameOf(&rmsNormNames, &j.x), rowGrid(j.rows), threads, p, &j.out, &j.rstd, &j.x, &j.gamma)
}

// normGradParams is NormGradParams of norms.h.
type normGradParams struct {
	rows        uint64
	cols, wide  uint32
	alpha, beta float32
}

func gradParams(rows, cols int, into snug.Into, operands ...*snug.View) normGradParams {
	return normGradParams{uint64(rows), uint32(cols), wide(cols, operands...), into.Alpha, into.Beta}
}

// sumParams is SumParams of sums.h.
type sumParams struct {
	rows, partRows              uint64
	cols, wide, lanes, isFrozen uint32
}

// sums queues the launch of a kernel of sums.h.
func sums(q gpu.Launcher, name string, rows, cols int, frozen bool, params []*snug.View, operands ...*snug.View) error {
	p := sumParams{rows: uint64(rows), partRows: uint64(devicePartRows(rows)), cols: uint32(cols), wide: wide(cols, params...), lanes: 1}
	if frozen {
		p.isFrozen = 1
	}
	per := 16 / params[0].DType().Size()
	for p.lanes < 32 && int(p.lanes)*per < cols {
		p.lanes *= 2
	}
	return grid(q, name, [3]int{cpu.Chunks(cols, int(p.lanes)*per), deviceParts(rows), 1}, threads, p, operands...)
}

// normGradsParams is NormGradsParams of norm_grads.h.
type normGradsParams struct {
	rows, partRows   uint64
	cols, wide, team uint32
	alpha, beta      float32
	_                uint32
}

// gradsThreads and gradsLane are GRADS_THREADS and GRADS_LANE of norm_grads.h. A block takes rows of up to
// gradsCols elements, where every thread has all it can hold.
const gradsThreads, gradsLane = 512, 16
const gradsCols = gradsThreads * gradsLane

// grads queues a launch of norm_grads.h, for dx and the partial sums.
func grads(q gpu.Launcher, name string, rows, cols int, into snug.Into, params []*snug.View, operands ...*snug.View) error {
	p := normGradsParams{rows: uint64(rows), partRows: uint64(devicePartRows(rows)), cols: uint32(cols), wide: wide(cols, params...),
		team: 1, alpha: into.Alpha, beta: into.Beta}
	for int(p.team)*32*gradsLane < cols {
		p.team *= 2
	}
	return grid(q, name, [3]int{deviceParts(rows), 1, 1}, gradsThreads, p, operands...)
}

// normNames are the kernels of the backward pass of a norm.
type normNames struct{ grads, sums, backward gpu.Floats }

// launch queues the backward pass of a norm: of dx from dy, x, gamma and the statistics of the rows, and of the gradients of
// its parameters. Where the sums have a launch of their own it comes before dx, which may take the place of dy or x.
func (n *normNames) launch(q gpu.Launcher, rows, cols int, frozen bool, into GradsInto, dx, dy, x, gamma *snug.View, stats []*snug.View, dgamma, dbeta, ws snug.View) error {
	read := slices.Concat([]*snug.View{dy, x}, stats, []*snug.View{gamma})
	if !frozen {
		once, err := cols <= gradsCols, error(nil)
		if once {
			err = grads(q, nameOf(&n.grads, x), rows, cols, into.Input, []*snug.View{dx, dy, x, gamma}, slices.Concat([]*snug.View{dx, &ws}, read)...)
		} else {
			err = sums(q, nameOf(&n.sums, x), rows, cols, false, []*snug.View{dy, x}, append([]*snug.View{&ws}, read[:len(read)-1]...)...)
		}
		if err == nil {
			err = totals(q, dgamma, dbeta, ws, deviceParts(rows), into.Params)
		}
		if once || err != nil {
			return err
		}
	}
	return grid(q, nameOf(&n.backward, x), rowGrid(rows), threads,
		gradParams(rows, cols, into.Input, dx, dy, x, gamma), slices.Concat([]*snug.View{dx}, read)...)
}

func (j *layerNormBackwardJob) Grids(q gpu.Launcher) error {
	return layerNormGrads.launch(q, j.rows, j.cols, j.frozen, j.into, &j.dx, &j.dy, &j.x, &j.gamma, []*snug.View{&j.mean, &j.rstd}, j.dgamma, j.dbeta, j.ws)
}

func (j *rmsNormBackwardJob) Grids(q gpu.Launcher) error {
	return rmsNormGrads.launch(q, j.rows, j.cols, j.frozen, j.into, &j.dx, &j.dy, &j.x, &j.gamma, []*snug.View{&j.rstd}, j.dgamma, none, j.ws)
}

// partsParams is PartsParams of sums.h.
type partsParams struct {
	cols, parts, stride uint32
	alpha, beta         float32
}

// totals is addParts as a launch: for acc, and unless it is none for second, whose partial sums lie behind those of acc in
// every part. Without rows there are no parts, and the total is 0.
func totals(q gpu.Launcher, acc, second, ws snug.View, parts int, into snug.Into) error {
	of := 1
	if second.Len() > 0 {
		of = 2
	}
	p := partsParams{uint32(acc.Len()), uint32(parts), uint32(of * acc.Len()), into.Alpha, into.Beta}
	partial := none
	if parts > 0 {
		partial = ws
	}
	return grid(q, "fused_add_parts", [3]int{cpu.Chunks(acc.Len(), 32), of, 1}, threads, p, &acc, &second, &partial)
}

func (j *biasGELUBackwardJob) Grids(q gpu.Launcher) error {
	err := sums(q, nameOf(&geluBackwardNames[j.form], &j.x), j.rows, j.cols, j.frozen, []*snug.View{&j.dx, &j.dy, &j.x, &j.bias},
		&j.dx, &j.dy, &j.x, &j.bias, &j.ws)
	if err != nil || j.frozen {
		return err
	}
	return totals(q, j.dbias, none, j.ws, deviceParts(j.rows), j.into)
}

func (j *biasAddBackwardJob) Grids(q gpu.Launcher) error {
	if err := sums(q, nameOf(&biasSumsNames, &j.dy), j.rows, j.cols, false, []*snug.View{&j.dy}, &j.ws, &j.dy); err != nil {
		return err
	}
	return totals(q, j.dbias, none, j.ws, deviceParts(j.rows), j.into)
}

// embeddingParams is EmbeddingParams of tokens.h.
type embeddingParams struct {
	rows               uint64
	cols, wide, add, _ uint32
}

func (j *embeddingJob) Grids(q gpu.Launcher) error {
	rows := j.tokens.Len()
	if rows == 0 || j.cols == 0 {
		return nil
	}
	p := embeddingParams{rows: uint64(rows), cols: uint32(j.cols), wide: wide(j.cols, &j.out, &j.table)}
	if j.pos.Len() > 0 {
		p.add, p.wide = 1, wide(j.cols, &j.out, &j.table, &j.pos)
	}
	return grid(q, nameOf(&embeddingNames, &j.out), rowGrid(rows), threads, p,
		&j.out, &j.table, &j.tokens, &j.pos, &j.positions)
}

// scatterParams is ScatterParams of tokens.h.
type scatterParams struct {
	rows       uint64
	cols, wide uint32
	alpha      float32
	_          uint32
}

// orderThreads, orderEach, scatterThreads and scatterCols are the constants of tokens.h with such names.
const orderThreads, orderEach, scatterThreads, scatterCols = 128, 4, 128, 4

func (j *embeddingBackwardJob) Grids(q gpu.Launcher) error {
	if j.into.Beta != 1 && j.dtable.Len() > 0 {
		m, n := j.table()
		g := m.GPU()
		if err := gemm.Grids(q, 1, n, 0, 0, g, g, j.into.Beta, g); err != nil {
			return err
		}
	}
	rows := j.tokens.Len()
	if rows == 0 || j.cols == 0 {
		return nil
	}
	err := grid(q, "fused_token_order", [3]int{cpu.Chunks(rows, orderThreads/32*orderEach), 1, 1}, orderThreads, uint64(rows), &j.order, &j.tokens)
	if err != nil {
		return err
	}
	return grid(q, nameOf(&scatterNames, &j.dy), [3]int{cpu.Chunks(rows, scatterThreads/32), cpu.Chunks(j.cols, 32*scatterCols), 1}, scatterThreads,
		scatterParams{rows: uint64(rows), cols: uint32(j.cols), wide: wide(j.cols, &j.dtable, &j.dy), alpha: j.into.Alpha}, &j.dtable, &j.dy, &j.order)
}

// rotaryParams is RotaryParams of tokens.h.
type rotaryParams struct {
	rows, stride                    uint64
	heads, dim, turned, interleaved uint32
	turn                            float32
	_                               uint32
}

func (j *rotaryJob) Grids(q gpu.Launcher) error {
	rows := j.positions.Len()
	if rows == 0 {
		return nil
	}
	p := rotaryParams{
		rows: uint64(rows), stride: uint64(j.c.Stride),
		heads: uint32(j.c.Heads), dim: uint32(j.c.Dim), turned: uint32(j.c.Turned), turn: j.turn,
	}
	if j.c.Interleaved {
		p.interleaved = 1
	}
	return grid(q, nameOf(&rotaryNames, &j.x), gpu.Grid(rows*j.c.Heads*j.c.Turned/2, threads), threads, p,
		&j.x, &j.angles, &j.positions)
}
