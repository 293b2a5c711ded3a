package fused

import (
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/rowwise"
)

// SwiGLU computes the gated activation of Shazeer, "GLU Variants Improve
// Transformer" (2020), between the matmuls:
//
//	out[i] = silu(gate[i])·up[i]
//	silu(x) = x / (1 + exp(−x))
//
// All have one length. The backward pass needs gate and up, so nothing else is
// kept.
//
// Aliasing: out may be gate or up, when no backward pass follows. silu(x) is
// within 1.2e-7·max(1, |x|) of the true one and its derivative in the backward
// pass within 2e-7. For bfloat16 silu may be off by 2⁻¹³ of itself or 2e-36, and the
// derivative by 5e-6 before the result is rounded. silu(−Inf) is −0, the limit.
// Each worker holds 16 KiB.
func SwiGLU[V snug.Vector](out, gate, up V) error {
	return gated(&checks{op: "SwiGLU"}, gatedJob{activation{gate: siluGate}, snug.ViewOf(out), snug.ViewOf(gate), snug.ViewOf(up)})
}

// SwiGLUBackward computes the gradients of [SwiGLU] from the gradient dy of its
// output and its inputs:
//
//	dgate[i] = dy[i]·up[i]·silu′(gate[i])
//	dup[i]   = dy[i]·silu(gate[i])
//
// All have one length. dgate and dup differ; each of them may be dy, gate or
// up. Each worker holds 24 KiB.
func SwiGLUBackward[V snug.Vector](dgate, dup, dy, gate, up V) error {
	return gatedBackward(&checks{op: "SwiGLUBackward"}, gatedBackwardJob{activation{gate: siluGate}, snug.ViewOf(dgate), snug.ViewOf(dup), snug.ViewOf(dy), snug.ViewOf(gate), snug.ViewOf(up)})
}

// GeGLU computes the gated activation of Shazeer, "GLU Variants Improve Transformer"
// (2020), as Gemma has it, with GELU in the tanh approximation:
//
//	out[i] = gelu(gate[i])·up[i]
//
// Shapes, aliasing and memory are as for [SwiGLU]. gelu(x) is within
// 1.2e-7·max(1, |x|) of its formula, see [BiasGELU], and its derivative in the backward pass
// within 2e-7, for bfloat16 too. gelu(−Inf) is −0, the limit.
func GeGLU[V snug.Vector](out, gate, up V) error {
	return gated(&checks{op: "GeGLU"}, gatedJob{activation{gate: tanhGate}, snug.ViewOf(out), snug.ViewOf(gate), snug.ViewOf(up)})
}

// GeGLUBackward computes the gradients of [GeGLU] from the gradient dy of its output and its
// inputs, as [SwiGLUBackward] does for SwiGLU.
func GeGLUBackward[V snug.Vector](dgate, dup, dy, gate, up V) error {
	return gatedBackward(&checks{op: "GeGLUBackward"}, gatedBackwardJob{activation{gate: tanhGate}, snug.ViewOf(dgate), snug.ViewOf(dup), snug.ViewOf(dy), snug.ViewOf(gate), snug.ViewOf(up)})
}

// activation is what a gate computes.
type activation struct {
	gate         gateKind
	alpha, limit float32 // of clampedGate
}

type gateKind int

const (
	siluGate gateKind = iota
	tanhGate
	clampedGate
)

func gated(check *checks, j gatedJob) error {
	check.floats(operand{"out", j.out}, operand{"gate", j.gate}, operand{"up", j.up})
	check.len(j.out.Len(), operand{"gate", j.gate}, operand{"up", j.up})
	return run(check, j, j.out, j.gate, j.up)
}

func gatedBackward(check *checks, j gatedBackwardJob) error {
	check.floats(operand{"dgate", j.dgate}, operand{"dup", j.dup},
		operand{"dy", j.dy}, operand{"gate", j.gate}, operand{"up", j.up})
	check.len(j.dgate.Len(), operand{"dup", j.dup}, operand{"dy", j.dy}, operand{"gate", j.gate}, operand{"up", j.up})
	return run(check, j, j.dgate, j.dup, j.dy, j.gate, j.up)
}

