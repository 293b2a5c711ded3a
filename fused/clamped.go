package fused

import (
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/rowwise"
)

// ClampedSwiGLU computes the gated activation of gpt-oss, which clamps its inputs gate and up (OpenAI, "gpt-oss-120b &
// gpt-oss-20b Model Card" (2025)):
//
//	out[i] = (u + 1)·g·σ(alpha·g)      g = min(gate[i], limit), u = min(max(up[i], −limit), limit)
//
// gpt-oss has an alpha of 1.702 and a limit of 7. Both must be from 1e-9 to 1e9 (else [snug.ErrConfig]). gpt-oss stores
// gate and up in one matrix whose columns alternate; here they are two vectors, as in [SwiGLU].
//
// Shapes, aliasing and errors are as for SwiGLU. alpha·g·σ(alpha·g) has the error bound of silu in SwiGLU; this bound
// divided by alpha and multiplied by |u + 1| is the bound of the output. In the backward pass the derivative has the
// error bound of the derivative of silu. A NaN in gate or up gives NaN: the clamp keeps it. Each worker holds 16 KiB.
func ClampedSwiGLU[V snug.Vector](out, gate, up V, alpha, limit float32) error {
	const op = "ClampedSwiGLU"
	j := clampedJob{snug.ViewOf(out), snug.ViewOf(gate), snug.ViewOf(up), alpha, limit}
	if err := checkClamp(op, alpha, limit); err != nil {
		return err
	}
	if err := checkFloats(op, operand{"out", j.out}, operand{"gate", j.gate}, operand{"up", j.up}); err != nil {
		return err
	}
	if err := checkLen(op, j.out.Len(), operand{"gate", j.gate}, operand{"up", j.up}); err != nil {
		return err
	}
	dev, err := commonDevice(op, j.out, j.gate, j.up)
	if err != nil {
		return err
	}
	return device.Run(dev, j)
}

// ClampedSwiGLUBackward computes the gradients of [ClampedSwiGLU] from the gradient dy of its output and from its
// inputs gate and up:
//
//	dgate[i] = dy[i]·(u + 1)·(σ(t) + t·σ(t)·(1 − σ(t)))      t = alpha·g; 0 where gate[i] ≥ limit
//	dup[i]   = dy[i]·g·σ(t)                                  0 where |up[i]| ≥ limit
//
// At the limit itself the gradients are 0, as in torch.clamp of PyTorch 2.15. Shapes, aliasing, errors and memory are
// as for [SwiGLUBackward].
func ClampedSwiGLUBackward[V snug.Vector](dgate, dup, dy, gate, up V, alpha, limit float32) error {
	const op = "ClampedSwiGLUBackward"
	j := clampedBackwardJob{snug.ViewOf(dgate), snug.ViewOf(dup), snug.ViewOf(dy), snug.ViewOf(gate), snug.ViewOf(up), alpha, limit}
	if err := checkClamp(op, alpha, limit); err != nil {
		return err
	}
	if err := checkFloats(op, operand{"dgate", j.dgate}, operand{"dup", j.dup},
		operand{"dy", j.dy}, operand{"gate", j.gate}, operand{"up", j.up}); err != nil {
		return err
	}
	if err := checkLen(op, j.dgate.Len(), operand{"dup", j.dup}, operand{"dy", j.dy}, operand{"gate", j.gate}, operand{"up", j.up}); err != nil {
		return err
	}
	dev, err := commonDevice(op, j.dgate, j.dup, j.dy, j.gate, j.up)
	if err != nil {
		return err
	}
	return device.Run(dev, j)
}

