package accum

import (
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/sweep"
)

// chunk is the number of elements that one worker adds at a time.
const chunk = 1 << 14

// accumulate queues acc = alpha·g + beta·acc on dev, both products rounded. It
// does not read acc for a beta of 0. An empty g is zero.
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
	case j.g.Len() > 0:
		sweep.Accumulate(acc, j.g, lo, j.alpha, j.beta)
	case j.beta == 0:
		clear(acc)
	default:
		sweep.Scale(j.acc, lo, hi, j.beta)
	}
})
