//go:build cuda || hip || metal || emu

package fused

import (
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/gpu"
)

var kernels = gpu.Module{Name: "fused"}

// threads is the size of a block of kernels that go through elements or rows.
const threads = 256

// grid queues one launch.
func grid[P any](q gpu.Launcher, name string, blocks [3]int, threads int, params P, operands ...*snug.View) error {
	mems := make([]driver.Mem, len(operands))
	for i, v := range operands {
		mems[i] = *device.Mem(v)
	}
	return kernels.Launch(q, name, blocks, threads, gpu.Params(&params), mems...)
}

// none stands for an operand that a launch does not use.
var none snug.View

// packs returns the blocks for n elements of a type, 16 bytes to a thread.
func packs(n int, dt snug.DType) [3]int { return gpu.Grid(n, threads*16/dt.Size()) }

// rowGrid returns the blocks for rows that take a warp each; without rows there is no launch.
func rowGrid(rows int) [3]int { return [3]int{min(gpu.CeilDiv(rows, threads/32), gpu.MaxGrid), 1, 1} }

// wide returns 1 if all operands, and all rows of cols elements in them, start at
// multiples of 16 bytes.
func wide(cols int, operands ...*snug.View) uint32 {
	for _, v := range operands {
		if device.Mem(v).Addr%16 != 0 || cols*v.DType().Size()%16 != 0 && v.Len() > cols {
			return 0
		}
	}
	return 1
}

// elements is Elements of elements.h.
type elements struct {
	n    uint64
	wide uint32
	_    uint32
}

// elementsOf describes operands of one length, in which no rows count.
func elementsOf(operands ...*snug.View) elements {
	n := operands[0].Len()
	return elements{n: uint64(n), wide: wide(n, operands...)}
}

var (
	addNames           = gpu.ForFloats("fused_add")
	biasGELUNames      = [...]gpu.Floats{gpu.ForFloats("fused_bias_gelu"), gpu.ForFloats("fused_bias_gelu_erf"), gpu.ForFloats("fused_bias_add")}
	gatedNames         = [...]gpu.Floats{gpu.ForFloats("fused_swiglu"), gpu.ForFloats("fused_geglu")}
	gatedBackwardNames = [...]gpu.Floats{gpu.ForFloats("fused_swiglu_backward"), gpu.ForFloats("fused_geglu_backward")}
	dropoutNames       = gpu.ForFloats("fused_dropout")
)

func nameOf(names *gpu.Floats, v *snug.View) string { return names.Of(uint8(v.DType())) }

func (j *addJob) Grids(q gpu.Launcher) error {
	return grid(q, nameOf(&addNames, &j.out), packs(j.out.Len(), j.out.DType()), threads,
		elementsOf(&j.out, &j.a, &j.b), &j.out, &j.a, &j.b)
}

// biasParams is BiasParams of activations.h.
type biasParams struct {
	n          uint64
	cols, wide uint32
}

func (j *biasGELUJob) Grids(q gpu.Launcher) error {
	p := biasParams{uint64(j.x.Len()), uint32(j.cols), wide(j.cols, &j.out, &j.x, &j.bias)}
	return grid(q, nameOf(&biasGELUNames[j.form], &j.x), packs(j.x.Len(), j.x.DType()), threads, p, &j.out, &j.x, &j.bias)
}

func (j *gatedJob) Grids(q gpu.Launcher) error {
	if j.act.gate == clampedGate {
		return j.clamped(q)
	}
	return grid(q, nameOf(&gatedNames[j.act.gate], &j.out), packs(j.out.Len(), j.out.DType()), threads,
		elementsOf(&j.out, &j.gate, &j.up), &j.out, &j.gate, &j.up)
}

func (j *gatedBackwardJob) Grids(q gpu.Launcher) error {
	if j.act.gate == clampedGate {
		return j.clamped(q)
	}
	return grid(q, nameOf(&gatedBackwardNames[j.act.gate], &j.dy), packs(j.dy.Len(), j.dy.DType()), threads,
		elementsOf(&j.dgate, &j.dup, &j.dy, &j.gate, &j.up), &j.dgate, &j.dup, &j.dy, &j.gate, &j.up)
}

// dropoutParams is DropoutParams of activations.h.
type dropoutParams struct {
	n, seed, tensor, first, threshold uint64
	scale                             float32
	wide                              uint32
}

func (j *dropoutJob) Grids(q gpu.Launcher) error {
	threshold, scale := j.mask.threshold()
	p := dropoutParams{
		n: uint64(j.out.Len()), seed: j.mask.Seed, tensor: j.mask.Tensor, first: j.mask.First,
		threshold: uint64(threshold), scale: scale,
	}
	// A thread's 4 elements begin where a block of words does.
	if j.mask.First%4 == 0 && device.Mem(&j.out).Addr%16 == 0 && device.Mem(&j.x).Addr%16 == 0 {
		p.wide = 1
	}
	return grid(q, nameOf(&dropoutNames, &j.out), gpu.Grid(j.out.Len(), 4*threads), threads, p, &j.out, &j.x)
}
