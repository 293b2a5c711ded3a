package accum

import (
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/half"
)

// chunk is the number of elements that one worker adds at a time.
const chunk = 1 << 14

// tiles are the float32 scratch for 16-bit gradients, 4 KiB a running worker.
var tiles cpu.Scratch

// accumulate queues acc = alpha·g + beta·acc on dev. An empty g is zero.
func accumulate(dev *snug.Device, acc, g snug.View, alpha, beta float32) error {
	job := accumulateJob{acc, g, alpha, beta}
	if dev.IsCPU() {
		job.Run()
		return nil
	}
	queued := job
	return dev.Launch(&queued)
}

type accumulateJob struct {
	acc, g      snug.View
	alpha, beta float32
}

func (*accumulateJob) Kernel() string { return "accum.accumulate" }

func (j *accumulateJob) Operands(yield func(*driver.Mem)) {
	yield(j.acc.Mem())
	yield(j.g.Mem())
}

func (j *accumulateJob) Run() { accumulateTask.Run(cpu.Chunks(j.acc.Len(), chunk), *j) }

var accumulateTask = cpu.NewTask(func(j *accumulateJob, item int) {
	lo, hi := cpu.Chunk(j.acc.Len(), chunk, item)
	acc := j.acc.Float32s()[lo:hi]
	switch {
	case j.g.Len() == 0:
		decay(acc, j.beta)
	case j.g.DType() == snug.F32:
		combine(acc, j.g.Float32s()[lo:hi], j.alpha, j.beta)
	default:
		scratch := tiles.Get(half.Chunk)
		defer tiles.Put(scratch)
		for len(acc) > 0 {
			g := (*scratch)[:min(half.Chunk, len(acc))]
			half.Load(g, j.g, lo)
			combine(acc[:len(g)], g, j.alpha, j.beta)
			acc, lo = acc[len(g):], lo+len(g)
		}
	}
})

// combine computes acc = alpha·g + beta·acc and does not read acc for a beta
// of 0. Both products are rounded, on every platform.
func combine(acc, g []float32, alpha, beta float32) {
	g = g[:len(acc)]
	if beta == 0 {
		for i := range acc {
			acc[i] = alpha * g[i]
		}
		return
	}
	for i := range acc {
		acc[i] = float32(alpha*g[i]) + float32(beta*acc[i])
	}
}

func decay(acc []float32, beta float32) {
	if beta == 0 {
		clear(acc)
		return
	}
	for i := range acc {
		acc[i] *= beta
	}
}
