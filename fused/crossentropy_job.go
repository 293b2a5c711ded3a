package fused

import (
	"encoding/binary"
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/rowwise"
)

// Row r has the products z_j of the linear layer, which become logits, the distribution q_j that it should have (1 at its target,
// or with Smoothing 1−Smoothing there and Smoothing/Vocab everywhere), and the weight w:
//
//	max         = max_j z_j
//	sumExp      = Σ_j exp(z_j − max)
//	lse         = max + log sumExp
//	targetLogit = Σ_j q_j·z_j
//	loss        = w·(lse − targetLogit + ZLoss·lse²)
//	dlogits_j   = gradScale·w·((1 + 2·ZLoss·lse)·exp(z_j − lse) − q_j)
//
// A chunk of rows whose logits have room takes one pass over the vocabulary. Otherwise the first pass leaves max, sumExp and
// targetLogit of the rows, tile by tile, and the second computes the logits again for their gradients.

// chunk does rows lo to hi-1 and returns their losses.
func (j *crossEntropyJob) chunk(lo, hi int, beta float32) []float32 {
	s := j.space(j.ws, hi-lo)
	if j.config.tile() < j.config.Vocab {
		return j.tiled(lo, hi, s, beta)
	}
	t := j.tileAt(lo, hi, 0)
	j.multiply(t, s.logits)
	a := j.lossArgs(t, s)
	rowTask.Run(a.items(), a)
	if j.gradients {
		j.backprop(t, s, beta)
	}
	return a.losses
}

// tiled is chunk in two passes over the vocabulary.
func (j *crossEntropyJob) tiled(lo, hi int, s headSpace, beta float32) []float32 {
	j.tiles(lo, hi, func(t tile) {
		j.multiply(t, s.logits)
		a := j.lossArgs(t, s)
		foldTask.Run(a.items(), a)
	})
	a := j.lossArgs(j.tileAt(lo, hi, 0), s)
	for r := range a.losses {
		a.losses[r] = 0
		if a.targets[r] >= 0 {
			a.losses[r] = a.loss(r, a.stats[r].sumExp(), float64(a.stats[r].max), float64(a.stats[r].targetLogit))
		}
	}
	if j.gradients {
		j.tiles(lo, hi, func(t tile) {
			j.multiply(t, s.logits)
			a := j.lossArgs(t, s)
			dlogitsTask.Run(a.items(), a)
			j.backprop(t, s, beta)
		})
		j.store(lo, hi, s)
	}
	return a.losses
}

// rowTask computes the losses of rows of all classes and replaces the logits by their gradients.
var rowTask = cpu.NewTask(func(a *lossArgs, item int) {
	a.each(item, func(r int, buf []float32) {
		a.losses[r] = a.rowLoss(r, buf)
		if a.gradients {
			a.round(r)
		}
	})
})

// rowLoss returns the loss of a row, whose logits it overwrites, with their gradients if these are wanted.
func (a *lossArgs) rowLoss(r int, buf []float32) float32 {
	z := a.logitsOf(r)
	if a.targets[r] < 0 {
		if a.gradients {
			clear(z)
		}
		return 0
	}
	a.finish(z, buf)
	targetLogit := a.targetLogit(r, z)
	max := rowwise.Registry.Best().Max(z, 1, float32(math.Inf(-1)))
	exps := z
	if a.limit != 0 && a.gradients { // which need the logits again
		exps = nil
	}
	sumExp := expSum(exps, z, max, buf)
	if a.gradients {
		a.dlogits(r, z, max, sumExp, exps != nil, buf)
	}
	return a.loss(r, sumExp, float64(max), targetLogit)
}

// targetLogit returns what the logits z of a row, or of its tile, add to Σ q[j]·z[j].
func (a *lossArgs) targetLogit(r int, z []float32) (sum float64) {
	if j := int(a.targets[r]) - a.from; 0 <= j && j < len(z) {
		sum = float64(1-a.smoothing) * float64(z[j])
	}
	if a.smoothing != 0 {
		all := 0.0
		for _, x := range z {
			all += float64(x)
		}
		sum += float64(a.smoothing) / float64(a.allVocab) * all
	}
	return sum
}

