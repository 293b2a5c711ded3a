package fused

import (
	"github.com/snug-ml/snug"
)

// LayerNorm normalizes each row of x to mean 0 and variance 1, and scales and
// shifts its columns (Ba, Kiros, Hinton, "Layer Normalization", 2016):
//
//	mean = Σ x[j] / cols
//	rstd = 1 / √(Σ (x[j] − mean)² / cols + eps)
//	out[j] = (x[j] − mean)·rstd·gamma[j] + beta[j]
//
// Shapes: gamma and beta [cols], at least one column; x and out [rows, cols];
// mean and rstd [rows], which [LayerNormBackward] needs, 8 bytes a row. For
// inference both may be empty, such as []float32(nil).
//
// Aliasing: out may be x. The variance is taken of the centered row, so that
// a large mean does not cancel it; sums are float32 with an error of at most
// (cols/4+4)·2⁻²⁴ of the sum of magnitudes. eps must be finite and not
// negative. Each worker holds 3·cols float32.
func LayerNorm[V snug.Vector, L snug.Vector32](out V, mean, rstd L, x, gamma, beta V, eps float32) error {
	return layerNorm(snug.ViewOf(out), snug.ViewOf(mean), snug.ViewOf(rstd),
		snug.ViewOf(x), snug.ViewOf(gamma), snug.ViewOf(beta), eps)
}

// LayerNormBackward computes the gradients of [LayerNorm] from the gradient dy
// of its output, its input x, and the mean and rstd that it left. With
// x̂[j] = (x[j] − mean)·rstd, g[j] = dy[j]·gamma[j] and avg the mean of a row:
//
//	dx[j]     ← rstd·(g[j] − avg(g) − x̂[j]·avg(g·x̂))
//	dgamma[j] ← Σ over rows of dy[j]·x̂[j]
//	dbeta[j]  ← Σ over rows of dy[j]
//
// where ← applies into, see [snug.Into].
//
// Shapes: dx, dy and x [rows, cols]; mean and rstd [rows]; gamma, dgamma and
// dbeta [cols], at least one column. With frozen parameters dgamma, dbeta and ws may
// be empty: []float32(nil). ws has at least LayerNormWorkspaceLen(rows, cols)
// elements.
//
// Aliasing: dx may be dy. Each worker holds 6·cols float32.
func LayerNormBackward[V snug.Vector, G, L snug.Vector32](dx V, dgamma, dbeta G, dy, x V, mean, rstd L, gamma V, into GradsInto, ws L) error {
	return layerNormBackward(snug.ViewOf(dx), snug.ViewOf(dgamma), snug.ViewOf(dbeta),
		snug.ViewOf(dy), snug.ViewOf(x), snug.ViewOf(mean), snug.ViewOf(rstd),
		snug.ViewOf(gamma), into, snug.ViewOf(ws))
}

// LayerNormWorkspaceLen returns the workspace of [LayerNormBackward] in
// float32 elements: two sums a column for each of at most 128 parts of the
// rows.
func LayerNormWorkspaceLen(rows, cols int) int { return product(2, partialLen(rows, cols)) }

func layerNorm(out, mean, rstd, x, gamma, beta snug.View, eps float32) error {
	check := &checks{op: "LayerNorm"}
	cols := gamma.Len()
	checkEps(check, eps)
	check.floats(operand{"x", x}, operand{"out", out}, operand{"gamma", gamma}, operand{"beta", beta})
	check.f32(operand{"mean", mean}, operand{"rstd", rstd})
	rows := check.rows(operand{"x", x}, cols)
	check.matrix(rows, cols, operand{"out", out})
	if mean.Len() > 0 || rstd.Len() > 0 {
		check.len(rows, operand{"mean", mean}, operand{"rstd", rstd})
	}
	check.len(cols, operand{"beta", beta})
	return run(check, layerNormJob{out, mean, rstd, x, gamma, beta, rows, cols, eps}, out, mean, rstd, x, gamma, beta)
}

func checkEps(check *checks, eps float32) {
	check.finite("eps", eps)
	if eps < 0 {
		check.failf(snug.ErrConfig, "eps is %v, want at least 0", eps)
	}
}

func layerNormBackward(dx, dgamma, dbeta, dy, x, mean, rstd, gamma snug.View, into GradsInto, ws snug.View) error {
	check := &checks{op: "LayerNormBackward"}
	cols := gamma.Len()
	into.Input, into.Params = check.into(into.Input), check.into(into.Params)
	check.floats(operand{"x", x}, operand{"dx", dx}, operand{"dy", dy}, operand{"gamma", gamma})
	check.f32(operand{"dgamma", dgamma}, operand{"dbeta", dbeta},
		operand{"mean", mean}, operand{"rstd", rstd}, operand{"ws", ws})
	rows := check.rows(operand{"x", x}, cols)
	check.matrix(rows, cols, operand{"dx", dx}, operand{"dy", dy})
	check.len(rows, operand{"mean", mean}, operand{"rstd", rstd})
	frozen := dgamma.Len() == 0 && dbeta.Len() == 0
	if !frozen {
		check.len(cols, operand{"dgamma", dgamma}, operand{"dbeta", dbeta})
		check.workspace(ws, LayerNormWorkspaceLen(rows, cols))
	}
	return run(check, layerNormBackwardJob{dx, dgamma, dbeta, dy, x, mean, rstd, gamma, ws, rows, cols, into, frozen}, dx, dgamma, dbeta, dy, x, mean, rstd, gamma, ws)
}
