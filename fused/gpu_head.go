//go:build cuda || hip || metal || emu

package fused

import (
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/gemm"
	"github.com/snug-ml/snug/internal/gpu"
)

// headKernels are the kernels that have a block of threads for each row of logits, in two sizes.
type headKernels struct{ small, large string }

func headKernelsOf(name string) headKernels { return headKernels{name + "_64", name + "_512"} }

// size returns the threads of a block for rows of n logits, and how many logits a block takes at a time, head_step of
// head.h.
func (k headKernels) size(n int) (name string, threads, step int) {
	if n <= 1024 {
		return k.small, 64, 8 * 64
	}
	return k.large, 512, 8 * 512
}

// perRow queues a kernel with a block for each row of t.
func perRow[P any](q gpu.Launcher, k headKernels, t tile, params P, operands ...*snug.View) error {
	if t.rows == 0 {
		return nil
	}
	name, threads, _ := k.size(t.classes)
	return grid(q, name, [3]int{t.rows, 1, 1}, threads, params, operands...)
}

var (
	headBiasNames  = gpu.ForFloats("fused_head_bias")
	headStoreNames = gpu.ForFloats("fused_head_store")
)

// headParams is HeadParams of head.h.
type headParams struct {
	vocab, first, stride           uint64
	scale, limit, over             float32
	smoothing, share, zLoss        float32
	gradients, weighted            uint32
	last, finished, targets, slope uint32
}

// headBiasParams is HeadBiasParams of head.h.
type headBiasParams struct {
	rows, vocab uint64
	over        float32
	_           uint32
}

// headColumnsParams is HeadColumnsParams of head.h.
type headColumnsParams struct {
	rows, vocab, stride uint64
	alpha, beta         float32
}

// params returns the parameters of the kernels for a tile.
func (h *head) params(t tile) headParams {
	c := h.config
	p := headParams{
		vocab: uint64(t.classes), first: uint64(t.class), scale: c.scale(), limit: c.Cap, over: c.scale(),
		smoothing: c.Smoothing, share: c.Smoothing / float32(c.Vocab), zLoss: c.ZLoss,
	}
	if t.class+t.classes == c.Vocab {
		p.last = 1
	}
	return p
}

// multiplyOn queues what multiply does, and adds the bias.
func (h *head) multiplyOn(q gpu.Launcher, t tile, logits snug.View) error {
	z := gemm.Matrix{Data: logits, Stride: t.classes}.GPU()
	x, w := h.rowsOf(h.x, t.row, t.rows).GPU(), h.rowsOf(h.w, t.class, t.classes).GPU()
	if err := gemm.Grids(q, t.rows, t.classes, h.config.Cols, h.alpha(), x, gpuTransposed(w), 0, z); err != nil {
		return err
	}
	if h.config.Bias.Len() == 0 || t.rows == 0 {
		return nil
	}
	p := headBiasParams{rows: uint64(t.rows), vocab: uint64(t.classes), over: h.alpha()}
	bias := span(h.config.Bias, t.class, t.classes)
	return grid(q, nameOf(&headBiasNames, &bias), gpu.Grid(t.classes, threads), threads, p, &logits, &bias)
}

// gradients returns the matrix in which a kernel with the parameters p leaves the gradients of a tile's logits: the
// logits themselves, or with weights in bfloat16 the same memory in bfloat16, which matrix units multiply. It then sets
// the stride in p.
func (h *head) gradients(t tile, s headSpace, p *headParams) gpu.Matrix {
	z := gemm.Matrix{Data: s.logits, Stride: t.classes}.GPU()
	if h.w.DType() == snug.BF16 {
		_, _, step := headKernels{}.size(t.classes)
		z.Type, z.Stride = gpu.BF16, narrowStride(t.rows, t.classes, step)
		p.stride = uint64(z.Stride)
	}
	return z
}

// backpropOn queues what backprop does.
func (h *head) backpropOn(q gpu.Launcher, t tile, s headSpace, z gpu.Matrix, beta float32) error {
	cols := h.config.Cols
	if h.config.DBias.Len() > 0 {
		p := headColumnsParams{rows: uint64(t.rows), vocab: uint64(t.classes), stride: uint64(z.Stride), alpha: h.into.Alpha, beta: beta}
		name, dbias := "fused_head_columns_f32", span(h.config.DBias, t.class, t.classes)
		if z.Type == gpu.BF16 {
			name = "fused_head_columns_bf16"
		}
		if err := grid(q, name, gpu.Grid(t.classes, threads), threads, p, &dbias, &s.logits); err != nil {
			return err
		}
	}
	if h.dw.Len() > 0 {
		x, dw := h.rowsOf(h.x, t.row, t.rows).GPU(), h.rowsOf(h.dw, t.class, t.classes).GPU()
		if err := gemm.Grids(q, t.classes, cols, t.rows, h.into.Alpha, gpuTransposed(z), x, beta, dw); err != nil {
			return err
		}
	}
	if h.dx.Len() == 0 {
		return nil
	}
	dx, old := h.rowsOf(h.dx, t.row, t.rows), float32(0)
	if s.dx.Len() > 0 {
		dx, old = gemm.Matrix{Data: s.dx, Stride: cols}, float32(min(t.class, 1))
	}
	return gemm.Grids(q, t.rows, cols, t.classes, 1, z, h.rowsOf(h.w, t.class, t.classes).GPU(), old, dx.GPU())
}

// storeOn queues what store does.
func (h *head) storeOn(q gpu.Launcher, lo, hi int, s headSpace) error {
	if s.dx.Len() == 0 || h.dx.Len() == 0 {
		return nil
	}
	dx := span(h.dx, lo*h.config.Cols, (hi-lo)*h.config.Cols)
	return grid(q, nameOf(&headStoreNames, &dx), gpu.Grid(dx.Len(), threads), threads, elements{n: uint64(dx.Len())}, &dx, &s.dx)
}

// tilesOn is tiles for what may fail.
func (h *head) tilesOn(lo, hi int, f func(tile) error) error {
	for at := 0; at < h.config.Vocab; at += h.config.tile() {
		if err := f(h.tileAt(lo, hi, at)); err != nil {
			return err
		}
	}
	return nil
}

// chunksOn calls f for the chunks of rows rows, at least once, and with the Beta of the chunk.
func (h *head) chunksOn(rows int, f func(lo, hi int, beta float32) error) error {
	beta, size := h.into.Beta, max(1, h.config.chunk(rows))
	for lo := 0; lo < rows || lo == 0; lo += size {
		if err := f(lo, min(lo+size, rows), beta); err != nil {
			return err
		}
		beta = 1 // later chunks add
	}
	return nil
}

// lossSumParams is LossSumParams of losssum.h.
type lossSumParams struct {
	rows     uint64
	first, _ uint32
}

// sumOn queues the sum of the losses of the rows from lo on.
func sumOn(q gpu.Launcher, sum, losses snug.View, lo int) error {
	p := lossSumParams{rows: uint64(losses.Len())}
	if lo == 0 {
		p.first = 1
	}
	return grid(q, "fused_cross_entropy_sum", [3]int{1, 1, 1}, 256, p, &sum, &losses)
}

// weightsOf returns the weights of the rows of a tile, and 1 if there are any.
func weightsOf(weights snug.View, t tile) (snug.View, uint32) {
	if weights.Len() == 0 {
		return none, 0
	}
	return span(weights, t.row, t.rows), 1
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
