package fused

import (
	"encoding/binary"
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/gemm"
)

type crossEntropyJob struct {
	dx, dw, x, w, targets, ws snug.View
	sum                       snug.View // the bits of a float64, little-endian

	config    CrossEntropy
	gradients bool
	gradScale float32
	into      snug.Into // of dw
}

func (j *crossEntropyJob) Kernel() string {
	if j.gradients {
		return "fused.cross_entropy_backward"
	}
	return "fused.cross_entropy_loss"
}

func (j *crossEntropyJob) Operands(yield func(*driver.Mem)) {
	for _, v := range []*snug.View{&j.dx, &j.dw, &j.x, &j.w, &j.targets, &j.ws, &j.sum} {
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

// chunk does rows lo to hi-1 and returns their losses. dw comes before dx,
// which may take the place of x.
func (j *crossEntropyJob) chunk(lo, hi int, beta float32) (losses []float32) {
	rows, vocab, cols := hi-lo, j.config.Vocab, j.config.Cols
	logits := span(j.ws, 0, rows*vocab)
	losses = span(j.ws, rows*vocab, rows).Float32s()
	x := gemm.Matrix{Data: span(j.x, lo*cols, rows*cols), Stride: cols}
	w := gemm.Matrix{Data: j.w, Stride: cols}
	z := gemm.Matrix{Data: logits, Stride: vocab}

	gemm.Mul(rows, vocab, cols, 1, x, transposed(w), 0, z)
	softmaxTask.Run(cpu.Chunks(rows, itemRows(vocab)), softmaxArgs{
		logits.Float32s(), losses, snug.Host[int32](j.targets)[lo:hi], vocab, j.gradients, j.gradScale, j.narrow(),
	})
	if j.narrow() {
		z = gemm.Matrix{Data: bfloat16s(logits.Float32s()), Stride: 2 * vocab}
	}
	if j.dw.Len() > 0 {
		dw := gemm.Matrix{Data: j.dw, Stride: cols}
		gemm.Mul(vocab, cols, rows, j.into.Alpha, transposed(z), x, beta, dw)
	}
	if j.gradients {
		dx := gemm.Matrix{Data: span(j.dx, lo*cols, rows*cols), Stride: cols}
		gemm.Mul(rows, cols, vocab, 1, z, w, 0, dx)
	}
	return losses
}

// narrow says whether the gradients of the logits are rounded to bfloat16, the
// type of the other factor.
func (j *crossEntropyJob) narrow() bool { return j.w.DType() == snug.BF16 && gemm.HasPairs() }

func transposed(m gemm.Matrix) gemm.Matrix {
	m.Trans = !m.Trans
	return m
}
