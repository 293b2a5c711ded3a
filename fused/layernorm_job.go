package fused

import (
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/vexp"
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
	defer finish(buf)
	gamma := load(cut(buf, 0, j.cols), j.gamma, 0)
	beta := load(cut(buf, 1, j.cols), j.beta, 0)
	lo, hi := cpu.Chunk(j.rows, itemRows(j.cols), item)
	for r := lo; r < hi; r++ {
		at := r * j.cols
		out := aside(cut(buf, 2, j.cols), j.out, at)
		mean, rstd := normalize(out, load(cut(buf, 3, j.cols), j.x, at), gamma, beta, j.eps)
		store(j.out, at, out)
		if j.mean.Len() > 0 {
			j.mean.Float32s()[r], j.rstd.Float32s()[r] = mean, rstd
		}
	}
})

// normalize is LayerNorm of one row. out may be x.
func normalize(out, x, gamma, beta []float32, eps float32) (mean, rstd float32) {
	k := vexp.Registry.Best()
	mean = k.Sum(x) / float32(len(x))
	rstd = inverseRoot(k.SumSquares(x, mean), len(x), eps)
	k.LayerNorm(out, x, gamma, beta, mean, rstd)
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
	buf := scratch.Get(7 * j.cols)
	defer finish(buf)
	gamma := load(cut(buf, 0, j.cols), j.gamma, 0)
	sums := (*buf)[5*j.cols:]
	if !j.frozen {
		sums = j.ws.Float32s()[part*2*j.cols:][:2*j.cols]
	}
	clear(sums)
	lo, hi := cpu.Chunk(j.rows, partRows(j.rows), part)
	for r := lo; r < hi; r++ {
		j.row(r, gamma, sums[:j.cols], sums[j.cols:], buf)
	}
})

// row computes a row of dx and adds the row's part to the gradients of the
// parameters.
func (j *layerNormBackwardJob) row(r int, gamma, dgamma, dbeta []float32, buf *[]float32) {
	k, n, at := vexp.Registry.Best(), float32(j.cols), r*j.cols
	mean, rstd := j.mean.Float32s()[r], j.rstd.Float32s()[r]
	dy := load(cut(buf, 1, j.cols), j.dy, at)
	x := load(cut(buf, 2, j.cols), j.x, at)
	sum, sumX := k.LayerNormSums(dgamma, dbeta, dy, x, gamma, mean, rstd)
	g := j.into.Input.gradient(cut(buf, 3, j.cols), j.dx, at)
	k.LayerNormGrad(g, dy, x, gamma, mean, rstd, sum/n, sumX/n)
	j.into.Input.accumulate(j.dx, at, g, cut(buf, 4, j.cols))
}