// checkClamp refuses an alpha or a limit that is so large or so small that their product or an inverse might leave the
// range of float32.
func checkClamp(op string, alpha, limit float32) error {
	const low, high = 1e-9, 1e9
	if !(alpha >= low && alpha <= high) {
		return fmt.Errorf("fused: %s: alpha is %v, want %g to %g: %w", op, alpha, low, high, snug.ErrConfig)
	}
	if !(limit >= low && limit <= high) {
		return fmt.Errorf("fused: %s: limit is %v, want %g to %g: %w", op, limit, low, high, snug.ErrConfig)
	}
	return nil
}

type clampedJob struct {
	out, gate, up snug.View

	alpha, limit float32
}

func (*clampedJob) Kernel() string { return "fused.clamped_swiglu" }

func (j *clampedJob) Operands(yield func(*driver.Mem)) {
	for _, v := range []*snug.View{&j.out, &j.gate, &j.up} {
		yield(device.Mem(v))
	}
}

func (j clampedJob) Run() { clampedTask.Run(cpu.Chunks(j.out.Len(), itemLen), j) }

var clampedTask = cpu.NewTask(func(j *clampedJob, item int) {
	lo, hi := cpu.Chunk(j.out.Len(), itemLen, item)
	block := min(blockCols, hi-lo)
	buf := scratch.Get(2 * block)
	defer finish(buf)
	if k := direct(j.out); k != nil {
		k.ClampedMul(bits(j.out, lo, hi), bits(j.gate, lo, hi), bits(j.up, lo, hi), j.alpha, j.limit, streams(j.out, j.gate, j.up))
		return
	}
	k, stream := rowwise.F32.Best(), streams32(j.out, j.gate, j.up)
	for ; lo < hi; lo += block {
		n := min(block, hi-lo)
		gate := load(cut(buf, 0, n), j.gate, lo)
		up := load(cut(buf, 1, n), j.up, lo)
		out := target(cut(buf, 0, n), j.out, lo)
		k.ClampedMul(out, gate, up, j.alpha, j.limit, stream)
		store(j.out, lo, out)
	}
})

type clampedBackwardJob struct {
	dgate, dup, dy, gate, up snug.View

	alpha, limit float32
}

func (*clampedBackwardJob) Kernel() string { return "fused.clamped_swiglu_backward" }

func (j *clampedBackwardJob) Operands(yield func(*driver.Mem)) {
	for _, v := range []*snug.View{&j.dgate, &j.dup, &j.dy, &j.gate, &j.up} {
		yield(device.Mem(v))
	}
}

func (j clampedBackwardJob) Run() { clampedBackwardTask.Run(cpu.Chunks(j.dy.Len(), itemLen), j) }

var clampedBackwardTask = cpu.NewTask(func(j *clampedBackwardJob, item int) {
	lo, hi := cpu.Chunk(j.dy.Len(), itemLen, item)
	block := min(blockCols, hi-lo)
	buf := scratch.Get(3 * block)
	defer finish(buf)
	if k := direct(j.dy); k != nil {
		k.ClampedMulGrad(bits(j.dgate, lo, hi), bits(j.dup, lo, hi), bits(j.dy, lo, hi), bits(j.gate, lo, hi), bits(j.up, lo, hi),
			j.alpha, j.limit, streams(j.dgate, j.dy, j.gate, j.up) && streams(j.dup, j.dy, j.gate, j.up))
		return
	}
	k := rowwise.F32.Best()
	stream := streams32(j.dgate, j.dy, j.gate, j.up) && streams32(j.dup, j.dy, j.gate, j.up)
	for ; lo < hi; lo += block {
		n := min(block, hi-lo)
		dy := load(cut(buf, 0, n), j.dy, lo)
		gate := load(cut(buf, 1, n), j.gate, lo)
		up := load(cut(buf, 2, n), j.up, lo)
		dgate, dup := target(cut(buf, 1, n), j.dgate, lo), target(cut(buf, 2, n), j.dup, lo)
		k.ClampedMulGrad(dgate, dup, dy, gate, up, j.alpha, j.limit, stream)
		store(j.dgate, lo, dgate)
		store(j.dup, lo, dup)
	}
})
