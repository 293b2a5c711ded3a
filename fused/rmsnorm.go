package fused

import (
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/rowwise"
)

// RMSNorm divides each row of x by its root mean square and scales its columns
// (Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019):
//
//	rstd = 1 / √(Σ x[j]² / cols + eps)
//	out[j] = x[j]·rstd·gamma[j]
//
// Shapes: gamma [cols], at least one column; x and out [rows, cols]; rstd
// [rows], which [RMSNormBackward] needs, 4 bytes a row. For inference it may be
// empty, such as []float32(nil).
//
// Aliasing: out may be x. The sum is float32 with an error of at most
// (cols/4+4)·2⁻²⁴ of itself; squares that overflow give rstd 0. eps must be
// finite and not negative. Each worker holds 2·cols float32.
func RMSNorm[V snug.Vector, L snug.Vector32](out V, rstd L, x, gamma V, eps float32) error {
	return rmsNorm(snug.ViewOf(out), snug.ViewOf(rstd), snug.ViewOf(x), snug.ViewOf(gamma), eps)
}

// RMSNormBackward computes the gradients of [RMSNorm] from the gradient dy of
// its output, its input x, and the rstd that it left. With x̂[j] = x[j]·rstd,
// g[j] = dy[j]·gamma[j] and avg the mean of a row:
//
//	dx[j]     ← rstd·(g[j] − x̂[j]·avg(g·x̂))
//	dgamma[j] ← Σ over rows of dy[j]·x̂[j]
//
// where ← applies into, see [snug.Into].
//
// Shapes: dx, dy and x [rows, cols]; rstd [rows]; gamma and dgamma [cols], at
// least one column. With a frozen gamma, dgamma and ws may be empty: []float32(nil). ws has at
// least RMSNormWorkspaceLen(rows, cols) elements.
//
// Where dx is 0 in real numbers, as in a row of one column without eps, the rounding of x̂ leaves up to 2⁻²²·rstd·|g[j]|:
// 1.7e-5 has been seen.
//
// Aliasing: dx may be dy. Each worker holds 5·cols float32.
func RMSNormBackward[V snug.Vector, G, L snug.Vector32](dx V, dgamma G, dy, x V, rstd L, gamma V, into GradsInto, ws L) error {
	return rmsNormBackward(snug.ViewOf(dx), snug.ViewOf(dgamma), snug.ViewOf(dy), snug.ViewOf(x),
		snug.ViewOf(rstd), snug.ViewOf(gamma), into, snug.ViewOf(ws))
}

// RMSNormWorkspaceLen returns the workspace of [RMSNormBackward] in float32
// elements: a sum a column for each of at most 128 parts of the rows.
func RMSNormWorkspaceLen(rows, cols int) int { return partialLen(rows, cols) }

func rmsNorm(out, rstd, x, gamma snug.View, eps float32) error {
	check := &checks{op: "RMSNorm"}
	cols := gamma.Len()
	checkEps(check, eps)
	check.floats(operand{"x", x}, operand{"out", out}, operand{"gamma", gamma})
	check.f32(operand{"rstd", rstd})
	rows := check.rows(operand{"x", x}, cols)
	check.matrix(rows, cols, operand{"out", out})
	check.lenIfAny(rows, operand{"rstd", rstd})
	return run(check, rmsNormJob{out, rstd, x, gamma, rows, cols, eps}, out, rstd, x, gamma)
}

func rmsNormBackward(dx, dgamma, dy, x, rstd, gamma snug.View, into GradsInto, ws snug.View) error {
	check := &checks{op: "RMSNormBackward"}
	cols := gamma.Len()
	into.Input, into.Params = check.into(into.Input), check.into(into.Params)
	check.floats(operand{"x", x}, operand{"dx", dx}, operand{"dy", dy}, operand{"gamma", gamma})
	check.f32(operand{"dgamma", dgamma}, operand{"rstd", rstd}, operand{"ws", ws})
	rows := check.rows(operand{"x", x}, cols)
	check.matrix(rows, cols, operand{"dx", dx}, operand{"dy", dy})
	check.len(rows, operand{"rstd", rstd})
	frozen := dgamma.Len() == 0
	if !frozen {
		check.len(cols, operand{"dgamma", dgamma})
		check.workspace(ws, RMSNormWorkspaceLen(rows, cols))
	}
	return run(check, rmsNormBackwardJob{dx, dgamma, dy, x, rstd, gamma, ws, rows, cols, into, frozen}, dx, dgamma, dy, x, rstd, gamma, ws)
}

