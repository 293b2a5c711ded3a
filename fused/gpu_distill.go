//go:build cuda || hip || metal || emu

package fused

import "github.com/snug-ml/snug/internal/gpu"

var (
	pairFold = headKernelsOf("fused_distill_fold")
	pairTile = headKernelsOf("fused_distill_tile")
)

// pairParams is PairParams of distill.h.
type pairParams struct {
	student     headParams
	limit, over float32 // the teacher's
}

// Grids queues the kernels for what run computes on the CPU, a chunk of rows at a time.
func (j *distillJob) Grids(q gpu.Launcher) error {
	return j.chunksOn(j.rows, func(lo, hi int, beta float32) error {
		s := j.distillSpace(hi - lo)
		err := j.tilesOn(lo, hi, func(t tile) error { return j.foldOn(q, t, s) })
		if err != nil {
			return err
		}
		if err := sumOn(q, j.sum, s.losses, lo); err != nil || !j.gradients {
			return err
		}
		if err := j.tilesOn(lo, hi, func(t tile) error { return j.tileOn(q, t, s, beta) }); err != nil {
			return err
		}
		return j.storeOn(q, lo, hi, s.headSpace)
	})
}

// logitsOn queues the logits of a tile for both.
func (j *distillJob) logitsOn(q gpu.Launcher, t tile, s distillSpace) error {
	if err := j.multiplyOn(q, t, s.headSpace.logits); err != nil {
		return err
	}
	return j.teacher.multiplyOn(q, t, s.logits)
}

func (j *distillJob) pairParams(t tile) pairParams {
	p := pairParams{student: j.params(t), limit: j.teacher.config.Cap, over: j.teacher.config.scale()}
	p.student.scale *= j.gradScale
	return p
}

func (j *distillJob) foldOn(q gpu.Launcher, t tile, s distillSpace) error {
	if err := j.logitsOn(q, t, s); err != nil {
		return err
	}
	p := j.pairParams(t)
	weights, weighted := weightsOf(j.weights, t)
	p.student.weighted = weighted
	return perRow(q, pairFold, t, p, &s.headSpace.logits, &s.logits, &s.headSpace.stats, &s.stats, &s.losses, &weights)
}

// tileOn queues the gradients of a tile. The logits of a single tile are still there, and finished.
func (j *distillJob) tileOn(q gpu.Launcher, t tile, s distillSpace, beta float32) error {
	p := j.pairParams(t)
	if t.classes == j.config.Vocab {
		p.student.finished = 1
	} else if err := j.logitsOn(q, t, s); err != nil {
		return err
	}
	weights, weighted := weightsOf(j.weights, t)
	p.student.weighted = weighted
	z := j.head.gradients(t, s.headSpace, &p.student)
	if err := perRow(q, pairTile, t, p, &s.headSpace.logits, &s.logits, &s.headSpace.stats, &s.stats, &weights); err != nil {
		return err
	}
	return j.backpropOn(q, t, s.headSpace, z, beta)
}
