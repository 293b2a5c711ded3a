package fused

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/snug-ml/snug"
)

// CrossEntropy is a linear layer and the softmax cross-entropy of its output,
// computed for a chunk of rows at a time so that the logits of all rows never
// exist. For row i of x with the target class t
//
//	z = x[i]·wᵀ
//	loss[i] = log Σ exp(z[j]) − z[t]
//
// A negative target, such as the −1 of nanoGPT or the −100 of PyTorch, is
// ignored: its row has no loss and a zero gradient. A NaN in such a row of x
// still reaches dw, as 0·NaN.
//
// The idea of forming the gradients in the forward pass, chunk by chunk, is
// that of the fused linear cross-entropy in Hsu et al., "Liger Kernel:
// Efficient Triton Kernels for LLM Training" (2024).
//
// Logits and their gradients are float32, whatever the type of x and w; but
// processors that multiply bfloat16 in hardware (AMX, AVX512_BF16, GPUs) round the
// gradients to bfloat16 where x and w hold it, before they multiply. A
// row's maximum is subtracted before exp; the exponentials are added in
// float32 in blocks of at most 1024, the blocks in float64, or as pairs of float32
// on GPUs. The losses of rows are added in float64, in the order of the rows. A
// row with a NaN among its logits, or whose largest is infinite, has the loss
// NaN. A logit more than 41 below the largest of its row has a probability below 1e-18,
// and the gradient 0.
//
// Vocab and Cols are the shape of w, both at least 1. Chunk is the number of
// rows whose logits exist at a time; 0 means 128. On the CPU the loss and dx do
// not depend on it, bit for bit; on GPUs the order of sums within products may.
// dw is a sum over chunks, so its rounding depends on it. Large chunks pass over
// dw less often.
type CrossEntropy struct {
	Vocab, Cols int
	Chunk       int
}

// Loss is the cross-entropy, in nats, of the rows that have a target. The mean
// that training reports is Sum / Targets.
type Loss struct {
	Sum     float64 // over rows that are not ignored
	Targets int     // the number of those rows
}

// defaultChunk balances the workspace against passes over dw: with 128 rows
// the product for dw does 32 operations a byte of dw moved.
const defaultChunk = 128

// WorkspaceLen returns the workspace for rows rows, in float32 elements: the
// logits and the loss of min(Chunk, rows) rows, (Vocab+1)·min(Chunk, rows). It
// is 0 when c is not valid.
func (c CrossEntropy) WorkspaceLen(rows int) int {
	if rows <= 0 || !c.valid() {
		return 0
	}
	return product(c.chunk(rows), 1+min(c.Vocab, math.MaxInt-1))
}

func (c CrossEntropy) valid() bool { return c.Vocab >= 1 && c.Cols >= 1 && c.Chunk >= 0 }

// chunk returns the number of rows in a chunk of rows rows.
func (c CrossEntropy) chunk(rows int) int {
	if c.Chunk == 0 {
		return min(rows, defaultChunk)
	}
	return min(rows, c.Chunk)
}

// CrossEntropyLoss returns the loss without gradients, for evaluation.
//
// Shapes: x [len(targets), Cols]; w [Vocab, Cols]; ws at least
// c.WorkspaceLen(len(targets)) elements. A target of Vocab or more gives an
// error that wraps [snug.ErrShape] and names its index. The call waits for the
// device. Each worker holds the tiles of the matmul, less than 1 MiB, and the call
// its packed panels, less than 3 MiB.
func CrossEntropyLoss[V snug.Vector, L snug.Vector32](c CrossEntropy, x, w V, targets []int32, ws L) (Loss, error) {
	return c.loss(snug.ViewOf(x), snug.ViewOf(w), targets, snug.ViewOf(ws))
}

// CrossEntropyBackward returns the loss and computes the gradients of
// gradScale·Sum in the same pass. With p the softmax of a row's logits and
// g[i][j] = gradScale·(p[j] − [j = t]), zero in ignored rows:
//
//	dx = g·w
//	dw ← gᵀ·x
//
// where ← applies into, see [snug.Into]. For the mean loss gradScale is the loss scale divided by
// the number of targets that are not ignored; it must be finite. With an accum.Window that is
// the number of the micro-batch, n of Begin(n). Loss.Sum is not scaled. A micro-batch without
// targets has no backward pass.
//
// Shapes and errors are those of [CrossEntropyLoss], and dx is as x and dw as
// w; dw is float32. With a frozen w, dw may be empty, []float32(nil), which saves a third
// of the work.
//
// Aliasing: dx may be x, which then is lost.
func CrossEntropyBackward[V snug.Vector, G, L snug.Vector32](c CrossEntropy, dx V, dw G, x, w V, targets []int32, gradScale float32, into snug.Into, ws L) (Loss, error) {
	return c.backward(snug.ViewOf(dx), snug.ViewOf(dw), snug.ViewOf(x), snug.ViewOf(w),
		targets, gradScale, into, snug.ViewOf(ws))
}