type rmsNormJob struct {
	out, rstd, x, gamma snug.View

	rows, cols int
	eps        float32
}

func (*rmsNormJob) Kernel() string { return "fused.rmsnorm" }

func (j *rmsNormJob) Operands(yield func(*driver.Mem)) {
	device.Each(yield, &j.out, &j.rstd, &j.x, &j.gamma)
}

func (j rmsNormJob) Run() { rmsNormTask.Run(cpu.Chunks(j.rows, itemRows(j.cols)), j) }

var rmsNormTask = cpu.NewTask(func(j *rmsNormJob, item int) {
	buf := scratch.Get(2 * j.cols)
	defer finish(buf)
	lo, hi := cpu.Chunk(j.rows, itemRows(j.cols), item)
	if k := direct(j.x); k != nil {
		gamma, stream := bits(j.gamma, 0, j.cols), streams(j.out, j.x)
		for r := lo; r < hi; r++ {
			at, end := r*j.cols, (r+1)*j.cols
			j.keep(r, k.RMSNorm(bits(j.out, at, end), bits(j.x, at, end), gamma, j.eps, stream))
		}
		return
	}
	gamma, stream := load(cut(buf, 0, j.cols), j.gamma, 0), streams32(j.out, j.x)
	for r := lo; r < hi; r++ {
		at := r * j.cols
		x := load(cut(buf, 1, j.cols), j.x, at)
		out := target(cut(buf, 1, j.cols), j.out, at)
		j.keep(r, rowwise.F32.Best().RMSNorm(out, x, gamma, j.eps, stream))
		store(j.out, at, out)
	}
})

// keep stores the statistic of a row for the backward pass.
func (j *rmsNormJob) keep(r int, rstd float32) {
	if j.rstd.Len() > 0 {
		j.rstd.Float32s()[r] = rstd
	}
}

type rmsNormBackwardJob struct {
	dx, dgamma, dy, x, rstd, gamma, ws snug.View

	rows, cols int
	into       GradsInto
	frozen     bool
}

func (*rmsNormBackwardJob) Kernel() string { return "fused.rmsnorm_backward" }

func (j *rmsNormBackwardJob) Operands(yield func(*driver.Mem)) {
	device.Each(yield, &j.dx, &j.dgamma, &j.dy, &j.x, &j.rstd, &j.gamma, &j.ws)
}

// Run leaves the partial sums of part p at ws[p][cols].
func (j rmsNormBackwardJob) Run() {
	n := parts(j.rows)
	rmsNormBackwardTask.Run(n, j)
	if !j.frozen {
		addParts(j.dgamma.Float32s(), j.ws.Float32s(), 0, n, j.cols, j.into.Params, order(j.x))
	}
}

var rmsNormBackwardTask = cpu.NewTask(func(j *rmsNormBackwardJob, part int) {
	buf := scratch.Get(5 * j.cols)
	defer finish(buf)
	dgamma := cut(buf, 4, j.cols)
	if !j.frozen {
		dgamma = j.ws.Float32s()[part*j.cols:][:j.cols]
	}
	clear(dgamma)
	rstd, into := j.rstd.Float32s(), j.into.Input
	lo, hi := cpu.Chunk(j.rows, partRows(j.rows), part)
	if k := direct(j.x); k != nil {
		gamma, stream := bits(j.gamma, 0, j.cols), into.Beta == 0 && streams(j.dx, j.dy)
		for r := lo; r < hi; r++ {
			at, end := r*j.cols, (r+1)*j.cols
			k.RMSNormGrad(bits(j.dx, at, end), dgamma, bits(j.dy, at, end), bits(j.x, at, end), gamma,
				rstd[r], into.Alpha, into.Beta, stream)
		}
		return
	}
	gamma, stream := load(cut(buf, 0, j.cols), j.gamma, 0), into.Beta == 0 && streams32(j.dx, j.dy)
	for r := lo; r < hi; r++ {
		at := r * j.cols
		dy := load(cut(buf, 1, j.cols), j.dy, at)
		x := load(cut(buf, 2, j.cols), j.x, at)
		dx := targetInto(into, cut(buf, 3, j.cols), j.dx, at)
		rowwise.F32.Best().RMSNormGrad(dx, dgamma, dy, x, gamma, rstd[r], into.Alpha, into.Beta, stream)
		store(j.dx, at, dx)
	}
})
