package fused

import (
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
)

type logProbsJob struct {
	head
	logp, dlse, lse snug.View // with gradients logp is dlogp
	ws, targets     snug.View

	rows, k   int // k: targets of a row
	gradients bool
}

func (j *logProbsJob) Kernel() string {
	if j.gradients {
		return "fused.log_probs_backward"
	}
	return "fused.log_probs"
}

func (j *logProbsJob) Operands(yield func(*driver.Mem)) {
	j.operands(yield)
	device.Each(yield, &j.logp, &j.dlse, &j.lse, &j.ws, &j.targets)
}

func (j *logProbsJob) Run() {
	j.chunks(j.rows, func(lo, hi int, beta float32) {
		if j.gradients {
			j.backward(lo, hi, beta)
		} else {
			j.forward(lo, hi)
		}
	})
}

// forward does rows lo to hi-1: logp has the logits of the targets until all tiles have been seen.
func (j *logProbsJob) forward(lo, hi int) {
	s := j.space(j.ws, hi-lo)
	j.tiles(lo, hi, func(t tile) {
		j.multiply(t, s.logits)
		foldProbsTask.Run(cpu.Chunks(t.rows, itemRows(t.classes)), j.args(t, s))
	})
	a := j.args(j.tileAt(lo, hi, 0), s)
	for r := range a.stats {
		lse := a.stats[r].lse()
		a.lse[r] = float32(lse)
		for i, t := range a.targetsOf(r) {
			if p := &a.logp[r*a.k+i]; t < 0 {
				*p = 0
			} else {
				*p = float32(float64(*p) - lse)
			}
		}
	}
}

func (j *logProbsJob) backward(lo, hi int, beta float32) {
	s := j.space(j.ws, hi-lo)
	j.tiles(lo, hi, func(t tile) {
		j.multiply(t, s.logits)
		probsGradTask.Run(cpu.Chunks(t.rows, itemRows(t.classes)), j.args(t, s))
		j.backprop(t, s, beta)
	})
	j.store(lo, hi, s)
}

// probsArgs are the logits of a tile and what there is of their rows.
type probsArgs struct {
	logitArgs
	stats           []rowStats
	targets         []int32
	logp, lse, dlse []float32
	k               int
}

func (j *logProbsJob) args(t tile, s headSpace) probsArgs {
	return probsArgs{
		logitArgs: j.logitsOf(t, s.logits), stats: statsOf(s.stats), k: j.k,
		targets: snug.Host[int32](j.targets)[t.row*j.k:][:t.rows*j.k],
		logp:    span(j.logp, t.row*j.k, t.rows*j.k).Float32s(), lse: span(j.lse, t.row, t.rows).Float32s(),
		dlse: j.dlseOf(t).Float32s(),
	}
}

func (j *logProbsJob) dlseOf(t tile) snug.View {
	if j.dlse.Len() == 0 {
		return snug.View{}
	}
	return span(j.dlse, t.row, t.rows)
}

func (a *probsArgs) targetsOf(r int) []int32 { return a.targets[r*a.k:][:a.k] }

// foldProbsTask takes the logits of the targets, and adds all to the statistics.
var foldProbsTask = cpu.NewTask(func(a *probsArgs, item int) {
	a.each(item, func(r int, buf []float32) {
		z := a.logitsOf(r)
		a.finish(z, buf)
		for i, t := range a.targetsOf(r) {
			if c := int(t) - a.from; t >= 0 && 0 <= c && c < len(z) {
				a.logp[r*a.k+i] = z[c]
			}
		}
		if a.from == 0 {
			a.stats[r] = noLogits()
		}
		a.stats[r].fold(z)
	})
})

// probsGradTask replaces the logits of a tile by their gradients.
var probsGradTask = cpu.NewTask(func(a *probsArgs, item int) {
	a.each(item, func(r int, buf []float32) {
		a.dlogits(r, buf)
		a.round(r)
	})
})

// dlogits replaces the logits of a row by their gradients.
func (a *probsArgs) dlogits(r int, buf []float32) {
	z, targets, dlogp := a.logitsOf(r), a.targetsOf(r), a.logp[r*a.k:][:a.k]
	var sum float64 // what all probabilities are multiplied by
	some := len(a.dlse) > 0
	if some {
		sum = float64(a.dlse[r])
	}
	for i, t := range targets {
		if t >= 0 {
			sum -= float64(dlogp[i])
			some = true
		}
	}
	if !some {
		clear(z)
		return
	}
	a.finish(z, buf)
	a.gradient(z, dlogits{
		max: a.lse[r], factor: float32(sum * float64(a.scale)), targets: targets, hits: dlogp, hit: -a.scale,
	}, buf)
}
