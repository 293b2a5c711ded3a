package fused

import (
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/driver"
)

type layerNormJob struct {
	out, mean, rstd, x, gamma, beta snug.View

	rows, cols int
	eps        float32
}

func (*layerNormJob) Kernel() string { return "fused.layernorm" }

func (j *layerNormJob) Operands(yield func(*driver.Mem)) {
	for _, v := range []*snug.View{&j.out, &j.mean, &j.rstd, &j.x, &j.gamma, &j.beta} {
		yield(v.Mem())
	}
}

func (j *layerNormJob) Run() { layerNormTask.Run(cpu.Chunks(j.rows, itemRows(j.cols)), *j) }

var layerNormTask = cpu.NewTask(func(j *layerNormJob, item int) {
	buf := scratch.Get(4 * j.cols)
	defer scratch.Put(buf)
	gamma := load(cut(buf, 0, j.cols), j.gamma, 0)
	beta := load(cut(buf, 1, j.cols), j.beta, 0)
	lo, hi := cpu.Chunk(j.rows, itemRows(j.cols), item)
	for r := lo; r < hi; r++ {
		at := r * j.cols
		out := target(cut(buf, 2, j.cols), j.out, at)
		mean, rstd := normalize(out, load(cut(buf, 3, j.cols), j.x, at), gamma, beta, j.eps)
		store(j.out, at, out)
		if j.mean.Len() > 0 {
			j.mean.Float32s()[r], j.rstd.Float32s()[r] = mean, rstd
		}
	}
})

// normalize is LayerNorm of one row. out may be x.
func normalize(out, x, gamma, beta []float32, eps float32) (mean, rstd float32) {
	n := float32(len(x))
	mean = sum(x) / n
	for i, v := range x {
		out[i] = v - mean
	}
	rstd = 1 / float32(math.Sqrt(float64(dot(out, out)/n+eps)))
	for i, c := range out {
		out[i] = float32(float32(c*rstd)*gamma[i]) + beta[i]
	}
	return mean, rstd
}

type layerNormBackwardJob struct {
	dx, dgamma, dbeta, dy, x, mean, rstd, gamma, ws snug.View

	rows, cols int
	into       Grads
	frozen     bool
}

func (*layerNormBackwardJob) Kernel() string { return "fused.layernorm_backward" }

func (j *layerNormBackwardJob) Operands(yield func(*driver.Mem)) {
	for _, v := range []*snug.View{&j.dx, &j.dgamma, &j.dbeta, &j.dy, &j.x, &j.mean, &j.rstd, &j.gamma, &j.ws} {
		yield(v.Mem())
	}
}

// Run leaves the partial sums of part p at ws[p][2][cols], those of dgamma
// first.
func (j *layerNormBackwardJob) Run() {
	n := parts(j.rows)
	layerNormBackwardTask.Run(n, *j)
	if j.frozen {
		return
	}
	addParts(j.dgamma.Float32s(), j.ws.Float32s(), 0, n, 2*j.cols, j.into.Params)
	addParts(j.dbeta.Float32s(), j.ws.Float32s(), j.cols, n, 2*j.cols, j.into.Params)
}

var layerNormBackwardTask = cpu.NewTask(func(j *layerNormBackwardJob, part int) {
	buf := scratch.Get(6 * j.cols)
	defer scratch.Put(buf)
	gamma := load(cut(buf, 0, j.cols), j.gamma, 0)
	g, xhat := cut(buf, 1, j.cols), cut(buf, 2, j.cols)
	var sums []float32
	if !j.frozen {
		sums = j.ws.Float32s()[part*2*j.cols:][:2*j.cols]
		clear(sums)
	}
	lo, hi := cpu.Chunk(j.rows, partRows(j.rows), part)
	for r := lo; r < hi; r++ {
		at := r * j.cols
		dy := load(cut(buf, 3, j.cols), j.dy, at)
		standardize(xhat, load(cut(buf, 4, j.cols), j.x, at), j.mean.Float32s()[r], j.rstd.Float32s()[r])
		if !j.frozen {
			addParamGrads(sums[:j.cols], sums[j.cols:], dy, xhat)
		}
		normalizeGrad(g, dy, xhat, gamma, j.rstd.Float32s()[r])
		j.into.Input.accumulate(j.dx, at, g, cut(buf, 5, j.cols))
	}
})

// standardize computes x̂ = (x − mean)·rstd.
func standardize(xhat, x []float32, mean, rstd float32) {
	for i, v := range x {
		xhat[i] = (v - mean) * rstd
	}
}

// addParamGrads adds a row's part of the parameters' gradients.
func addParamGrads(dgamma, dbeta, dy, xhat []float32) {
	for i, v := range dy {
		dgamma[i] += float32(v * xhat[i])
		dbeta[i] += v
	}
}

// normalizeGrad computes the gradient g of a row's input.
func normalizeGrad(g, dy, xhat, gamma []float32, rstd float32) {
	n := float32(len(g))
	for i, v := range dy {
		g[i] = v * gamma[i]
	}
	avg, avgX := sum(g)/n, dot(g, xhat)/n
	for i, v := range g {
		g[i] = rstd * (v - avg - float32(xhat[i]*avgX))
	}
}
