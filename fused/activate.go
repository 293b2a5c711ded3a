package fused

import (
	"fmt"
	"math"
	"unsafe"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/rowwise"
)

// Activation is a function of one element, for [Activate] and [ActivateBackward]. The zero value is none.
//
//	              f(x)                     f′(x), at its kinks as PyTorch has it    backward takes
//	ReLU          max(x, 0)                1 for x > 0, else 0                      x or y
//	ReLU6         min(max(x, 0), 6)        1 for 0 < x < 6, else 0                  x or y
//	LeakyReLU(s)  x for x > 0, else s·x    1 for x > 0, else s                      x, or y for s ≥ 0
//	SquaredReLU   max(x, 0)²               2·max(x, 0)                              x
//	HardSwish     x·min(max(x+3, 0), 6)/6  0 for x ≤ −3, 1 for x ≥ 3, else x/3 + ½  x
//	HardSigmoid   min(max(x+3, 0), 6)/6    1/6 for −3 < x < 3, else 0               x
//	Sigmoid       σ(x) = 1/(1 + exp(−x))   y·(1 − y)                                y
//	Tanh          tanh(x)                  1 − y²                                   y
//	SiLU          x·σ(x)                   σ(x) + x·σ(x)·(1 − σ(x))                 x
//
// What the backward pass takes is all that it needs: x is the input, y the output. Where y will do, the output
// may overwrite the input. [Activation.FromInput] and [Activation.FromOutput] say it to programs.
//
// ReLU and LeakyReLU need only signs, which package remat/pack keeps in 1 bit an element: its Signs of x, and its
// ApplyBits for the backward pass. Of ReLU6 and HardSigmoid, whose slope is 0 or one other number, pack's Bits of the result of
// ActivateBackward with a dy of ones will do.
//
// SquaredReLU is of So et al., "Primer: Searching for Efficient Transformers for Language Modeling" (2021); HardSwish and
// HardSigmoid are of Howard et al., "Searching for MobileNetV3" (2019).
type Activation uint64

// The activations without a parameter.
const (
	ReLU Activation = iota + 1
	ReLU6
	SquaredReLU
	HardSwish
	HardSigmoid
	Sigmoid
	Tanh
	SiLU
	leakyReLU // with its slope in the upper half
)

// LeakyReLU returns the activation that multiplies by slope where x is not positive. PyTorch's default is 0.01. The slope
// must be finite.
func LeakyReLU(slope float32) Activation {
	return leakyReLU | Activation(math.Float32bits(slope))<<32
}

// kind returns a without its slope.
func (a Activation) kind() Activation { return a & math.MaxUint32 }

// slope returns the slope of a LeakyReLU.
func (a Activation) slope() float32 { return math.Float32frombits(uint32(a >> 32)) }

func (a Activation) valid() bool {
	if a.kind() == leakyReLU {
		return a.slope()-a.slope() == 0
	}
	return a >= ReLU && a < leakyReLU
}

// String returns the name, with the slope if there is one.
func (a Activation) String() string {
	switch {
	case a.kind() == leakyReLU:
		return fmt.Sprintf("LeakyReLU(%v)", a.slope())
	case !a.valid():
		return fmt.Sprintf("Activation(%d)", uint64(a))
	}
	return [...]string{"ReLU", "ReLU6", "SquaredReLU", "HardSwish", "HardSigmoid", "Sigmoid", "Tanh", "SiLU"}[a-ReLU]
}

// FromInput reports whether [ActivateBackward] takes the input of a.
func (a Activation) FromInput() bool { return a.valid() && a != Sigmoid && a != Tanh }

// FromOutput reports whether [ActivateBackward] takes the output of a.
func (a Activation) FromOutput() bool {
	switch a.kind() {
	case leakyReLU:
		return a.valid() && a.slope() >= 0
	case ReLU, ReLU6, Sigmoid, Tanh:
		return a.valid()
	}
	return false
}

