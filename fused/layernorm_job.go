package fused

import (
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/rowwise"
)

type layerNormJob struct {
	out, mean, rstd, x, gamma, beta snug.View

	rows, cols int
	eps        float32
}

func (*layerNormJob) Kernel() string { return "fused.layernorm" }

func (j *layerNormJob) Operands(yield func(*driver.Mem)) {
	device.Each(yield, &j.out, &j.mean, &j.rstd, &j.x, &j.gamma, &j.beta)
}

func (j layerNormJob) Run() { layerNormTask.Run(cpu.Chunks(j.rows, itemRows(j.cols)), j) }

var layerNormTask = cpu.NewTask(func(j *layerNormJob, item int) {
	buf := scratch.Get(3 * j.cols)
	defer finish(buf)
	lo, hi := cpu.Chunk(j.rows, itemRows(j.cols), item)
	if k := direct(j.x); k != nil {
		gamma, beta, stream := bits(j.gamma, 0, j.cols), bits(j.beta, 0, j.cols), streams(j.out, j.x)
		for r := lo; r < hi; r++ {
			at, end := r*j.cols, (r+1)*j.cols
			mean, rstd := k.LayerNorm(bits(j.out, at, end), bits(j.x, at, end), gamma, beta, j.eps, stream)
			j.keep(r, mean, rstd)
		}
		return
	}
	gamma, beta := load(cut(buf, 0, j.cols), j.gamma, 0), load(cut(buf, 1, j.cols), j.beta, 0)
	stream := streams32(j.out, j.x)
	for r := lo; r < hi; r++ {
		at := r * j.cols
		x := load(cut(buf, 2, j.cols), j.x, at)
		out := target(cut(buf, 2, j.cols), j.out, at)
		mean, rstd := rowwise.F32.Best().LayerNorm(out, x, gamma, beta, j.eps, stream)
		store(j.out, at, out)
		j.keep(r, mean, rstd)
	}
})

// keep stores the statistics of a row for the backward pass.
func (j *layerNormJob) keep(r int, mean, rstd float32) {
	if j.mean.Len() > 0 {
		j.mean.Float32s()[r], j.rstd.Float32s()[r] = mean, rstd
	}
}

type layerNormBackwardJob struct {
	dx, dgamma, dbeta, dy, x, mean, rstd, gamma, ws snug.View

	rows, cols int
	into       GradsInto
	frozen     bool
}

func (*layerNormBackwardJob) Kernel() string { return "fused.layernorm_backward" }

func (j *layerNormBackwardJob) Operands(yield func(*driver.Mem)) {
	device.Each(yield, &j.dx, &j.dgamma, &j.dbeta, &j.dy, &j.x, &j.mean, &j.rstd, &j.gamma, &j.ws)
}

// Run leaves the partial sums of part p at ws[p][2][cols], those of dgamma
// first.
func (j layerNormBackwardJob) Run() {
	n := parts(j.rows)
	layerNormBackwardTask.Run(n, j)
	if j.frozen {
		return
	}
	addParts(j.dgamma.Float32s(), j.ws.Float32s(), 0, n, 2*j.cols, j.into.Params, order(j.x))
	addParts(j.dbeta.Float32s(), j.ws.Float32s(), j.cols, n, 2*j.cols, j.into.Params, order(j.x))
}

var layerNormBackwardTask = cpu.NewTask(func(j *layerNormBackwardJob, part int) {
	buf := scratch.Get(6 * j.cols)
	defer finish(buf)
	sums := (*buf)[4*j.cols:]
	if !j.frozen {
		sums = j.ws.Float32s()[part*2*j.cols:][:2*j.cols]
	}
	clear(sums)
	dgamma, dbeta := sums[:j.cols], sums[j.cols:]
	mean, rstd, into := j.mean.Float32s(), j.rstd.Float32s(), j.into.Input
	lo, hi := cpu.Chunk(j.rows, partRows(j.rows), part)
	if k := direct(j.x); k != nil {
		gamma, stream := bits(j.gamma, 0, j.cols), into.Beta == 0 && streams(j.dx, j.dy)
		for r := lo; r < hi; r++ {
			at, end := r*j.cols, (r+1)*j.cols
			k.LayerNormGrad(bits(j.dx, at, end), dgamma, dbeta, bits(j.dy, at, end), bits(j.x, at, end), gamma,
				mean[r], rstd[r], into.Alpha, into.Beta, stream)
		}
		return
	}
	gamma, stream := load(cut(buf, 0, j.cols), j.gamma, 0), into.Beta == 0 && streams32(j.dx, j.dy)
	for r := lo; r < hi; r++ {
		at := r * j.cols
		dy := load(cut(buf, 1, j.cols), j.dy, at)
		x := load(cut(buf, 2, j.cols), j.x, at)
		dx := targetInto(into, cut(buf, 3, j.cols), j.dx, at)
		rowwise.F32.Best().LayerNormGrad(dx, dgamma, dbeta, dy, x, gamma, mean[r], rstd[r],
			into.Alpha, into.Beta, stream)
		store(j.dx, at, dx)
	}
})