func (c CrossEntropy) loss(x, w snug.View, targets []int32, ws snug.View) (Loss, error) {
	const op = "CrossEntropyLoss"
	if err := c.check(op); err != nil {
		return Loss{}, err
	}
	if err := checkFloats(op, operand{"x", x}, operand{"w", w}); err != nil {
		return Loss{}, err
	}
	if err := checkF32(op, operand{"ws", ws}); err != nil {
		return Loss{}, err
	}
	if err := c.checkInputs(op, x, w, targets, ws); err != nil {
		return Loss{}, err
	}
	dev, err := commonDevice(op, x, w, ws)
	if err != nil {
		return Loss{}, err
	}
	return launchLoss(dev, crossEntropyJob{x: x, w: w, ws: ws, config: c}, targets)
}

func (c CrossEntropy) backward(dx, dw, x, w snug.View, targets []int32, gradScale float32, into snug.Into, ws snug.View) (Loss, error) {
	const op = "CrossEntropyBackward"
	if err := c.check(op); err != nil {
		return Loss{}, err
	}
	if err := checkFinite(op, "gradScale", gradScale); err != nil {
		return Loss{}, err
	}
	into, err := resolve(op, into)
	if err != nil {
		return Loss{}, err
	}
	if err := checkFloats(op, operand{"x", x}, operand{"dx", dx}, operand{"w", w}); err != nil {
		return Loss{}, err
	}
	if err := checkF32(op, operand{"dw", dw}, operand{"ws", ws}); err != nil {
		return Loss{}, err
	}
	if err := c.checkInputs(op, x, w, targets, ws); err != nil {
		return Loss{}, err
	}
	if err := checkMatrix(op, len(targets), c.Cols, operand{"dx", dx}); err != nil {
		return Loss{}, err
	}
	if dw.Len() > 0 {
		if err := checkMatrix(op, c.Vocab, c.Cols, operand{"dw", dw}); err != nil {
			return Loss{}, err
		}
	}
	dev, err := commonDevice(op, dx, dw, x, w, ws)
	if err != nil {
		return Loss{}, err
	}
	job := crossEntropyJob{dx: dx, dw: dw, x: x, w: w, ws: ws, config: c, gradients: true, gradScale: gradScale, into: into}
	return launchLoss(dev, job, targets)
}

func (c CrossEntropy) check(op string) error {
	if !c.valid() {
		return fmt.Errorf("fused: %s: Vocab %d, Cols %d, Chunk %d, want at least 1, 1 and 0: %w",
			op, c.Vocab, c.Cols, c.Chunk, snug.ErrConfig)
	}
	return nil
}

func (c CrossEntropy) checkInputs(op string, x, w snug.View, targets []int32, ws snug.View) error {
	if err := checkMatrix(op, len(targets), c.Cols, operand{"x", x}); err != nil {
		return err
	}
	if err := checkMatrix(op, c.Vocab, c.Cols, operand{"w", w}); err != nil {
		return err
	}
	if err := checkWorkspace(op, ws, c.WorkspaceLen(len(targets))); err != nil {
		return err
	}
	return checkIndices(op, "targets", targets, "w", c.Vocab, true)
}

// launchLoss runs the job on dev and waits for its loss.
func launchLoss(dev *snug.Device, job crossEntropyJob, targets []int32) (Loss, error) {
	loss := Loss{Targets: countTargets(targets)}
	if dev.IsCPU() {
		job.targets = snug.SliceView(targets)
		loss.Sum = job.run()
		return loss, nil
	}
	var err error
	loss.Sum, err = launchSum(dev, job, targets)
	if err != nil {
		return Loss{}, err
	}
	return loss, nil
}

// launchSum brings the sum back through 8 bytes on the device.
func launchSum(dev *snug.Device, job crossEntropyJob, targets []int32) (sum float64, err error) {
	result, err := snug.Make[uint8](dev, 8)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, result.Close()) }()
	job.sum = result.View()
	if err := launchWith(dev, &job, []upload{{targets, &job.targets}}); err != nil {
		return 0, err
	}
	var bits [8]byte
	if err := result.CopyOut(bits[:]); err != nil {
		return 0, err
	}
	return math.Float64frombits(binary.LittleEndian.Uint64(bits[:])), nil
}

func countTargets(targets []int32) (n int) {
	for _, t := range targets {
		if t >= 0 {
			n++
		}
	}
	return n
}
