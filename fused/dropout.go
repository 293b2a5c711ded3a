package fused

import (
	"fmt"
	"math"
	"unsafe"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/philox"
	"github.com/snug-ml/snug/internal/rowwise"
)

// DropoutMask names the random mask of one tensor. It is all that a backward
// pass, a recomputation or another device needs to make the same mask again;
// no mask is stored.
//
// Element i of the tensor is dropped when word i of the stream of
// Philox4x32-10 (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3",
// 2011) with the key Seed and the counter (i/4, Tensor) is less than P·2³².
// The mask does not depend on how the tensor is cut into calls.
type DropoutMask struct {
	P      float32 // the probability to drop an element, at least 0 and less than 1
	Seed   uint64  // of the run
	Tensor uint64  // a number that no other dropout of the step has, such as step·layers + layer
	First  uint64  // the element of the tensor with which x begins
}

// Dropout drops elements at random and scales the others, so that the mean
// stays (Srivastava et al., "Dropout: A Simple Way to Prevent Neural Networks
// from Overfitting", 2014):
//
//	out[i] = x[i]/(1 − P), or 0 where the mask drops the element
//
// Both have one length. A dropped NaN or infinity becomes 0. It keeps nothing
// for the backward pass.
//
// Aliasing: out may be x. Each worker holds 16 KiB.
func Dropout[V snug.Vector](out, x V, mask DropoutMask) error {
	return dropout("Dropout", operand{"out", snug.ViewOf(out)}, operand{"x", snug.ViewOf(x)}, mask)
}

// DropoutBackward computes the gradient of [Dropout] from the gradient dy of
// its output, with the same mask:
//
//	dx[i] = dy[i]/(1 − P), or 0 where the mask drops the element
//
// Both have one length. dx may be dy. Each worker holds 16 KiB.
func DropoutBackward[V snug.Vector](dx, dy V, mask DropoutMask) error {
	return dropout("DropoutBackward", operand{"dx", snug.ViewOf(dx)}, operand{"dy", snug.ViewOf(dy)}, mask)
}

func dropout(op string, out, x operand, mask DropoutMask) error {
	if !(mask.P >= 0 && mask.P < 1) {
		return fmt.Errorf("fused: %s: P is %v, want at least 0 and less than 1: %w", op, mask.P, snug.ErrConfig)
	}
	if err := checkFloats(op, out, x); err != nil {
		return err
	}
	if err := checkLen(op, out.view.Len(), x); err != nil {
		return err
	}
	dev, err := commonDevice(op, out.view, x.view)
	if err != nil {
		return err
	}
	job := dropoutJob{out.view, x.view, mask}
	return device.Run(dev, job)
}

type dropoutJob struct {
	out, x snug.View

	mask DropoutMask
}

func (*dropoutJob) Kernel() string { return "fused.dropout" }

func (j *dropoutJob) Operands(yield func(*driver.Mem)) {
	yield(device.Mem(&j.out))
	yield(device.Mem(&j.x))
}

func (j dropoutJob) Run() { dropoutTask.Run(cpu.Chunks(j.out.Len(), itemLen), j) }

var dropoutTask = cpu.NewTask(func(j *dropoutJob, item int) {
	random := philox.Stream{Seed: j.mask.Seed, Tensor: j.mask.Tensor}
	threshold, scale := j.mask.threshold()
	buf := scratch.Get(2 * blockCols)
	defer finish(buf)
	k, stream, stream32 := direct(j.out), streams(j.out, j.x), streams32(j.out, j.x)
	for lo, end := cpu.Chunk(j.out.Len(), itemLen, item); lo < end; lo += blockCols {
		n := min(blockCols, end-lo)
		words := asWords(cut(buf, 0, n))
		random.Words(words, j.mask.First+uint64(lo))
		if k != nil {
			k.Dropout(bits(j.out, lo, lo+n), bits(j.x, lo, lo+n), words, threshold, scale, stream)
			continue
		}
		x := load(cut(buf, 1, n), j.x, lo)
		out := target(cut(buf, 1, n), j.out, lo)
		rowwise.F32.Best().Dropout(out, x, words, threshold, scale, stream32)
		store(j.out, lo, out)
	}
})

// threshold returns the least word that keeps an element, and what the element
// is multiplied by then.
func (m DropoutMask) threshold() (threshold uint32, scale float32) {
	p := float64(m.P)
	return uint32(math.Ceil(p * (1 << 32))), float32(1 / (1 - p))
}

// asWords returns the memory of x as words.
func asWords(x []float32) []uint32 {
	return unsafe.Slice((*uint32)(unsafe.Pointer(unsafe.SliceData(x))), len(x))
}
