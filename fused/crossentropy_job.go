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
	for _, v := range []*snug.View{&j.targets, &j.weights, &j.ws, &j.sum} {
		yield(device.Mem(v))
	}
}

func (j *crossEntropyJob) Run() {
	binary.LittleEndian.PutUint64(snug.Host[uint8](j.sum), math.Float64bits(j.run()))
}

// run returns the sum of the losses. It does at least one chunk, if only of
// zero rows, since dw must take its Beta.
func (j *crossEntropyJob) run() (sum float64) {
	rows := j.targets.Len()
	size := max(1, j.config.chunk(rows))
	beta := j.into.Beta
	for lo := 0; lo < rows || lo == 0; lo += size {
		for _, loss := range j.chunk(lo, min(lo+size, rows), beta) {
			sum += float64(loss)
		}
		beta = 1 // later chunks add
	}
	return sum
}

// chunk does rows lo to hi-1 and returns their losses.
func (j *crossEntropyJob) chunk(lo, hi int, beta float32) []float32 {
	s := j.space(j.ws, hi-lo)
	if j.config.tile() < j.config.Vocab {
		return j.tiled(lo, hi, s, beta)
	}
	t := j.tileAt(lo, hi, 0)
	j.multiply(t, s.logits)
	a := j.lossArgs(t, s)
	wholeTask.Run(cpu.Chunks(t.rows, itemRows(t.classes)), a)
	if j.gradients {
		j.spread(t, s, beta)
	}
	return a.losses
}

// tiled does rows lo to hi-1 in two passes over the vocabulary, tile by tile. The first
// leaves the statistics of the rows, by the online softmax of Milakov and Gimelshein,
// "Online normalizer calculation for softmax" (2018). The second computes the logits
// again, and their gradients from the statistics.
func (j *crossEntropyJob) tiled(lo, hi int, s headSpace, beta float32) []float32 {
	j.tiles(lo, hi, func(t tile) {
		j.multiply(t, s.logits)
		foldTask.Run(cpu.Chunks(t.rows, itemRows(t.classes)), j.lossArgs(t, s))
	})
	a := j.lossArgs(j.tileAt(lo, hi, 0), s)
	for r := range a.losses {
		a.losses[r] = 0
		if a.targets[r] >= 0 {
			a.losses[r] = a.loss(r, a.stats[r].total(), float64(a.stats[r].peak), float64(a.stats[r].aim))
		}
	}
	if j.gradients {
		j.tiles(lo, hi, func(t tile) {
			j.multiply(t, s.logits)
			tileTask.Run(cpu.Chunks(t.rows, itemRows(t.classes)), j.lossArgs(t, s))
			j.spread(t, s, beta)
		})
		j.store(lo, hi, s)
	}
	return a.losses
}

// lossArgs are the logits of a tile and the losses of their rows.
type lossArgs struct {
	logitArgs
	losses    []float32
	stats     []rowStats
	targets   []int32
	weights   []float32 // of the rows' losses; nil: 1
	gradients bool
	gradScale float32
	smoothing float32
	all       int // classes of all tiles
	zLoss     float32
}

func (j *crossEntropyJob) lossArgs(t tile, s headSpace) lossArgs {
	a := lossArgs{
		logitArgs: j.logitsOf(t, s.logits), losses: s.losses.Float32s(), stats: statsOf(s.stats),
		targets: snug.Host[int32](j.targets)[t.row:][:t.rows], gradients: j.gradients, gradScale: j.gradScale,
		smoothing: j.config.Smoothing, all: j.config.Vocab, zLoss: j.config.ZLoss,
	}
	if j.weights.Len() > 0 {
		a.weights = j.weights.Float32s()[t.row:][:t.rows]
	}
	return a
}

func (a *lossArgs) weight(r int) float32 {
	if a.weights == nil {
		return 1
	}
	return a.weights[r]
}

