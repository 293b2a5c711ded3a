//go:build cuda || metal || emu

package fused

import (
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/gemm"
	"github.com/snug-ml/snug/internal/gpu"
)

// lossKernels names the kernels of crossentropy.h that make losses and gradients of logits, with a block of threads for
// each row. whole takes rows of all classes. Of tiles, fold adds one to the statistics of its row, and tile makes the
// gradients of one.
type lossKernels struct {
	whole, fold, tile string
	threads           int // threads of a block
	step              int // logits that a block takes at a time, head_step of crossentropy.h
}

// lossKernelsFor returns the kernels for rows of n logits, or tiles of n classes.
func lossKernelsFor(n int) lossKernels {
	if n <= 1024 {
		return lossKernels{"fused_cross_entropy_64", "fused_cross_entropy_fold_64", "fused_cross_entropy_tile_64", 64, 8 * 64}
	}
	return lossKernels{"fused_cross_entropy_512", "fused_cross_entropy_fold_512", "fused_cross_entropy_tile_512", 512, 8 * 512}
}

var crossEntropyStoreNames = gpu.ForFloats("fused_cross_entropy_store")

// crossEntropyParams is CrossEntropyParams of crossentropy.h.
type crossEntropyParams struct {
	vocab, first, stride         uint64
	scale, limit                 float32
	gradients, weighted, last, _ uint32
}

// lossSumParams is LossSumParams of crossentropy.h.
type lossSumParams struct {
	rows     uint64
	first, _ uint32
}

// Grids queues the kernels for what run computes on the CPU, a chunk of rows at a time.
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

// chunkOn queues rows lo to hi-1. It computes dw before dx, because dx may overwrite x, which dw needs.
func (j *crossEntropyJob) chunkOn(q gpu.Launcher, lo, hi int, beta float32) error {
	if j.config.tile() < j.config.Vocab {
		return j.tiledOn(q, lo, hi, beta)
	}
	rows, vocab, cols := hi-lo, j.config.Vocab, j.config.Cols
	logits := span(j.ws, 0, rows*vocab)
	x, w := j.rowsOf(j.x, lo, rows).GPU(), j.rowsOf(j.w, 0, vocab).GPU()
	z := gemm.Matrix{Data: logits, Stride: vocab}.GPU()
	if err := gemm.Grids(q, rows, vocab, cols, 1, x, gpuTransposed(w), 0, z); err != nil {
		return err
	}
	k, p := lossKernelsFor(vocab), j.params(0, vocab)
	losses, targets, weights := span(j.ws, rows*vocab, rows), span(j.targets, lo, rows), j.weightsOf(lo, rows)
	if j.gradients {
		p.gradients = 1
		z = j.narrowed(z, &p, rows, k.step)
	}
	if rows > 0 {
		if err := grid(q, k.whole, [3]int{rows, 1, 1}, k.threads, p, &logits, &losses, &targets, &weights); err != nil {
			return err
		}
	}
	if err := j.sumOn(q, losses, lo); err != nil {
		return err
	}
	if j.dw.Len() > 0 {
		if err := gemm.Grids(q, vocab, cols, rows, j.into.Alpha, gpuTransposed(z), x, beta, j.rowsOf(j.dw, 0, vocab).GPU()); err != nil {
			return err
		}
	}
	if !j.gradients {
		return nil
	}
	return gemm.Grids(q, rows, cols, vocab, 1, z, w, 0, j.rowsOf(j.dx, lo, rows).GPU())
}

// params returns the parameters of the kernels for n classes from class first on.
func (j *crossEntropyJob) params(first, n int) crossEntropyParams {
	p := crossEntropyParams{vocab: uint64(n), first: uint64(first), scale: j.gradScale, limit: j.config.Cap}
	if j.weights.Len() > 0 {
		p.weighted = 1
	}
	if first+n == j.config.Vocab {
		p.last = 1
	}
	return p
}

func (j *crossEntropyJob) weightsOf(lo, rows int) snug.View {
	if j.weights.Len() == 0 {
		return none
	}
	return span(j.weights, lo, rows)
}

// narrowed returns the matrix in which the kernel leaves the gradients of the logits z: z itself, or with weights in
// bfloat16 the same memory in bfloat16, which matrix units multiply. It then sets the stride in p.
func (j *crossEntropyJob) narrowed(z gpu.Matrix, p *crossEntropyParams, rows, step int) gpu.Matrix {
	if j.w.DType() == snug.BF16 {
		z.Type, z.Stride = gpu.BF16, narrowStride(rows, int(p.vocab), step)
		p.stride = uint64(z.Stride)
	}
	return z
}

