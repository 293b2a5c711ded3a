//go:build cuda || hip || metal || emu

package fused

import (
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/gpu"
)

// The kernels of losses and gradients of logits: whole takes rows of all classes. Of tiles, fold adds one to the
// statistics of its row, and tile makes the gradients of one.
var (
	lossWhole = headKernelsOf("fused_cross_entropy")
	lossFold  = headKernelsOf("fused_cross_entropy_fold")
	lossTile  = headKernelsOf("fused_cross_entropy_tile")
)

// Grids queues the kernels for what run computes on the CPU, a chunk of rows at a time.
func (j *crossEntropyJob) Grids(q gpu.Launcher) error {
	return j.chunksOn(j.targets.Len(), func(lo, hi int, beta float32) error {
		s := j.space(j.ws, hi-lo)
		if j.config.tile() < j.config.Vocab {
			return j.tiledOn(q, lo, hi, s, beta)
		}
		return j.wholeOn(q, j.tileAt(lo, hi, 0), s, beta)
	})
}

// wholeOn queues a chunk of rows of all classes.
func (j *crossEntropyJob) wholeOn(q gpu.Launcher, t tile, s headSpace, beta float32) error {
	if err := j.multiplyOn(q, t, s.logits); err != nil {
		return err
	}
	p, targets, weights := j.lossParams(t)
	var z gpu.Matrix
	if j.gradients {
		p.gradients = 1
		z = j.head.gradients(t, s, &p)
	}
	if err := perRow(q, lossWhole, t, p, &s.logits, &s.losses, &targets, &weights); err != nil {
		return err
	}
	if err := sumOn(q, j.sum, s.losses, t.row); err != nil || !j.gradients {
		return err
	}
	return j.backpropOn(q, t, s, z, beta)
}

// lossParams returns the parameters of the kernels for a tile, and its rows' targets and weights.
func (j *crossEntropyJob) lossParams(t tile) (p headParams, targets, weights snug.View) {
	p = j.params(t)
	p.scale *= j.gradScale
	weights, p.weighted = weightsOf(j.weights, t)
	return p, span(j.targets, t.row, t.rows), weights
}

// tiledOn queues the kernels for what tiled computes on the CPU.
func (j *crossEntropyJob) tiledOn(q gpu.Launcher, lo, hi int, s headSpace, beta float32) error {
	err := j.tilesOn(lo, hi, func(t tile) error {
		if err := j.multiplyOn(q, t, s.logits); err != nil {
			return err
		}
		p, targets, weights := j.lossParams(t)
		return perRow(q, lossFold, t, p, &s.logits, &s.stats, &s.losses, &targets, &weights)
	})
	if err != nil {
		return err
	}
	if err := sumOn(q, j.sum, s.losses, lo); err != nil || !j.gradients {
		return err
	}
	err = j.tilesOn(lo, hi, func(t tile) error {
		if err := j.multiplyOn(q, t, s.logits); err != nil {
			return err
		}
		p, targets, weights := j.lossParams(t)
		z := j.head.gradients(t, s, &p)
		if err := perRow(q, lossTile, t, p, &s.logits, &s.stats, &targets, &weights); err != nil {
			return err
		}
		return j.backpropOn(q, t, s, z, beta)
	})
	if err != nil {
		return err
	}
	return j.storeOn(q, lo, hi, s)
}