// wholeTask computes the losses of rows of all classes and replaces the logits by their gradients.
var wholeTask = cpu.NewTask(func(a *lossArgs, item int) {
	buf := scratch.Get(expBlock)
	defer scratch.Put(buf)
	lo, hi := cpu.Chunk(a.rows, itemRows(a.vocab), item)
	for r := lo; r < hi; r++ {
		a.losses[r] = a.whole(r, *buf)
		if a.gradients {
			a.round(r)
		}
	}
})

// whole returns the loss of a row, whose logits it overwrites.
func (a *lossArgs) whole(r int, buf []float32) float32 {
	z := a.logitsOf(r)
	if a.targets[r] < 0 {
		if a.gradients {
			clear(z)
		}
		return 0
	}
	a.finish(z, buf)
	aim := a.aim(r, z)
	peak := rowwise.Registry.Best().Max(z, 1, float32(math.Inf(-1)))
	powers := z
	if a.limit != 0 && a.gradients { // which need the logits again
		powers = nil
	}
	total := expSum(powers, z, peak, buf)
	if a.gradients {
		a.slope(r, z, peak, total, powers != nil, buf)
	}
	return a.loss(r, total, float64(peak), aim)
}

// aim returns what the logits z of a row, or of its tile, add to Σ q[j]·z[j].
func (a *lossArgs) aim(r int, z []float32) (aim float64) {
	if j := int(a.targets[r]) - a.from; 0 <= j && j < len(z) {
		aim = float64(1-a.smoothing) * float64(z[j])
	}
	if a.smoothing != 0 {
		sum := 0.0
		for _, x := range z {
			sum += float64(x)
		}
		aim += float64(a.smoothing) / float64(a.all) * sum
	}
	return aim
}

// loss returns the loss of a row whose exponentials, less the peak, have the sum total.
func (a *lossArgs) loss(r int, total, peak, aim float64) float32 {
	loss := peak - aim + math.Log(total)
	if a.zLoss != 0 {
		lse := peak + math.Log(total)
		loss += float64(a.zLoss) * lse * lse
	}
	return float32(float64(a.weight(r)) * loss)
}

// slope replaces the logits z of a row, or their exponentials, by their gradients.
func (a *lossArgs) slope(r int, z []float32, peak float32, total float64, powers bool, buf []float32) {
	scale := a.gradScale * a.weight(r) * a.scale
	s := slopes{
		powers: powers, base: peak, factor: float32(float64(scale) / total), targets: a.targets[r : r+1],
		hit: scale * (1 - a.smoothing),
	}
	if a.smoothing != 0 {
		s.shift = -scale * (a.smoothing / float32(a.all))
	}
	if a.zLoss != 0 {
		lse := float64(peak) + math.Log(total)
		s.factor = float32(float64(scale) * (1 + 2*float64(a.zLoss)*lse) / total)
	}
	a.gradient(z, s, buf)
}

// foldTask adds the logits of a tile, which it overwrites, to the statistics.
var foldTask = cpu.NewTask(func(a *lossArgs, item int) {
	buf := scratch.Get(expBlock)
	defer scratch.Put(buf)
	lo, hi := cpu.Chunk(a.rows, itemRows(a.vocab), item)
	for r := lo; r < hi; r++ {
		if a.from == 0 {
			a.stats[r] = begun()
		}
		if a.targets[r] >= 0 {
			z, s := a.logitsOf(r), &a.stats[r]
			a.finish(z, *buf)
			s.aim += float32(a.aim(r, z))
			s.fold(z)
		}
	}
})

// tileTask replaces the logits of a tile by their gradients.
var tileTask = cpu.NewTask(func(a *lossArgs, item int) {
	buf := scratch.Get(expBlock)
	defer scratch.Put(buf)
	lo, hi := cpu.Chunk(a.rows, itemRows(a.vocab), item)
	for r := lo; r < hi; r++ {
		z, s := a.logitsOf(r), &a.stats[r]
		if a.targets[r] < 0 {
			clear(z)
		} else {
			a.finish(z, *buf)
			a.slope(r, z, s.peak, s.total(), false, *buf)
		}
		a.round(r)
	}
})
