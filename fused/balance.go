package fused

import (
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/rowwise"
)

// AddScores adds up, over all rows, the scores that a [Router] gives to each expert. [AuxLoss] needs these sums:
//
//	sums[e] += Σ score[i][e]      over the rows i of logits
//
// Shapes: sums [Experts] and ws, at least r.WorkspaceLen(rows) elements, of float32; logits [rows, Experts]. A wrong
// length gives an error that wraps [snug.ErrShape]. Set sums to zero before the first layer.
//
// The rows are divided into at most 64 parts, whose sums are added in a fixed order, so that the bits do not depend on
// the number of workers. Each worker holds 8·Experts bytes.
func AddScores[L snug.Vector32, V snug.Vector](r Router, sums L, logits V, ws L) error {
	check := &checks{op: "AddScores"}
	j := scoresJob{router: r, sums: snug.ViewOf(sums), logits: snug.ViewOf(logits), ws: snug.ViewOf(ws)}
	j.router.resolve(check)
	check.floats(operand{"logits", j.logits})
	check.f32(operand{"sums", j.sums}, operand{"ws", j.ws})
	rows := check.rows(operand{"logits", j.logits}, r.Experts)
	check.len(r.Experts, operand{"sums", j.sums})
	check.workspace(j.ws, r.WorkspaceLen(rows))
	j.rows = rows
	return run(check, j, j.sums, j.logits, j.ws)
}

// WorkspaceLen returns how many float32 elements of workspace [AddScores] needs for a number of rows. It is at most
// 64·Experts.
func (r Router) WorkspaceLen(rows int) int {
	if rows <= 0 || r.Experts <= 0 {
		return 0
	}
	return product(parts(rows), r.Experts)
}

type scoresJob struct {
	sums, logits, ws snug.View

	router Router
	rows   int
}

func (*scoresJob) Kernel() string { return "fused.add_scores" }

func (j *scoresJob) Operands(yield func(*driver.Mem)) { device.Each(yield, &j.sums, &j.logits, &j.ws) }

// scoresInto adds the sums of the parts to what sums held before.
var scoresInto = snug.Into{Alpha: 1, Beta: 1}

func (j scoresJob) Run() {
	n := parts(j.rows)
	scoresTask.Run(n, j)
	addParts(j.sums.Float32s(), j.ws.Float32s(), 0, n, j.router.Experts, scoresInto, nil)
}

var scoresTask = cpu.NewTask(func(j *scoresJob, part int) {
	n := j.router.Experts
	buf := scratch.Get(2 * n)
	defer scratch.Put(buf)
	sums, scores := j.ws.Float32s()[part*n:][:n], cut(buf, 1, n)
	clear(sums)
	lo, hi := cpu.Chunk(j.rows, partRows(j.rows), part)
	for i := lo; i < hi; i++ {
		j.router.scores(scores, load(cut(buf, 0, n), j.logits, i*n))
		rowwise.F32.Best().Add(sums, sums, scores, false)
	}
})

// AuxLoss returns the loss that balances the load of experts (Fedus et al., "Switch Transformers" (2021), equations 4
// to 6). As load_balancing_loss_func of the Python package transformers does, it takes the rows of all layers together:
//
//	loss = Experts·Σ f[e]·P[e]      f[e] = counts[e]/rows, P[e] = scores[e]/rows
//
// AuxLoss also sets coefficients[e] to scale times the derivative of the loss with respect to the score of expert e in
// one row. This derivative is the same for every row of every layer, and [RouteBackward] takes it as aux. f has no
// gradient.
//
//	coefficients[e] = scale·Experts·counts[e]/rows²
//
// counts[e] is how often expert e was chosen in all layers, see [Group]. scores are the sums of [AddScores] over all
// layers, copied to the host. rows is the number of rows times the number of layers. scale is the weight of the loss
// times the loss scale. With c chosen experts a row and equal loads, the loss is c.
//
// counts, scores and coefficients have one element for each expert, and rows is at least 1 (else [snug.ErrShape]).
// counts are not negative and scale is finite (else [snug.ErrConfig]). coefficients may be scores. Sums are float64.
// AuxLoss works on the host and takes no memory.
func AuxLoss(coefficients, scores []float32, counts []int64, rows int, scale float32) (loss float64, err error) {
	check := &checks{op: "AuxLoss"}
	if rows < 1 {
		check.failf(snug.ErrShape, "rows is %d, want at least 1", rows)
	}
	check.finite("scale", scale)
	checkCounts(check, counts)
	check.same("coefficients", len(coefficients), "counts", len(counts))
	check.same("scores", len(scores), "counts", len(counts))
	if check.err != nil {
		return 0, check.err
	}
	n, experts := float64(rows), float64(len(counts))
	for e, c := range counts {
		f := experts * (float64(c) / n)
		loss += f * (float64(scores[e]) / n)
		coefficients[e] = float32(float64(scale) * f / n)
	}
	return loss, nil
}

// UpdateBias balances the load of the experts of a [Router] without a loss, as DeepSeek-V3 does after each step
// (DeepSeek-AI, "DeepSeek-V3 Technical Report" (2024), section 2.1.2). It lowers the bias of an expert that was chosen
// more often than the mean by rate, and raises the bias of an expert that was chosen less often by rate:
//
//	bias[e] += rate·sign(mean(counts) − counts[e])
//
// bias and counts have one element for each expert (else [snug.ErrShape]). counts are not negative and rate is finite
// (else [snug.ErrConfig]). UpdateBias works on the host and takes no memory.
func UpdateBias(bias []float32, counts []int64, rate float32) error {
	check := &checks{op: "UpdateBias"}
	check.finite("rate", rate)
	checkCounts(check, counts)
	check.same("bias", len(bias), "counts", len(counts))
	if check.err != nil {
		return check.err
	}
	total := 0.0
	for _, c := range counts {
		total += float64(c)
	}
	mean := total / float64(len(counts))
	for e, c := range counts {
		switch {
		case float64(c) < mean:
			bias[e] += rate
		case float64(c) > mean:
			bias[e] -= rate
		}
	}
	return nil
}

// checkCounts reports the first negative count.
func checkCounts(check *checks, counts []int64) {
	for e, c := range counts {
		if c < 0 {
			check.failf(snug.ErrConfig, "counts[%d] is %d, want at least 0", e, c)
		}
	}
}
