// Package accum accumulates gradients over micro-batches, so that a window of
// small batches gives the gradient of the large batch that does not fit.
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
// With a loss scaler the scale must stay the same within a window: update it
// between windows only.
package accum

import (
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

// Schedule says how many micro-batches a window has.
type Schedule interface {
	// Micros returns the number of micro-batches, 1 or more, of the window of
	// a step. Steps count the windows that were full, from 0.
	Micros(step int) int
}

// Constant is the Schedule with the same number of micro-batches in every
// window.
type Constant int

// Micros returns c.
func (c Constant) Micros(int) int { return int(c) }

// Overflow is what becomes of a micro-batch with NaNs or infinities.
type Overflow int

const (
	// SkipWindow lets the values into the mean, where they stay until the
	// window ends. The check of the window's gradients before the step then
	// finds them (as amp's Scaler does while it unscales), and the caller
	// calls [Window.Skip]. This costs no pass of its own.
	SkipWindow Overflow = iota
	// DropMicro leaves the micro-batch out, gradients and weight; the window
	// has one micro-batch less. All its gradients are handed to
	// [Window.AddAll], which reads them once more to check them first; Add and
	// Into are errors.
	DropMicro
)

// Options configures a [Window].
type Options struct {
	Schedule Schedule // nil means Constant(1)
	Overflow Overflow // SkipWindow, unless set
	// Buffer is the memory of the window: float32, as many elements as [Len]
	// says, with any contents, on any device; the window then takes gradients
	// on that device. The caller keeps it and does not touch it. The zero View
	// means that New allocates on the CPU.
	Buffer snug.View
}

// Stats counts what a Window has seen since it was made.
type Stats struct {
	Windows int // full windows that ended, those that were skipped included
	Skipped int // windows that Skip ended
	Micros  int // micro-batches that ended, those that were dropped included
	Dropped int // micro-batches that were left out by DropMicro

	LastDrop Location // the first non-finite value of the last dropped one
}

// Location is one element of a gradient.
type Location struct {
	Name  string // of the parameter
	Index int    // element of its gradient
	Value float32
}

// Len returns the number of float32 elements that a window over params holds,
// 4 bytes each. Errors: [snug.ErrConfig] for a name that is empty, repeated or
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