// multiplyGate sets out to act(gate)·up.
func multiplyGate[T float32 | uint16](k *rowwise.Layers[T], a activation, out, gate, up []T, stream bool) {
	switch a.gate {
	case siluGate:
		k.SiLUMul(out, gate, up, stream)
	case tanhGate:
		k.GELUMul(out, gate, up, stream)
	case clampedGate:
		k.ClampedMul(out, gate, up, a.alpha, a.limit, stream)
	}
}

// gateGrads sets dgate and dup to the gradients of multiplyGate.
func gateGrads[T float32 | uint16](k *rowwise.Layers[T], a activation, dgate, dup, dy, gate, up []T, stream bool) {
	switch a.gate {
	case siluGate:
		k.SiLUMulGrad(dgate, dup, dy, gate, up, stream)
	case tanhGate:
		k.GELUMulGrad(dgate, dup, dy, gate, up, stream)
	case clampedGate:
		k.ClampedMulGrad(dgate, dup, dy, gate, up, a.alpha, a.limit, stream)
	}
}

type gatedJob struct {
	act           activation
	out, gate, up snug.View
}

func (j *gatedJob) Kernel() string {
	return [...]string{"fused.swiglu", "fused.geglu", "fused.clamped_swiglu"}[j.act.gate]
}

func (j *gatedJob) Operands(yield func(*driver.Mem)) { device.Each(yield, &j.out, &j.gate, &j.up) }

func (j gatedJob) Run() { gatedTask.Run(cpu.Chunks(j.out.Len(), itemLen), j) }

var gatedTask = cpu.NewTask(func(j *gatedJob, item int) {
	lo, hi := cpu.Chunk(j.out.Len(), itemLen, item)
	block := min(blockCols, hi-lo)
	buf := scratch.Get(2 * block)
	defer finish(buf)
	if k := direct(j.out); k != nil {
		multiplyGate(k, j.act, bits(j.out, lo, hi), bits(j.gate, lo, hi), bits(j.up, lo, hi), streams(j.out, j.gate, j.up))
		return
	}
	k, stream := rowwise.F32.Best(), streams32(j.out, j.gate, j.up)
	for ; lo < hi; lo += block {
		n := min(block, hi-lo)
		gate := load(cut(buf, 0, n), j.gate, lo)
		up := load(cut(buf, 1, n), j.up, lo)
		out := target(cut(buf, 0, n), j.out, lo)
		multiplyGate(k, j.act, out, gate, up, stream)
		store(j.out, lo, out)
	}
})

type gatedBackwardJob struct {
	act                      activation
	dgate, dup, dy, gate, up snug.View
}

func (j *gatedBackwardJob) Kernel() string {
	return [...]string{"fused.swiglu_backward", "fused.geglu_backward", "fused.clamped_swiglu_backward"}[j.act.gate]
}

func (j *gatedBackwardJob) Operands(yield func(*driver.Mem)) {
	device.Each(yield, &j.dgate, &j.dup, &j.dy, &j.gate, &j.up)
}

func (j gatedBackwardJob) Run() { gatedBackwardTask.Run(cpu.Chunks(j.dy.Len(), itemLen), j) }

var gatedBackwardTask = cpu.NewTask(func(j *gatedBackwardJob, item int) {
	lo, hi := cpu.Chunk(j.dy.Len(), itemLen, item)
	block := min(blockCols, hi-lo)
	buf := scratch.Get(3 * block)
	defer finish(buf)
	if k := direct(j.dy); k != nil {
		gateGrads(k, j.act, bits(j.dgate, lo, hi), bits(j.dup, lo, hi),
			bits(j.dy, lo, hi), bits(j.gate, lo, hi), bits(j.up, lo, hi), streams(j.dgate, j.dy, j.gate, j.up) && streams(j.dup, j.dy, j.gate, j.up))
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
		gateGrads(k, j.act, dgate, dup, dy, gate, up, stream)
		store(j.dgate, lo, dgate)
		store(j.dup, lo, dup)
	}
})
