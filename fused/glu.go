package fused

import (
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/rowwise"
)

// GLU computes the gated linear unit of Dauphin et al., "Language Modeling with Gated Convolutional Networks" (2017, arXiv:1612.08083):
//
//	out[i] = σ(gate[i])·up[i]
//
// With it the output of attention has a gate, as in Qwen3-Next. All have one length. The backward pass needs gate and up, so nothing else
// is kept. out may be gate or up, when no backward pass follows. σ is within (4 + |x|)·2⁻²⁴ of itself. Each worker holds 48 KiB.
//
// It runs on the CPU: vectors of another device are an error that wraps [snug.ErrDevice].
func GLU[V snug.Vector](out, gate, up V) error {
	return glu(&checks{op: "GLU"}, gluJob{out: snug.ViewOf(out), gate: snug.ViewOf(gate), up: snug.ViewOf(up)})
}

// GLUBackward computes the gradients of [GLU] from the gradient dy of its output and its inputs:
//
//	dgate[i] = dy[i]·up[i]·σ(gate[i])·(1 − σ(gate[i]))
//	dup[i]   = dy[i]·σ(gate[i])
//
// All have one length. dgate and dup differ; each of them may be dy, gate or up. Each worker holds 48 KiB.
func GLUBackward[V snug.Vector](dgate, dup, dy, gate, up V) error {
	return glu(&checks{op: "GLUBackward"}, gluJob{out: snug.ViewOf(dup), gate: snug.ViewOf(gate), up: snug.ViewOf(up), back: true, dgate: snug.ViewOf(dgate), dy: snug.ViewOf(dy)})
}

type gluJob struct {
	out, gate, up snug.View // out: the gradient of up in the backward pass
	back          bool
	dgate, dy     snug.View
}

func glu(check *checks, j gluJob) error {
	all := [5]operand{{"out", j.out}, {"gate", j.gate}, {"up", j.up}}
	used := all[:3]
	if j.back {
		all = [5]operand{{"dgate", j.dgate}, {"dup", j.out}, {"dy", j.dy}, {"gate", j.gate}, {"up", j.up}}
		used = all[:]
	}
	check.floats(used...)
	check.len(used[0].view.Len(), used[1:]...)
	views := [5]snug.View{j.out, j.gate, j.up, j.dgate, j.dy}
	if dev := check.device(views[:len(used)]...); check.err == nil && !dev.IsCPU() {
		check.failf(snug.ErrDevice, "vectors on %s, want the CPU", dev.Name())
	}
	if check.err == nil && j.out.Len() > 0 {
		gluTask.Run(cpu.Chunks(j.out.Len(), itemLen), j)
	}
	return check.err
}

var gluTask = cpu.NewTask(func(j *gluJob, item int) {
	lo, hi := cpu.Chunk(j.out.Len(), itemLen, item)
	block := min(blockCols, hi-lo)
	buf := scratch.Get(6 * block)
	defer finish(buf)
	zeros := cut(buf, 5, block)
	clear(zeros)
	k, f := rowwise.Registry.Best(), rowwise.F32.Best()
	for ; lo < hi; lo += block {
		n := min(block, hi-lo)
		zero, open := zeros[:n], cut(buf, 0, block)[:n]
		multiply := func(dst, x, y []float32) { k.ColumnAffine(dst, x, zero, y, zero, false) }
		f.Sigmoid(open, load(cut(buf, 1, block)[:n], j.gate, lo), false)
		up := load(cut(buf, 2, block)[:n], j.up, lo)
		slope := cut(buf, 4, block)[:n]
		if j.back {
			dy := load(cut(buf, 3, block)[:n], j.dy, lo)
			multiply(slope, dy, up)
			f.OutputSlopes(slope, slope, open, 0, 1, false)
			up = dy
		}
		out := target(cut(buf, 1, block)[:n], j.out, lo)
		multiply(out, up, open)
		store(j.out, lo, out)
		if j.back { // dgate may be what the lines above read
			copy(target(slope, j.dgate, lo), slope)
			store(j.dgate, lo, slope)
		}
	}
})
