package accum

import (
	"fmt"
	"iter"
	"math"

	"github.com/snug-ml/snug"
)

// Window accumulates the gradients of one optimizer step at a time. It holds
// 4 bytes for each element in one contiguous bucket, in the order of the
// parameters. Begin, Add or Into or AddAll, and End take one micro-batch; after
// the last one End reports a full window, Gradients yields its mean, and Reset
// begins the next. A call out of order is an error that wraps
// [snug.ErrConfig].
//
// Where each gradient passes k micro-batches, the mean differs from the exact
// one, Σ(nᵢ/N)gᵢ, by at most (3k+1)·2^-24·Σ(nᵢ/N)|gᵢ| in each element, for k up
// to 1000 and results above the subnormal range. It does not depend on
// GOMAXPROCS. A Window is not safe for concurrent use.
type Window struct {
	params   []param
	index    map[string]int // of params
	schedule Schedule
	overflow Overflow
	device   *snug.Device

	step   int     // full windows so far
	size   int     // micro-batches of this window
	micros int     // of them that ended
	weight float64 // of those that count
	full   bool

	open        bool    // between Begin and End
	dropped     bool    // the open micro-batch is left out
	micro       float64 // its weight
	alpha, beta float32 // its first gradient g gives acc = beta·acc + alpha·g

	stats Stats

	// Made once, so that calls allocate nothing.
	gradients        iter.Seq2[string, snug.View]
	check, look, add func(name string, g snug.View) bool
	walked           int       // gradients of the walk of AddAll
	walkErr          error     // that ended it
	records          []int32   // see inspect, with DropMicro only
	found            snug.View // the records, on the window's device
}

type param struct {
	Param
	acc   snug.View // its part of the bucket
	added bool      // has a gradient of the open micro-batch
}

// New returns an empty Window over params. It keeps a copy of params, and
// o.Buffer. Errors: those of [Len]; [snug.ErrConfig] for a schedule whose first
// window is empty or an unknown Overflow; [snug.ErrDType], [snug.ErrShape] and
// [snug.ErrDevice] for a Buffer that does not fit.
func New(params []Param, o Options) (*Window, error) {
	total, err := Len(params)
	if err != nil {
		return nil, err
	}
	if o.Schedule == nil {
		o.Schedule = Constant(1)
	}
	if o.Overflow != SkipWindow && o.Overflow != DropMicro {
		return nil, fmt.Errorf("accum: Overflow is %d, want SkipWindow or DropMicro: %w", o.Overflow, snug.ErrConfig)
	}
	size := o.Schedule.Micros(0)
	if size < 1 {
		return nil, fmt.Errorf("accum: the schedule gives the first window %d micro-batches, want 1 or more: %w", size, snug.ErrConfig)
	}
	bucket, err := newBucket(o.Buffer, total)
	if err != nil {
		return nil, err
	}
	w := &Window{
		index: make(map[string]int, len(params)), schedule: o.Schedule, overflow: o.Overflow,
		device: bucket.Device(), size: size,
	}
	lo := 0
	for i, p := range params {
		start := lo
		if p.Len == 0 {
			start = 0 // at the end of the bucket it would point past it
		}
		acc, err := bucket.Slice(start, start+p.Len)
		if err != nil {
			return nil, err
		}
		w.params = append(w.params, param{Param: p, acc: acc})
		w.index[p.Name] = i
		lo += p.Len
	}
	w.gradients = w.yieldGradients
	w.check, w.look, w.add = w.checkOne, w.lookOne, w.addOne
	if w.overflow == DropMicro {
		w.records = w.newRecords()
	}
	return w, nil
}

func newBucket(buffer snug.View, n int) (snug.View, error) {
	if buffer == (snug.View{}) {
		return snug.SliceView(make([]float32, n)), nil
	}
	if buffer.DType() != snug.F32 {
		return buffer, fmt.Errorf("accum: Buffer is %s, want f32: %w", buffer.DType(), snug.ErrDType)
	}
	if buffer.Len() != n {
		return buffer, fmt.Errorf("accum: Buffer has %d elements, want %d: %w", buffer.Len(), n, snug.ErrShape)
	}
	if _, err := snug.CommonDevice(buffer); err != nil {
		return buffer, fmt.Errorf("accum: Buffer: %w", err)
	}
	return buffer, nil
}

// Begin begins a micro-batch. weight is what its gradients, which are means,
// are means over: its samples or its target tokens. A micro-batch of weight 0
// counts towards the window's size and contributes nothing, whatever its
// gradients hold.
//
// Errors, all [snug.ErrConfig]: a micro-batch was begun and has not ended, the
// window is full, weight is negative or not finite or differs from the weight
// so far by more than float32 can hold, or the schedule gave the window less
// than one micro-batch.
func (w *Window) Begin(weight float64) error {
	switch {
	case w.open:
		return fmt.Errorf("accum: Begin: call End first, a micro-batch is open: %w", snug.ErrConfig)
	case w.full:
		return fmt.Errorf("accum: Begin: call Reset first, the window is full: %w", snug.ErrConfig)
	case w.size < 1:
		return fmt.Errorf("accum: Begin: the schedule gives step %d %d micro-batches, want 1 or more: %w", w.step, w.size, snug.ErrConfig)
	case !(weight >= 0) || math.IsInf(w.weight+weight, 0):
		return fmt.Errorf("accum: Begin: weight is %v, want a finite number, 0 or more: %w", weight, snug.ErrConfig)
	}
	alpha, beta := factors(w.weight, weight)
	if weight > 0 && alpha == 0 || w.weight > 0 && beta == 0 {
		return fmt.Errorf("accum: Begin: weight is %v, too far from the %v so far: %w", weight, w.weight, snug.ErrConfig)
	}
	w.open, w.dropped, w.micro, w.alpha, w.beta = true, false, weight, alpha, beta
	w.forget()
	return nil
}