// sumOn queues the sum of the losses of the rows from lo on.
func (j *crossEntropyJob) sumOn(q gpu.Launcher, losses snug.View, lo int) error {
	sum := lossSumParams{rows: uint64(losses.Len())}
	if lo == 0 {
		sum.first = 1
	}
	return grid(q, "fused_cross_entropy_sum", [3]int{1, 1, 1}, 256, sum, &j.sum, &losses)
}

// tiledOn queues the kernels for what tiled computes on the CPU.
func (j *crossEntropyJob) tiledOn(q gpu.Launcher, lo, hi int, beta float32) error {
	rows, vocab, tile := hi-lo, j.config.Vocab, j.config.tile()
	ws, targets, weights := j.tiledSpace(rows), span(j.targets, lo, rows), j.weightsOf(lo, rows)
	for from := 0; from < vocab && rows > 0; from += tile {
		n := min(tile, vocab-from)
		if _, err := j.logitsOn(q, ws, lo, rows, from, n); err != nil {
			return err
		}
		k := lossKernelsFor(n)
		err := grid(q, k.fold, [3]int{rows, 1, 1}, k.threads, j.params(from, n), &ws.logits, &ws.stats, &ws.losses, &targets, &weights)
		if err != nil {
			return err
		}
	}
	if err := j.sumOn(q, ws.losses, lo); err != nil || !j.gradients {
		return err
	}
	for from := 0; from < vocab; from += tile {
		if err := j.tileOn(q, ws, lo, rows, from, beta); err != nil {
			return err
		}
	}
	if rows == 0 {
		return nil
	}
	dx := span(j.dx, lo*j.config.Cols, rows*j.config.Cols)
	return grid(q, nameOf(&crossEntropyStoreNames, &dx), gpu.Grid(dx.Len(), threads), threads, elements{n: uint64(dx.Len())}, &dx, &ws.dx)
}

// tileOn queues the gradients of the tile that begins at class from. They enter dw and the sum of dx.
func (j *crossEntropyJob) tileOn(q gpu.Launcher, ws tiledSpace, lo, rows, from int, beta float32) error {
	n, cols := min(j.config.tile(), j.config.Vocab-from), j.config.Cols
	z, err := j.logitsOn(q, ws, lo, rows, from, n)
	if err != nil {
		return err
	}
	k, p, targets, weights := lossKernelsFor(n), j.params(from, n), span(j.targets, lo, rows), j.weightsOf(lo, rows)
	z = j.narrowed(z, &p, rows, k.step)
	if rows > 0 {
		if err := grid(q, k.tile, [3]int{rows, 1, 1}, k.threads, p, &ws.logits, &ws.stats, &targets, &weights); err != nil {
			return err
		}
	}
	if j.dw.Len() > 0 {
		x, dw := j.rowsOf(j.x, lo, rows).GPU(), j.rowsOf(j.dw, from, n).GPU()
		if err := gemm.Grids(q, n, cols, rows, j.into.Alpha, gpuTransposed(z), x, beta, dw); err != nil {
			return err
		}
	}
	dx := gemm.Matrix{Data: ws.dx, Stride: cols}.GPU()
	return gemm.Grids(q, rows, cols, n, 1, z, j.rowsOf(j.w, from, n).GPU(), float32(min(from, 1)), dx)
}

// logitsOn queues the logits of n classes from class from on, and returns their matrix.
func (j *crossEntropyJob) logitsOn(q gpu.Launcher, ws tiledSpace, lo, rows, from, n int) (gpu.Matrix, error) {
	z := gemm.Matrix{Data: ws.logits, Stride: n}.GPU()
	x, w := j.rowsOf(j.x, lo, rows).GPU(), j.rowsOf(j.w, from, n).GPU()
	return z, gemm.Grids(q, rows, n, j.config.Cols, 1, x, gpuTransposed(w), 0, z)
}

// narrowStride returns the elements from a row of bfloat16 gradients to the next. The gradients are written over the
// float32 logits: a row of logits has the memory of 2·vocab bfloat16 elements. Products are faster from multiples of 16
// bytes, so the stride is rounded up to one if the last row then begins at most a step behind its logits: a block reads
// a whole step of logits before it writes.
func narrowStride(rows, vocab, step int) int {
	stride := (2*vocab + 7) &^ 7
	if behind := (rows - 1) * (stride - 2*vocab); behind > min(vocab, step) {
		return 2 * vocab
	}
	return stride
}

// gpuTransposed is transposed for a GPU.
func gpuTransposed(m gpu.Matrix) gpu.Matrix {
	m.Trans = !m.Trans
	return m
}