// Activate computes out[i] = f(x[i]) of an [Activation].
//
// Both have one length. out may be x, where the backward pass does not take x. Piecewise activations have the same bits
// on every tier; f(−Inf) of SquaredReLU, HardSwish and SiLU is a 0, the limit, and a NaN stays NaN. Sigmoid is within
// (4 + 1.25·|x|)·2⁻²⁴ of itself and 2e-38, Tanh within 2 units in the last place, SiLU as in [SwiGLU]; for bfloat16 Sigmoid may be
// off by 2⁻¹³ of itself before the result is rounded. Each worker holds 16 KiB.
func Activate[V snug.Vector](out, x V, a Activation) error {
	return activate(snug.ViewOf(out), snug.ViewOf(x), a)
}

// ActivateBackward computes dx[i] = dy[i]·f′(x[i]) from the gradient dy of the output of [Activate] and what the
// backward pass of the [Activation] takes: its input or its output.
//
// All have one length. dx may be dy or kept. An infinite dy times a slope of 0 is NaN, where PyTorch has 0. Each
// worker holds 32 KiB.
func ActivateBackward[V snug.Vector](dx, dy, kept V, a Activation) error {
	return activateBackward(snug.ViewOf(dx), snug.ViewOf(dy), snug.ViewOf(kept), a)
}

func (a Activation) check(c *checks) {
	if !a.valid() {
		c.failf(snug.ErrConfig, "there is no %v", a)
	}
}

func activate(out, x snug.View, a Activation) error {
	check := &checks{op: "Activate"}
	a.check(check)
	check.floats(operand{"x", x}, operand{"out", out})
	check.len(x.Len(), operand{"out", out})
	return run(check, activateJob{out, x, a}, out, x)
}

func activateBackward(dx, dy, kept snug.View, a Activation) error {
	check := &checks{op: "ActivateBackward"}
	a.check(check)
	check.floats(operand{"kept", kept}, operand{"dx", dx}, operand{"dy", dy})
	check.len(kept.Len(), operand{"dx", dx}, operand{"dy", dy})
	return run(check, activateBackwardJob{dx, dy, kept, a}, dx, dy, kept)
}

type activateJob struct {
	out, x snug.View
	a      Activation
}

func (*activateJob) Kernel() string { return "fused.activate" }

func (j *activateJob) Operands(yield func(*driver.Mem)) { device.Each(yield, &j.out, &j.x) }

func (j activateJob) Run() { activateTask.Run(cpu.Chunks(j.x.Len(), itemLen), j) }

var activateTask = cpu.NewTask(func(j *activateJob, item int) {
	lo, hi := cpu.Chunk(j.x.Len(), itemLen, item)
	block := min(blockCols, hi-lo)
	buf := scratch.Get(2 * block)
	defer finish(buf)
	if k := direct(j.x); k != nil && j.a != Tanh {
		one, stream := halves(cut(buf, 1, block)), streams(j.out, j.x)
		fillOnes(one, 0x3f80, j.a)
		for ; lo < hi; lo += block {
			n := min(block, hi-lo)
			activateRow(k, j.a, bits(j.out, lo, lo+n), bits(j.x, lo, lo+n), one[:n], stream)
		}
		return
	}
	one, stream := cut(buf, 1, block), streams32(j.out, j.x)
	fillOnes(one, 1, j.a)
	for ; lo < hi; lo += block {
		n := min(block, hi-lo)
		x := load(cut(buf, 0, n), j.x, lo)
		out := target(cut(buf, 0, n), j.out, lo)
		if j.a == Tanh {
			copy(out, x)
			rowwise.Registry.Best().Softcap(out, 1, 1)
		} else {
			activateRow(rowwise.F32.Best(), j.a, out, x, one[:n], stream)
		}
		store(j.out, lo, out)
	}
})

// fillOnes fills x with what the loops of SiLU multiply by.
func fillOnes[T float32 | uint16](x []T, one T, a Activation) {
	if a == SiLU {
		for i := range x {
			x[i] = one
		}
	}
}

// halves returns the memory of x for as many elements of bfloat16.
func halves(x []float32) []uint16 {
	return unsafe.Slice((*uint16)(unsafe.Pointer(unsafe.SliceData(x))), len(x))
}

var infinity = float32(math.Inf(1))

