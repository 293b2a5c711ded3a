package fused

import (
	"github.com/snug-ml/snug"
)

// LogProbs computes, for each row of x, the log-probabilities of some classes and the logarithm of
// the sum of the exponentials of all logits, without keeping the logits. Losses of preferences
// (DPO), of policies (PPO, GRPO) and of distillation from the k most probable classes of another
// model are functions of the log-probabilities; [LogProbsBackward] receives their derivatives. With
// the logits z of row i, as [CrossEntropy] defines them,
//
//	lse[i] = log Σ exp(z[j])
//	logp[i][k] = z[t] − lse[i]      with t = targets[i][k]
//
// A negative target is ignored: its logp is 0, and [LogProbsBackward] does not read its derivative.
//
// Shapes: x [rows, Cols]; w [Vocab, Cols]; targets and logp [rows, K], K = len(targets)/rows; lse
// [rows]; ws at least c.WorkspaceLen(rows) elements. With a K of 0 there is lse alone. c may have no
// Weights, Smoothing or ZLoss. A target of Vocab or more gives an error that wraps [snug.ErrShape]
// and names its index.
//
// Unlike [CrossEntropyLoss] the call does not wait for a device: read logp with CopyOut, which does.
// Rows without targets cost as much as others: to save time, leave them out of x.
//
// Accuracy: an element is rounded once, after the rounding of the logits. A row with a NaN or +Inf
// among its logits gives NaN; where all are −Inf, lse is −Inf and logp NaN. The rounding of the
// results depends on Tile, and on Chunk as [CrossEntropy] says.
func LogProbs[V snug.Vector, L snug.Vector32](c CrossEntropy, logp, lse L, x, w V, targets []int32, ws L) error {
	job := logProbsJob{head: head{config: c, x: snug.ViewOf(x), w: snug.ViewOf(w)},
		logp: snug.ViewOf(logp), lse: snug.ViewOf(lse), ws: snug.ViewOf(ws)}
	return job.launch("LogProbs", targets)
}

// LogProbsBackward computes the gradients of a function of the results of [LogProbs] from its
// derivatives dlogp and dlse. With p the softmax of the logits z of row i, which are computed again,
//
//	g[j] = dlse[i]·p[j] + Σ (dlogp[i][k]·([j = t] − p[j]))      over all k, with t = targets[i][k]
//	dx = g·w
//	dw ← gᵀ·x
//	DBias ← Σ g over the rows
//
// with g times 1/Temperature, and times the slope of the cap, as in [CrossEntropyBackward]. There is no
// gradScale: dlogp and dlse carry the loss scale, and what the loss is divided by. The call needs
// lse as LogProbs left it, and costs three products, two with a frozen w, whatever Tile is. The
// rounding of lse to float32 adds a relative error of 2^-24·|lse| to p, as torch's log_softmax has.
//
// Shapes are those of LogProbs, with dlogp as logp and dlse as lse; dlse may be empty for zeros, such
// as []float32(nil). dx, dw and into are those of [CrossEntropyBackward], also what they may be; dx
// may be x. A row whose targets are all ignored has a zero gradient, unless there is a dlse.
func LogProbsBackward[V snug.Vector, G, L snug.Vector32](c CrossEntropy, dx V, dw G, dlogp, dlse, lse L, x, w V, targets []int32, into snug.Into, ws L) error {
	job := logProbsJob{
		head: head{config: c, dx: snug.ViewOf(dx), dw: snug.ViewOf(dw), x: snug.ViewOf(x), w: snug.ViewOf(w), into: into},
		logp: snug.ViewOf(dlogp), dlse: snug.ViewOf(dlse), lse: snug.ViewOf(lse), ws: snug.ViewOf(ws), gradients: true,
	}
	return job.launch("LogProbsBackward", targets)
}

// launch checks the operands and runs the job.
func (j logProbsJob) launch(op string, targets []int32) error {
	check, c, name := &checks{op: op}, j.config, "logp"
	c.checkPlain(check, "", true)
	c.check(check, "")
	if j.gradients {
		name = "dlogp"
	}
	j.checkGradients(check, j.gradients, 1)
	j.checkTypes(check, studentNames, j.gradients)
	check.f32(operand{name, j.logp}, operand{"dlse", j.dlse}, operand{"lse", j.lse}, operand{"ws", j.ws})
	rows := check.rows(operand{"x", j.x}, c.Cols)
	j.checkLens(check, studentNames, rows, j.gradients)
	if rows == 0 && len(targets) > 0 || rows > 0 && len(targets)%rows != 0 {
		check.failf(snug.ErrShape, "targets has %d elements, want as many for each of %d rows of x", len(targets), rows)
	}
	check.len(len(targets), operand{name, j.logp})
	check.len(rows, operand{"lse", j.lse})
	check.lenIfAny(rows, operand{"dlse", j.dlse})
	check.workspace(j.ws, c.WorkspaceLen(rows))
	check.indices("targets", targets, "w", c.Vocab, true)
	dev := check.device(j.dx, j.dw, j.x, j.w, c.Bias, j.config.DBias, j.logp, j.dlse, j.lse, j.ws)
	if check.err != nil {
		return check.err
	}
	j.rows, j.k = rows, len(targets)/max(1, rows)
	if dev.IsCPU() {
		j.targets = snug.SliceView(targets)
		j.Run()
		return nil
	}
	queued := j
	return launchWith(dev, &queued, []upload{indices(targets, &queued.targets)})
}
