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
	dx, dw, x, w, ws snug.View
	targets          snug.View
	weights          snug.View // of the rows; empty: 1
	sum              snug.View // the bits of a float64, little-endian

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
	for _, v := range []*snug.View{&j.dx, &j.dw, &j.x, &j.w, &j.targets, &j.weights, &j.ws, &j.sum} {
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
	if j.config.tile() < j.config.Vocab {
		return j.tiled(lo, hi, beta)
	}
	rows, vocab, cols := hi-lo, j.config.Vocab, j.config.Cols
	logits := span(j.ws, 0, rows*vocab)
	x, w := j.rowsOf(j.x, lo, rows), j.rowsOf(j.w, 0, vocab)
	z := gemm.Matrix{Data: logits, Stride: vocab}

	gemm.Mul(rows, vocab, cols, 1, x, transposed(w), 0, z)
	a := j.softmaxArgs(logits, span(j.ws, rows*vocab, rows), lo, hi)
	softmaxTask.Run(cpu.Chunks(rows, itemRows(vocab)), a)
	if j.narrow() {
		z = gemm.Matrix{Data: bfloat16s(logits.Float32s()), Stride: 2 * vocab}
	}
	if j.dw.Len() > 0 {
		gemm.Mul(vocab, cols, rows, j.into.Alpha, transposed(z), x, beta, j.rowsOf(j.dw, 0, vocab))
	}
	if j.gradients {
		gemm.Mul(rows, cols, vocab, 1, z, w, 0, j.rowsOf(j.dx, lo, rows))
	}
	return a.losses
}

// rowsOf returns n rows of x, dx, w or dw.
func (j *crossEntropyJob) rowsOf(v snug.View, lo, n int) gemm.Matrix {
	cols := j.config.Cols
	return gemm.Matrix{Data: span(v, lo*cols, n*cols), Stride: cols}
}

// softmaxArgs returns the arguments of rows lo to hi-1, with all their logits.
func (j *crossEntropyJob) softmaxArgs(logits, losses snug.View, lo, hi int) softmaxArgs {
	a := softmaxArgs{logits: logits.Float32s(), losses: losses.Float32s(), targets: snug.Host[int32](j.targets)[lo:hi],
		vocab: j.config.Vocab, limit: j.config.Cap, gradients: j.gradients, gradScale: j.gradScale, narrow: j.narrow()}
	if j.weights.Len() > 0 {
		a.weights = j.weights.Float32s()[lo:hi]
	}
	return a
}

// narrow says whether the gradients of the logits are rounded to bfloat16, the
// type of the other factor.
func (j *crossEntropyJob) narrow() bool { return j.w.DType() == snug.BF16 && gemm.HasPairs() }

func transposed(m gemm.Matrix) gemm.Matrix {
	m.Trans = !m.Trans
	return m
}
