package accum

import (
	"errors"
	"fmt"
	"hash/fnv"
	"iter"
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/fault"
	"github.com/snug-ml/snug/internal/measure"
)

// Window accumulates the gradients of one optimizer step at a time. It holds
// 4 bytes for each element (2 in bfloat16) in one contiguous vector, in the
// order of the parameters. Begin, Add or Into or AddAll, and End take one
// micro-batch; after the last one End reports a full window, Gradients yields
// its mean, and Reset begins the next. A call out of order is an error that
// wraps [snug.ErrConfig]. When a call stops half-way, by an error of a device or a function
// of the caller or by a panic of one, all calls are such errors until Reset or a restore.
//
// Where each gradient passes k micro-batches, the mean differs from the exact
// one, Σ(nᵢ/N)gᵢ, by at most (3k+1)·2^-24·Σ(nᵢ/N)|gᵢ| in each element, for k up
// to 1000, float32 and results above the subnormal range. So two partitions of
// the same samples into micro-batches, in any order, differ by at most the sum
// of their bounds. The mean does not depend on GOMAXPROCS. A Window is not safe
// for concurrent use.
type Window struct {
	params   []param
	index    map[string]int // of params
	schedule Schedule
	overflow NonFinitePolicy
	measures bool
	dtype    snug.DType
	seed     uint64
	scaler   Scaler
	device   *snug.Device

	progress Progress
	target   Target  // of a window that was begun
	micros   int     // of this window that ended
	weight   float64 // of those that count
	full     bool
	scale    float32 // of the losses that were added

	half        string  // the operation that has stopped half-way, or empty
	open        bool    // between Begin and End
	last        bool    // the open micro-batch makes the window full
	dropped     bool    // the open micro-batch is left out
	inPlace     bool    // a kernel adds to the open micro-batch
	micro       float64 // its weight
	alpha, beta float32 // its first gradient g gives acc = beta·acc + alpha·g

	stats     Stats
	noise     noise
	overflows []snug.NonFinite
	found     measure.Gather // of the open micro-batch
	reduction

	// Made once, so that calls allocate nothing.
	gradients        iter.Seq2[string, snug.View]
	check, look, add func(name string, g snug.View) bool
	walked           int   // gradients of the walk of AddAll
	walkErr          error // that ended it
}

type param struct {
	Param
	acc     snug.View // its part of the window's vector
	lo      int       // where that begins
	bucket  int
	stream  uint64 // of its random numbers
	added   bool   // has a gradient of the open micro-batch
	inPlace bool   // a kernel adds that one
	arrived bool   // no more gradients come in this window
}

// New returns an empty Window over params. It keeps a copy of params, and the
// values in o. Errors: the errors of [Len]; [snug.ErrConfig] for a schedule whose first
// window has no end, an unknown NonFinitePolicy, a negative Bucket, or a Shard without
// a Reducer; [snug.ErrDType], [snug.ErrShape] and [snug.ErrDevice] for a DType
// or a Buffer that does not fit; without a Buffer [snug.ErrNoMemory] for more elements than
// Go can address. When the system refuses that memory, the process ends, as it does with
// make.
func New(params []Param, o Options) (*Window, error) {
	total, err := Len(params)
	if err != nil {
		return nil, err
	}
	if o.Schedule == nil {
		o.Schedule = Constant(1)
	}
	switch {
	case o.NonFinite != SkipWindow && o.NonFinite != DropMicro:
		return nil, fmt.Errorf("accum: NonFinite is %d, want SkipWindow or DropMicro: %w", o.NonFinite, snug.ErrConfig)
	case o.Bucket < 0:
		return nil, fmt.Errorf("accum: Bucket is %d elements, want 0 or more: %w", o.Bucket, snug.ErrConfig)
	case o.Shard && o.Reducer == nil:
		return nil, fmt.Errorf("accum: Shard wants a Reducer: %w", snug.ErrConfig)
	}
	target := o.Schedule.Target(Progress{})
	if !target.valid() {
		return nil, fmt.Errorf("accum: the schedule ends the first window at %+v, want a limit above 0: %w", target, snug.ErrConfig)
	}
	vector, err := newVector(&o, total)
	if err != nil {
		return nil, err
	}
	w := &Window{
		index: make(map[string]int, len(params)), schedule: o.Schedule, overflow: o.NonFinite,
		measures: o.Measure || o.NonFinite == DropMicro, dtype: vector.DType(), seed: o.Seed, scaler: o.Scaler,
		device: vector.Device(),
	}
	if err := w.layOut(params, vector); err != nil {
		return nil, err
	}
	if err := w.init(w.params, vector, &o); err != nil {
		return nil, err
	}
	w.gradients = w.yieldGradients
	w.check, w.look, w.add = w.checkOne, w.lookOne, w.addOne
	return w, nil
}