// activateRow is Activate by loops that both types have.
func activateRow[T float32 | uint16](k *rowwise.Layers[T], a Activation, out, x, ones []T, stream bool) {
	switch a.kind() {
	case ReLU:
		k.Ramp(out, x, 0, infinity, 1, stream)
	case ReLU6:
		k.Ramp(out, x, 0, 6, 1, stream)
	case leakyReLU:
		k.Leaky(out, x, a.slope(), stream)
	case SquaredReLU:
		k.RampMul(out, x, 0, 0, infinity, 1, stream)
	case HardSwish:
		k.RampMul(out, x, -3, 3, 6, 1./6, stream)
	case HardSigmoid:
		k.Ramp(out, x, 3, 6, 1./6, stream)
	case Sigmoid:
		k.Sigmoid(out, x, stream)
	case SiLU:
		k.SiLUMul(out, x, ones, stream)
	}
}

type activateBackwardJob struct {
	dx, dy, kept snug.View
	a            Activation
}

func (*activateBackwardJob) Kernel() string { return "fused.activate_backward" }

func (j *activateBackwardJob) Operands(yield func(*driver.Mem)) {
	device.Each(yield, &j.dx, &j.dy, &j.kept)
}

func (j activateBackwardJob) Run() { activateBackwardTask.Run(cpu.Chunks(j.dy.Len(), itemLen), j) }

var activateBackwardTask = cpu.NewTask(func(j *activateBackwardJob, item int) {
	lo, hi := cpu.Chunk(j.dy.Len(), itemLen, item)
	block := min(blockCols, hi-lo)
	buf := scratch.Get(4 * block)
	defer finish(buf)
	if k := direct(j.kept); k != nil {
		one, other, stream := halves(cut(buf, 2, block)), halves(cut(buf, 3, block)), streams(j.dx, j.dy, j.kept)
		fillOnes(one, 0x3f80, j.a)
		for ; lo < hi; lo += block {
			n := min(block, hi-lo)
			activateRowGrad(k, j.a, bits(j.dx, lo, lo+n), bits(j.dy, lo, lo+n), bits(j.kept, lo, lo+n), one[:n], other[:n], stream)
		}
		return
	}
	one, stream := cut(buf, 2, block), streams32(j.dx, j.dy, j.kept)
	fillOnes(one, 1, j.a)
	for ; lo < hi; lo += block {
		n := min(block, hi-lo)
		dy := load(cut(buf, 0, n), j.dy, lo)
		kept := load(cut(buf, 1, n), j.kept, lo)
		dx := target(cut(buf, 0, n), j.dx, lo)
		activateRowGrad(rowwise.F32.Best(), j.a, dx, dy, kept, one[:n], cut(buf, 3, block)[:n], stream)
		store(j.dx, lo, dx)
	}
})

// The float32 next below 3 and 6.
const (
	below3 = 3 - 0x1p-22
	below6 = 6 - 0x1p-21
)

// activateRowGrad is ActivateBackward by loops that both types have; other is for a result that nobody reads. The slope of an
// infinity is not computed by a line.
func activateRowGrad[T float32 | uint16](k *rowwise.Layers[T], a Activation, dx, dy, kept, ones, other []T, stream bool) {
	switch a.kind() {
	case ReLU:
		k.Slopes(dx, dy, kept, 0, math.MaxFloat32, 0, 0, 1, 1, stream)
	case ReLU6:
		k.Slopes(dx, dy, kept, 0, below6, 0, 0, 1, 0, stream)
	case leakyReLU:
		k.Slopes(dx, dy, kept, 0, math.MaxFloat32, a.slope(), 0, 1, 1, stream)
	case SquaredReLU:
		k.Slopes(dx, dy, kept, 0, math.MaxFloat32, 0, 2, 0, infinity, stream)
	case HardSwish:
		k.Slopes(dx, dy, kept, -3, below3, 0, 1./3, 0.5, 1, stream)
	case HardSigmoid:
		k.Slopes(dx, dy, kept, -3, below3, 0, 0, 1./6, 0, stream)
	case Sigmoid:
		k.OutputSlopes(dx, dy, kept, 0, 1, stream)
	case Tanh:
		k.OutputSlopes(dx, dy, kept, 1, 0, stream)
	case SiLU:
		k.SiLUMulGrad(dx, other, dy, kept, ones, false) // other stays in the caches
	}
}