// factors returns the shares of a micro-batch and of what was there before it.
func factors(before, micro float64) (alpha, beta float32) {
	if micro == 0 {
		return 0, 1
	}
	return float32(micro / (before + micro)), float32(before / (before + micro))
}

// End ends the micro-batch. A parameter that was not added has a gradient of
// zero. full says that it was the last of the window: Gradients yields the
// window's mean until Reset. The error wraps [snug.ErrConfig] when no
// micro-batch is open, and is otherwise of the device.
func (w *Window) End() (full bool, err error) {
	if !w.open {
		return false, fmt.Errorf("accum: End: call Begin first, no micro-batch is open: %w", snug.ErrConfig)
	}
	if err := w.settle(); err != nil {
		return false, err
	}
	if w.dropped {
		w.stats.Dropped++
	} else {
		w.weight += w.micro
	}
	w.open = false
	w.micros++
	w.stats.Micros++
	w.full = w.micros >= w.size
	return w.full, nil
}

// settle gives parameters that were not added a gradient of zero. While
// nothing counts yet the mean is zero, not what the bucket held.
func (w *Window) settle() error {
	counts := w.micro > 0 && !w.dropped
	if !counts && w.weight > 0 {
		return nil
	}
	beta := w.beta
	if w.weight == 0 {
		beta = 0
	}
	for i := range w.params {
		p := &w.params[i]
		if counts && p.added {
			continue
		}
		if err := accumulate(w.device, p.acc, snug.View{}, 0, beta); err != nil {
			return fmt.Errorf("accum: End: parameter %q: %w", p.Name, err)
		}
	}
	return nil
}

// Flush makes a window full that has at least one micro-batch, at the end of an
// epoch, and reports whether it is full. The error wraps [snug.ErrConfig] when
// a micro-batch is open.
func (w *Window) Flush() (full bool, err error) {
	if w.open {
		return false, fmt.Errorf("accum: Flush: call End first, a micro-batch is open: %w", snug.ErrConfig)
	}
	w.full = w.micros > 0
	return w.full, nil
}

// Reset begins the next window. One that was not full is thrown away, also
// within a micro-batch, and its step begins anew.
func (w *Window) Reset() {
	if w.full {
		w.step++
		w.stats.Windows++
		w.size = w.schedule.Micros(w.step)
	}
	w.empty()
}

// Skip is Reset for a window whose gradients were not used, because they are
// not finite. Stats counts it.
func (w *Window) Skip() {
	w.stats.Skipped++
	w.Reset()
}

func (w *Window) empty() {
	w.micros, w.weight, w.full, w.open = 0, 0, false, false
}

// Gradients yields the name and the mean gradient of every parameter, in the
// order given to New: float32 views of the bucket, valid until the next Begin
// or Reset. Between micro-batches that is the mean of those that ended. It
// yields nothing before the first has ended or while one is open. The caller
// may change the values of a full window, as unscaling and clipping do.
func (w *Window) Gradients() iter.Seq2[string, snug.View] { return w.gradients }

func (w *Window) yieldGradients(yield func(string, snug.View) bool) {
	if !w.readable() {
		return
	}
	for i := range w.params {
		if !yield(w.params[i].Name, w.params[i].acc) {
			return
		}
	}
}

func (w *Window) readable() bool { return w.micros > 0 && !w.open }

// Gradient returns the mean gradient of one parameter, as Gradients yields it.
// The error wraps [snug.ErrConfig] for an unknown name, and when Gradients
// yields nothing.
func (w *Window) Gradient(name string) (snug.View, error) {
	i, found := w.index[name]
	if !found {
		return snug.View{}, fmt.Errorf("accum: Gradient: no parameter %q: %w", name, snug.ErrConfig)
	}
	if !w.readable() {
		return snug.View{}, fmt.Errorf("accum: Gradient: parameter %q: no micro-batch has ended, or one is open: %w", name, snug.ErrConfig)
	}
	return w.params[i].acc, nil
}

// Weight returns the weight of the micro-batches of this window that ended and
// were not dropped. 0 means that its gradients are zero for want of data.
func (w *Window) Weight() float64 { return w.weight }

// Micros returns how many micro-batches of this window ended.
func (w *Window) Micros() int { return w.micros }

// Size returns how many micro-batches this window has.
func (w *Window) Size() int { return w.size }

// Len returns the elements of the bucket, 4 bytes each.
func (w *Window) Len() int {
	n := 0
	for i := range w.params {
		n += w.params[i].Len
	}
	return n
}

// Stats returns the counts so far.
func (w *Window) Stats() Stats { return w.stats }