// newVector returns the memory of the accumulators.
func newVector(o *Options, n int) (snug.View, error) {
	buffer := o.Buffer
	if o.DType == 0 {
		o.DType = snug.F32
	}
	if o.DType != snug.F32 && o.DType != snug.BF16 {
		return buffer, fmt.Errorf("accum: DType is %s, want f32 or bf16: %w", o.DType, snug.ErrDType)
	}
	if buffer == (snug.View{}) {
		v, _, err := snug.MakeView(snug.CPU(), o.DType, n)
		return v, err
	}
	if buffer.DType() != o.DType {
		return buffer, fmt.Errorf("accum: Buffer is %s, want %s: %w", buffer.DType(), o.DType, snug.ErrDType)
	}
	if buffer.Len() != n {
		return buffer, fmt.Errorf("accum: Buffer has %d elements, want %d: %w", buffer.Len(), n, snug.ErrShape)
	}
	if _, err := snug.CommonDevice(buffer); err != nil {
		return buffer, fmt.Errorf("accum: Buffer: %w", err)
	}
	return buffer, nil
}

// layOut places the parameters in the vector, one after the other.
func (w *Window) layOut(params []Param, vector snug.View) error {
	lo := 0
	for i, p := range params {
		start := lo
		if p.Len == 0 {
			start = 0 // at the end of the vector it would point past it
		}
		acc, err := vector.Slice(start, start+p.Len)
		if err != nil {
			return err
		}
		name := fnv.New64a()
		name.Write([]byte(p.Name)) // never fails
		w.params = append(w.params, param{Param: p, acc: acc, lo: lo, stream: name.Sum64()})
		w.index[p.Name] = i
		lo += p.Len
	}
	return nil
}

