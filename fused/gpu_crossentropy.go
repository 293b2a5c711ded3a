//go:build cuda || metal || emu

package fused

import (
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/gemm"
	"github.com/snug-ml/snug/internal/gpu"
)

// head returns the kernel for rows of logits, the threads of its blocks, and how
// many logits they take in a step, as crossentropy.h has it.
func head(vocab int) (name string, threads, step int) {
	if vocab <= 1024 {
		return "fused_cross_entropy_64", 64, 8 * 64
	}
	return "fused_cross_entropy_512", 512, 8 * 512
}

// crossEntropyParams is CrossEntropyParams of crossentropy.h.
type crossEntropyParams struct {
	vocab, stride uint64
	scale         float32
	gradients     uint32
}

// lossSumParams is LossSumParams of crossentropy.h.
type lossSumParams struct {
	rows     uint64
	first, _ uint32
}

// Grids does what run does, chunk by chunk.
func (j *crossEntropyJob) Grids(q gpu.Launcher) error {
	rows, beta := j.targets.Len(), j.into.Beta
	size := max(1, j.config.chunk(rows))
	for lo := 0; lo < rows || lo == 0; lo += size {
		if err := j.chunkOn(q, lo, min(lo+size, rows), beta); err != nil {
			return err
		}
		beta = 1 // later chunks add
	}
	return nil
}

// chunkOn queues rows lo to hi-1. dw comes before dx, which may take the place
// of x.
func (j *crossEntropyJob) chunkOn(q gpu.Launcher, lo, hi int, beta float32) error {
	rows, vocab, cols := hi-lo, j.config.Vocab, j.config.Cols
	logits := span(j.ws, 0, rows*vocab)
	x := gemm.Matrix{Data: span(j.x, lo*cols, rows*cols), Stride: cols}.GPU()
	w := gemm.Matrix{Data: j.w, Stride: cols}.GPU()
	z := gemm.Matrix{Data: logits, Stride: vocab}.GPU()
	if err := gemm.Grids(q, rows, vocab, cols, 1, x, turned(w), 0, z); err != nil {
		return err
	}
	z, err := j.softmaxOn(q, z, logits, lo, hi)
	if err != nil {
		return err
	}
	if j.dw.Len() > 0 {
		dw := gemm.Matrix{Data: j.dw, Stride: cols}.GPU()
		if err := gemm.Grids(q, vocab, cols, rows, j.into.Alpha, turned(z), x, beta, dw); err != nil {
			return err
		}
	}
	if !j.gradients {
		return nil
	}
	dx := gemm.Matrix{Data: span(j.dx, lo*cols, rows*cols), Stride: cols}.GPU()
	return gemm.Grids(q, rows, cols, vocab, 1, z, w, 0, dx)
}

// softmaxOn queues the losses of rows lo to hi-1, their sum, and the gradients of
// the logits z in place of these, which it returns.
func (j *crossEntropyJob) softmaxOn(q gpu.Launcher, z gpu.Matrix, logits snug.View, lo, hi int) (gpu.Matrix, error) {
	rows, vocab := hi-lo, j.config.Vocab
	losses, targets := span(j.ws, rows*vocab, rows), span(j.targets, lo, rows)
	name, threads, step := head(vocab)
	p := crossEntropyParams{vocab: uint64(vocab), scale: j.gradScale}
	if j.gradients {
		p.gradients = 1
		if j.w.DType() == snug.BF16 { // so that matrix units multiply
			z.Type, z.Stride = gpu.BF16, narrowStride(rows, vocab, step)
			p.stride = uint64(z.Stride)
		}
	}
	if rows > 0 {
		if err := grid(q, name, [3]int{rows, 1, 1}, threads, p, &logits, &losses, &targets); err != nil {
			return z, err
		}
	}
	sum := lossSumParams{rows: uint64(rows)}
	if lo == 0 {
		sum.first = 1
	}
	return z, grid(q, "fused_cross_entropy_sum", [3]int{1, 1, 1}, 256, sum, &j.sum, &losses)
}

// narrowStride returns the elements from a row of bfloat16 gradients to the
// next. They lie in the rows of logits, in twice as many elements of theirs. If
// there is room, a row begins a little further behind its logits than the row
// above, at a multiple of 16 bytes, from which products are faster. The kernel
// takes no more than a step.
func narrowStride(rows, vocab, step int) int {
	stride := (2*vocab + 7) &^ 7
	if behind := (rows - 1) * (stride - 2*vocab); behind > min(vocab, step) {
		return 2 * vocab
	}
	return stride
}

func turned(m gpu.Matrix) gpu.Matrix {
	m.Trans = !m.Trans
	return m
}