// loss returns the loss of a row.
func (a *lossArgs) loss(r int, sumExp, max, targetLogit float64) float32 {
	loss := max - targetLogit + math.Log(sumExp)
	if a.zLoss != 0 {
		lse := max + math.Log(sumExp)
		loss += float64(a.zLoss) * lse * lse
	}
	return float32(float64(a.weights.of(r)) * loss)
}

// dlogits replaces the logits z of a row, or with exps their exponentials, by their gradients.
func (a *lossArgs) dlogits(r int, z []float32, max float32, sumExp float64, exps bool, buf []float32) {
	scale := a.gradScale * a.weights.of(r) * a.scale
	d := dlogits{
		exps: exps, max: max, factor: float32(float64(scale) / sumExp), targets: a.targets[r : r+1],
		hit: scale * (1 - a.smoothing),
	}
	if a.smoothing != 0 {
		d.shift = -scale * (a.smoothing / float32(a.allVocab))
	}
	if a.zLoss != 0 {
		lse := float64(max) + math.Log(sumExp)
		d.factor = float32(float64(scale) * (1 + 2*float64(a.zLoss)*lse) / sumExp)
	}
	a.gradient(z, d, buf)
}

// foldTask adds the logits of a tile, which it overwrites, to the statistics.
var foldTask = cpu.NewTask(func(a *lossArgs, item int) {
	a.each(item, func(r int, buf []float32) {
		if a.from == 0 {
			a.stats[r] = noLogits()
		}
		if a.targets[r] >= 0 {
			z, s := a.logitsOf(r), &a.stats[r]
			a.finish(z, buf)
			s.targetLogit += float32(a.targetLogit(r, z))
			s.fold(z)
		}
	})
})

// dlogitsTask replaces the logits of a tile by their gradients.
var dlogitsTask = cpu.NewTask(func(a *lossArgs, item int) {
	a.each(item, func(r int, buf []float32) {
		z, s := a.logitsOf(r), &a.stats[r]
		if a.targets[r] < 0 {
			clear(z)
		} else {
			a.finish(z, buf)
			a.dlogits(r, z, s.max, s.sumExp(), false, buf)
		}
		a.round(r)
	})
})

// lossArgs are the logits of a tile and the losses of their rows.
type lossArgs struct {
	logitArgs
	losses    []float32
	stats     []rowStats
	targets   []int32
	weights   rowWeights // of the rows' losses
	gradients bool
	gradScale float32
	smoothing float32
	allVocab  int // classes of all tiles
	zLoss     float32
}

func (j *crossEntropyJob) lossArgs(t tile, s headSpace) lossArgs {
	return lossArgs{
		logitArgs: j.logitsOf(t, s.logits), losses: s.losses.Float32s(), stats: statsOf(s.stats),
		targets: snug.Host[int32](j.targets)[t.row:][:t.rows], gradients: j.gradients, gradScale: j.gradScale,
		smoothing: j.config.Smoothing, allVocab: j.config.Vocab, zLoss: j.config.ZLoss,
		weights: rowWeightsOf(j.weights, t),
	}
}

type crossEntropyJob struct {
	head
	ws, targets snug.View
	weights     snug.View // of the rows; empty: 1
	sum         snug.View // the bits of a float64, little-endian

	gradients bool
	gradScale float32
}

func (j *crossEntropyJob) Kernel() string {
	if j.gradients {
		return "fused.cross_entropy_backward"
	}
	return "fused.cross_entropy_loss"
}

func (j *crossEntropyJob) Operands(yield func(*driver.Mem)) {
	j.operands(yield)
	device.Each(yield, &j.targets, &j.weights, &j.ws, &j.sum)
}

func (j *crossEntropyJob) Run() {
	binary.LittleEndian.PutUint64(snug.Host[uint8](j.sum), math.Float64bits(j.sumLosses(j.targets.Len(), j.chunk)))
}
