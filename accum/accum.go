// Package accum accumulates gradients over micro-batches, so that a window of
// small batches gives the gradient of the large batch that does not fit.
//
//	for batch := range batches {
//		err := window.Begin(float64(batch.Targets))
//		...                                   // forward, backward
//		err = window.Add("weight", dWeight)   // the mean over batch.Targets
//		full, err := window.End()
//		if full {
//			...                           // unscale, clip, step: window.Gradients()
//			window.Reset()
//		}
//	}
//
// [New] makes a window over named parameters; [Options] also check and measure
// micro-batches, keep the loss scale constant within a window, hold its sum in bfloat16,
// and reduce its gradients over the ranks of data-parallel training. A [Sharded] holds the part
// of the gradients that a rank needs, and a [Pages] the rank's part of weights, as ZeRO does.
//
// # The mean
//
// A [Window] holds the weighted mean of the gradients so far in float32. A
// micro-batch whose mean gradient is g and whose weight is n (its samples, or
// its target tokens) changes it by
//
//	N += n
//	acc += (n/N)·(g − acc)
//
// (West, "Updating mean and variance estimates: an improved method", CACM
// 1979), so that it is the mean over the whole batch after every micro-batch,
// whatever their sizes, and a window that ends early needs no correction. The
// common sum of g/K weights all K micro-batches alike: it is wrong when they
// differ in tokens, and too small when the epoch ends within a window.
package accum

import (
	"encoding"
	"fmt"
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/state"
)

// Param is a parameter whose gradient is accumulated.
type Param struct {
	Name string // not empty, unique
	Len  int    // elements
}

// NonFinitePolicy decides what happens to a micro-batch with NaNs or infinities.
type NonFinitePolicy int

const (
	// SkipWindow lets the values into the mean, where they stay until the
	// window ends. The check of the window's gradients before the step then
	// finds them (as amp's Scaler does while it unscales), and the caller
	// calls [Window.Skip]. This costs no pass of its own; with Options.Measure
	// the window says which micro-batch they came from.
	SkipWindow NonFinitePolicy = iota
	// DropMicro leaves the micro-batch out, gradients and weight; a window of a
	// number of micro-batches has one less. All its gradients are handed to
	// [Window.AddAll], which reads them once more to check and measure them
	// first; Add and Into are errors.
	DropMicro
)

// Options configures a [Window]. The zero value is a window of one micro-batch in float32
// on the CPU.
type Options struct {
	Schedule  Schedule        // nil means Constant(1)
	NonFinite NonFinitePolicy // SkipWindow, unless set

	// Buffer is the memory of the window: as many elements as [Len] says, of
	// DType, with any contents, on any device; the window then takes gradients
	// on that device. The caller keeps it and does not touch it. The zero View
	// means that New allocates on the CPU.
	Buffer snug.View
	// DType is what the mean is held in: snug.F32, also for 0, or snug.BF16. In
	// bfloat16 a window costs 2 bytes for each element instead of 4. Each
	// micro-batch then rounds the mean to one of its two neighbours at random,
	// with the right expectation, so that small gradients are not lost; but the
	// error of one rounding is up to 2^-7 of the element, after k micro-batches
	// about √k·2^-9 of it (root mean square), where float32 has 2^-24. A kernel
	// cannot add in place: Into is an error.
	DType snug.DType
	// Seed seeds the random numbers for BF16. Seed, the parameter's name, the
	// element and the number of the micro-batch decide how an element is rounded.
	Seed uint64

	// Measure makes the window look at the gradients of every micro-batch, in the
	// pass that adds them: [Window.NonFinite] then says which micro-batch brought
	// a NaN or an infinity, and [Window.Moments] has what [NoiseScale] wants. What
	// kernels have added in place, through Into, costs a pass of its own over the
	// accumulators. End waits for the device. DropMicro measures always.
	Measure bool

	// Scaler is the loss scaler by whose scale losses are multiplied, or nil. The
	// scale of a window is the Scaler's at Begin; when it has changed within a
	// window by a power of two, the accumulator is multiplied by the same, which
	// is exact for results above the subnormal range; any other change is an
	// error. The Scaler's state is saved and restored with the window's.
	Scaler Scaler

	// Bucket is the number of elements above which a bucket of gradients ends; 0
	// means one bucket. Buckets are filled from the last parameter to the first,
	// the order in which a backward pass reaches them. Bucket 0 has the last.
	Bucket int
	// OnBucket is called in the order of the buckets, once in each window for
	// each: as soon as the last gradients of all its parameters have arrived. Its
	// error is returned by the call that has added the gradient. With a Reducer it
	// is called when the bucket is reduced, on another goroutine, and End returns
	// its error.
	OnBucket func(b Bucket) error

	// Reducer joins the windows of the ranks of data-parallel training, or is
	// nil: see [Reducer].
	Reducer Reducer
	// Shard leaves each rank, after the reduction, with its own part of every
	// bucket, for half of the communication. The memory is the same, see [Window.Part].
	// A [Sharded] holds only what the rank keeps.
	Shard bool
}

// Scaler is what a [Window] needs from a loss scaler, such as amp's.
type Scaler interface {
	Scale() float32
	encoding.BinaryAppender
	encoding.BinaryUnmarshaler
}

// Stats counts what a Window has seen since it was made.
type Stats struct {
	Windows int // full windows that ended, skipped ones included
	Skipped int // windows that Skip ended
	Micros  int // micro-batches that ended, dropped ones included
	Dropped int // micro-batches that were left out by DropMicro
}

// Len returns the number of elements that a window over params holds, 4 bytes
// each in float32 and 2 in bfloat16. Errors: [snug.ErrConfig] for a name that is empty, repeated or
// longer than 64 KiB, [snug.ErrShape] for a length that is negative or a sum
// of bytes that overflows.
func Len(params []Param) (int, error) {
	names := make(map[string]bool, len(params))
	total := 0
	for i, p := range params {
		if p.Name == "" || len(p.Name) > state.MaxName || names[p.Name] {
			return 0, fmt.Errorf("accum: parameter %d is named %.40q, want a name that is not empty, repeated or over %d bytes: %w", i, p.Name, state.MaxName, snug.ErrConfig)
		}
		names[p.Name] = true
		if p.Len < 0 || p.Len > math.MaxInt/4-total {
			return 0, fmt.Errorf("accum: parameter %q has %d elements, after %d: %w", p.Name, p.Len, total, snug.ErrShape)
		}
		total += p.Len
	}
	return total, nil
}
