//go:build cuda || hip || metal || emu

package fused

import "github.com/snug-ml/snug/internal/gpu"

var (
	probsFold = headKernelsOf("fused_log_probs_fold")
	probsTile = headKernelsOf("fused_log_probs_tile")
)

// Grids queues the kernels for what Run computes on the CPU, a chunk of rows at a time.
func (j *logProbsJob) Grids(q gpu.Launcher) error {
	return j.chunksOn(j.rows, func(lo, hi int, beta float32) error {
		s := j.space(j.ws, hi-lo)
		err := j.tilesOn(lo, hi, func(t tile) error { return j.tileOn(q, t, s, beta) })
		if err != nil || !j.gradients {
			return err
		}
		return j.storeOn(q, lo, hi, s)
	})
}

// tileOn queues a tile, forward or backward.
func (j *logProbsJob) tileOn(q gpu.Launcher, t tile, s headSpace, beta float32) error {
	if err := j.multiplyOn(q, t, s.logits); err != nil {
		return err
	}
	p, targets := j.params(t), span(j.targets, t.row*j.k, t.rows*j.k)
	p.targets = uint32(j.k)
	logp, lse, dlse := span(j.logp, t.row*j.k, t.rows*j.k), span(j.lse, t.row, t.rows), j.dlseOf(t)
	if !j.gradients {
		return perRow(q, probsFold, t, p, &s.logits, &s.stats, &logp, &lse, &targets)
	}
	if dlse.Len() > 0 {
		p.slope = 1
	}
	z := j.head.gradients(t, s, &p)
	if err := perRow(q, probsTile, t, p, &s.logits, &logp, &dlse, &lse, &targets); err != nil {
		return err
	}
	return j.backpropOn(q, t, s, z, beta)
}
