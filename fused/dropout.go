package fused

import (
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
	First  uint64  // the element of the tensor with which x begins; First plus the length of x is less than 2⁶⁴
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
	check := &checks{op: op}
	if !(mask.P >= 0 && mask.P < 1) {
		check.failf(snug.ErrConfig, "P is %v, want at least 0 and less than 1", mask.P)
	}
	check.floats(out, x)
	check.len(out.view.Len(), x)
	if n := uint64(x.view.Len()); mask.First+n < mask.First {
		check.failf(snug.ErrConfig, "First is %d, want less than 2^64 - %d, the length of x", mask.First, n)
	}
	return run(check, dropoutJob{out.view, x.view, mask}, out.view, x.view)
}

type dropoutJob struct {
	out, x snug.View

	mask DropoutMask
}

func (*dropoutJob) Kernel() string { return "fused.dropout" }

func (j *dropoutJob) Operands(yield func(*driver.Mem)) { device.Each(yield, &j.out, &j.x) }

func (j dropoutJob) Run() { dropoutTask.Run(cpu.Chunks(j.out.Len(), itemLen), j) }

var dropoutTask = cpu.NewTask(func(j *dropoutJob, item int) {
	buf := scratch.Get(2 * blockCols)
	defer finish(buf)
	lo, hi := cpu.Chunk(j.out.Len(), itemLen, item)
	words := asWords(cut(buf, 0, blockCols))
	switch k := direct(j.out); {
	case k != nil:
		drop(k, bits(j.out, lo, hi), bits(j.x, lo, hi), j.mask, lo, words, streams(j.out, j.x))
	case j.out.DType() == snug.F32:
		drop(rowwise.F32.Best(), j.out.Float32s()[lo:hi], j.x.Float32s()[lo:hi], j.mask, lo, words, streams(j.out, j.x))
	default:
		for ; lo < hi; lo += blockCols {
			x := load(cut(buf, 1, blockCols)[:min(blockCols, hi-lo)], j.x, lo)
			drop(rowwise.F32.Best(), x, x, j.mask, lo, words, false)
			store(j.out, lo, x)
		}
	}
})

// drop does elements lo and up of a tensor in one loop with their random numbers where it can, else by blocks of words.
func drop[T float32 | uint16](k *rowwise.Layers[T], dst, src []T, mask DropoutMask, lo int, words []uint32, stream bool) {
	random, first := philox.Stream{Seed: mask.Seed, Tensor: mask.Tensor}, mask.First+uint64(lo)
	threshold, scale := mask.threshold()
	if k.DropoutDrawn != nil && first%philox.PerBlock == 0 {
		n := len(dst) / rowwise.DrawnLen * rowwise.DrawnLen
		k.DropoutDrawn(dst[:n], src[:n], mask.Seed, mask.Tensor, first/philox.PerBlock, threshold, scale, stream)
		dst, src, first = dst[n:], src[n:], first+uint64(n)
	}
	for len(dst) > 0 {
		n := min(len(words), len(dst))
		random.Words(words[:n], first)
		k.Dropout(dst[:n], src[:n], words[:n], threshold, scale, stream)
		dst, src, first = dst[n:], src[n:], first+uint64(n)
	}
}

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