// Begin begins a micro-batch. weight is what its gradients, which are means, are means over: its
// samples or its target tokens. A micro-batch of weight 0 counts towards the number of the window's
// micro-batches and contributes nothing, whatever its gradients hold. So for a micro-batch without
// targets call Begin(0) and [Window.End], without a backward pass between them. Where the loss is
// fused's CrossEntropyBackward, weight is the Weight n of its Loss, the targets in this
// micro-batch, and gradScale is 1/n, times the loss scale if there is one.
//
// Errors, all [snug.ErrConfig]: a micro-batch was begun and has not ended, the
// window is full, weight is negative or not finite or differs from the weight
// so far by more than float32 can hold, the schedule gave the window no end, or
// the loss scale has changed within the window by another factor than a power
// of two.
func (w *Window) Begin(weight float64) error {
	if err := w.usable("Begin"); err != nil {
		return err
	}
	target := w.Target()
	switch {
	case w.open:
		return fmt.Errorf("accum: Begin: call End first, a micro-batch is open: %w", snug.ErrConfig)
	case w.full:
		return fmt.Errorf("accum: Begin: call Reset first, the window is full: %w", snug.ErrConfig)
	case !target.valid():
		return fmt.Errorf("accum: Begin: the schedule ends window %d at %+v, want a limit above 0: %w", w.progress.Step, target, snug.ErrConfig)
	case !(weight >= 0) || math.IsInf(w.weight+weight, 0):
		return fmt.Errorf("accum: Begin: weight is %v, want a finite number, 0 or more: %w", weight, snug.ErrConfig)
	}
	alpha, beta := factors(w.weight, weight)
	if weight > 0 && alpha == 0 || w.weight > 0 && beta == 0 {
		return fmt.Errorf("accum: Begin: weight is %v, too far from the %v so far: %w", weight, w.weight, snug.ErrConfig)
	}
	if err := w.follow(); err != nil {
		return fmt.Errorf("accum: Begin: %w", err)
	}
	w.open, w.dropped, w.inPlace, w.micro, w.alpha, w.beta = true, false, false, weight, alpha, beta
	w.target, w.last = target, target.reached(w.micros+1, w.weight+weight)
	w.found.Reset()
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
// window's mean until Reset. With a Reducer it then waits until all gradients are
// reduced.
//
// The error wraps [snug.ErrConfig] when no micro-batch is open, and is otherwise
// of the device, of OnBucket or of the Reducer; the window must then be Reset.
func (w *Window) End() (full bool, err error) {
	if err := w.usable("End"); err != nil {
		return false, err
	}
	if !w.open {
		return false, fmt.Errorf("accum: End: call Begin first, no micro-batch is open: %w", snug.ErrConfig)
	}
	w.half = "End"
	if err := w.settle(); err != nil {
		return false, err
	}
	if err := w.measured(); err != nil {
		return false, fmt.Errorf("accum: End: %w", err)
	}
	if w.dropped {
		w.stats.Dropped++
	} else {
		w.weight += w.micro
	}
	w.open = false
	w.micros++
	w.stats.Micros++
	if w.target.reached(w.micros, w.weight) {
		err = w.fill("End")
	}
	if err == nil {
		w.half = ""
	}
	return w.full, err
}

// fill makes the window full.
func (w *Window) fill(op string) error {
	if err := w.finish(); err != nil {
		return fmt.Errorf("accum: %s: %w", op, err)
	}
	w.full = true
	return nil
}

// settle gives parameters that were not added a gradient of zero. While
// nothing counts yet the mean is zero, not what the vector held.
func (w *Window) settle() error {
	counts := w.micro > 0 && !w.dropped
	if !counts && w.weight > 0 {
		return nil
	}
	beta := w.beta
	if w.weight == 0 {
		beta = 0
	}
	err := w.multiply(beta, func(p *param) bool { return counts && p.added })
	return fault.Of(err, "accum: End")
}

// multiply multiplies the mean of every parameter by beta, and leaves out those for which skip, unless nil, returns true. A
// beta of 0 writes zeros, whatever was there.
func (w *Window) multiply(beta float32, skip func(*param) bool) (err error) {
	device.Hold(w.device)
	defer func() { err = errors.Join(err, device.Release(w.device)) }()
	for i := range w.params {
		p := &w.params[i]
		if skip != nil && skip(p) {
			continue
		}
		if err := w.accumulate(p, snug.View{}, 0, beta); err != nil {
			return fmt.Errorf("parameter %q: %w", p.Name, err)
		}
	}
	return nil
}

// Flush makes a window full that has at least one micro-batch, at the end of an
// epoch, and reports whether it is full. With a Reducer all ranks call it, also
// those without a micro-batch; the window is full if one of them has any.
//
// The error wraps [snug.ErrConfig] when a micro-batch is open, and is otherwise
// the error of [Window.End].
func (w *Window) Flush() (full bool, err error) {
	if err := w.usable("Flush"); err != nil {
		return false, err
	}
	switch {
	case w.open:
		return false, fmt.Errorf("accum: Flush: call End first, a micro-batch is open: %w", snug.ErrConfig)
	case w.full:
		return true, nil
	case w.micros == 0 && w.reducer == nil:
		return false, nil
	}
	w.target = w.Target()
	w.half = "Flush"
	if w.micros == 0 {
		if err := w.multiply(0, nil); err != nil {
			return false, fmt.Errorf("accum: Flush: %w", err)
		}
	}
	if err := w.fill("Flush"); err != nil {
		return false, err
	}
	w.half, w.full = "", w.reducer == nil || w.total.micros > 0
	return w.full, nil
}

// Reset begins the next window. One that was not full is thrown away, also
// within a micro-batch, and its step begins anew. It waits for a reduction that is
// under way.
func (w *Window) Reset() {
	if w.full {
		w.progress = Progress{w.progress.Step + 1, w.progress.Weight + w.weight}
		w.stats.Windows++
	}
	w.empty()
}

// Skip is Reset for a window whose gradients were not used, because they are
// not finite. Stats counts it.
func (w *Window) Skip() {
	w.Reset()
	w.stats.Skipped++
}

func (w *Window) empty() {
	w.micros, w.weight, w.full, w.open, w.half = 0, 0, false, false, ""
	w.noise, w.overflows = noise{}, w.overflows[:0]
	w.reduction.reset()
	for i := range w.params {
		w.params[i].arrived = false
	}
}

// follow takes the loss scale that losses will be multiplied by.
func (w *Window) follow() error {
	if w.scaler == nil {
		return nil
	}
	scale := w.scaler.Scale()
	if w.weight > 0 && scale != w.scale {
		if err := w.Rescale(scale / w.scale); err != nil {
			return fmt.Errorf("the loss scale went from %v to %v: %w", w.scale, scale, err)
		}
	}
	w.scale = scale
	return nil
}

// Rescale multiplies what a window has accumulated by factor, a power of two,
// which is exact unless an element leaves the range of normal numbers: when a
// loss scale has changed within a window, micro-batches before and after it fit
// together again. With Options.Scaler, Begin does so.
//
// The error wraps [snug.ErrConfig] while a micro-batch is open and for another
// factor.
func (w *Window) Rescale(factor float32) error {
	if err := w.usable("Rescale"); err != nil {
		return err
	}
	if fraction, _ := math.Frexp(float64(factor)); fraction != 0.5 || math.IsInf(float64(1/factor), 0) {
		return fmt.Errorf("accum: Rescale by %v, want a power of two: %w", factor, snug.ErrConfig)
	}
	if w.open {
		return fmt.Errorf("accum: Rescale: call End first, a micro-batch is open: %w", snug.ErrConfig)
	}
	if w.weight == 0 {
		return nil
	}
	w.half = "Rescale"
	if err := w.multiply(factor, nil); err != nil {
		return fmt.Errorf("accum: Rescale: %w", err)
	}
	w.noise.rescale(float64(factor))
	w.half = ""
	return nil
}

// Weight returns the weight of the micro-batches of this window that ended and
// were not dropped, on this rank. 0 means that its gradients are zero for want
// of data: [Window.Total] says so for all ranks.
func (w *Window) Weight() float64 { return w.weight }

// Total returns the weight of a full window over all ranks: Weight, without a
// Reducer and before the window is full. A window whose Total is 0 has gradients of zero, and no step should
// follow it.
func (w *Window) Total() float64 {
	if w.reducer == nil || !w.full {
		return w.weight
	}
	return w.total.weight
}

// Micros returns how many micro-batches of this window ended.
func (w *Window) Micros() int { return w.micros }

// Target returns when this window is full: before its first micro-batch what the Schedule
// says now, from then on what it said when that began.
func (w *Window) Target() Target {
	if w.micros > 0 || w.open || w.full || w.schedule == nil {
		return w.target
	}
	return w.schedule.Target(w.progress)
}

// Progress returns what the windows before this one have seen.
func (w *Window) Progress() Progress { return w.progress }

// Len returns the elements that the window holds, 4 bytes each in float32 and 2
// in bfloat16.
func (w *Window) Len() int {
	n := 0
	for i := range w.params {
		n += w.params[i].Len
	}
	return n
}

// Stats returns the counts so far.
func (w *Window) Stats() Stats { return w.stats }
