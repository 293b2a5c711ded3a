package accum

import (
	"fmt"
	"iter"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/device"
)

// Add adds the gradient of one parameter to the open micro-batch:
//
//	acc = float32(n/N)·g + float32(1 − n/N)·acc
//
// with both products rounded (and in bfloat16 the sum at random), once for each
// name. g is the mean over the
// micro-batch, of the parameter's length, of any floating-point type, on the
// window's device, outside its bucket; it is not kept. Errors, with nothing
// written: [snug.ErrConfig] when no micro-batch is open, for an unknown name or
// one that was added, and with DropMicro; [snug.ErrDType], [snug.ErrShape],
// [snug.ErrDevice]. Errors of OnBucket are wrapped.
func (w *Window) Add(name string, g snug.View) error {
	p, err := w.find("Add", name)
	if err == nil {
		err = w.fits("Add", p, g)
	}
	if err != nil {
		return err
	}
	return w.whole("Add", func() error { return w.enter("Add", p, g) })
}

// Into hands out the accumulator of one parameter to a kernel that adds to it
// in place:
//
//	acc = Beta·acc + Alpha·g
//
// The kernel computes the gradient g, a mean over the micro-batch, and takes Alpha and
// Beta from into, whose Alpha is never 0. It must not read acc when Beta is 0: acc then holds
// old numbers, and 0 times a NaN is a NaN. With a as acc.Float32s():
//
//	if into.Beta == 0 {
//		clear(a)
//	}
//	for i := range a {
//		a[i] = into.Beta*a[i] + into.Alpha*g[i]
//	}
//
// Further calls for the same name in one micro-batch return a Beta of 1, so that
// several contributions to one parameter (tied weights) add up. Every call must be followed
// by its kernel; when that fails, the mean is not right any more, and the window must be
// [Window.Reset]. acc is float32 and valid until End, or until [Window.Done].
//
// The error wraps [snug.ErrConfig] when no micro-batch is open, for an unknown
// name, with DropMicro, with an accumulator of bfloat16, after Done, with Measure
// after Add, and for a micro-batch of weight 0, which has nothing to add: skip its
// backward pass.
func (w *Window) Into(name string) (acc snug.View, into snug.Into, err error) {
	p, err := w.find("Into", name)
	if err != nil {
		return snug.View{}, snug.Into{}, err
	}
	switch {
	case w.dtype != snug.F32:
		return snug.View{}, snug.Into{}, fmt.Errorf("accum: Into: parameter %q: a window of %s takes gradients by Add and AddAll: %w", name, w.dtype, snug.ErrConfig)
	case p.arrived || w.measures && p.added && !p.inPlace:
		return snug.View{}, snug.Into{}, fmt.Errorf("accum: Into: parameter %q is done, or was measured when it was added: %w", name, snug.ErrConfig)
	case w.micro == 0:
		return snug.View{}, snug.Into{}, fmt.Errorf("accum: Into: parameter %q: the micro-batch has weight 0, skip its backward pass: %w", name, snug.ErrConfig)
	}
	into = snug.Into{Alpha: w.alpha, Beta: w.beta}
	if p.added {
		into.Beta = 1
	}
	p.added, p.inPlace, w.inPlace = true, true, true
	return p.acc, into, nil
}

// Completer is a window that learns when the gradient of a parameter is complete: [Window] and [Sharded] are.
type Completer interface {
	Done(name string) error
}

// OneHolder is a window that holds one gradient at a time if HoldsOne returns true: it saves memory if the gradient of a
// parameter is complete, see [Completer], before the next one begins.
type OneHolder interface {
	HoldsOne() bool
}

// Done says that no kernel adds to a parameter after this in the open
// micro-batch, whose accumulator [Window.Into] has handed out. In the last
// micro-batch of a window its bucket then need not wait for End. The error wraps
// [snug.ErrConfig] when Into was not called for it in this micro-batch, or Done
// was, and is otherwise an error of the device or of OnBucket.
func (w *Window) Done(name string) error {
	p, err := w.find("Done", name)
	if err != nil {
		return err
	}
	if !p.added || !p.inPlace {
		return fmt.Errorf("accum: Done: parameter %q: call Into first: %w", name, snug.ErrConfig)
	}
	return w.whole("Done", func() error {
		if err := w.measureInPlace(p); err != nil {
			return fmt.Errorf("accum: Done: parameter %q: %w", name, err)
		}
		return w.arrive("Done", p)
	})
}

// find returns a parameter that Add or Into may change.
func (w *Window) find(op, name string) (*param, error) {
	if err := w.usable(op); err != nil {
		return nil, err
	}
	if !w.open {
		return nil, fmt.Errorf("accum: %s: call Begin first, no micro-batch is open: %w", op, snug.ErrConfig)
	}
	if w.overflow == DropMicro {
		return nil, fmt.Errorf("accum: %s: DropMicro takes gradients by AddAll only: %w", op, snug.ErrConfig)
	}
	return w.lookup(op, name)
}

func (w *Window) lookup(op, name string) (*param, error) {
	i, found := w.index[name]
	if !found {
		return nil, fmt.Errorf("accum: %s: no parameter %q: %w", op, name, snug.ErrConfig)
	}
	return &w.params[i], nil
}

// fits returns an error unless g can be the gradient of p.
func (w *Window) fits(op string, p *param, g snug.View) error {
	if p.added {
		return fmt.Errorf("accum: %s: parameter %q was added to this micro-batch before: %w", op, p.Name, snug.ErrConfig)
	}
	if !g.DType().IsFloat() {
		return fmt.Errorf("accum: %s: gradient %q is %s, want f32, f16 or bf16: %w", op, p.Name, g.DType(), snug.ErrDType)
	}
	if g.Len() != p.Len {
		return fmt.Errorf("accum: %s: gradient %q has %d elements, want %d: %w", op, p.Name, g.Len(), p.Len, snug.ErrShape)
	}
	if _, err := snug.CommonDevice(p.acc, g); err != nil {
		return fmt.Errorf("accum: %s: gradient %q: %w", op, p.Name, err)
	}
	return nil
}

// enter adds a gradient that fits.
func (w *Window) enter(op string, p *param, g snug.View) error {
	p.added = true
	if w.micro > 0 {
		if err := w.accumulate(p, g, w.alpha, w.beta); err != nil {
			return fmt.Errorf("accum: %s: gradient %q: %w", op, p.Name, err)
		}
	}
	return w.arrive(op, p)
}

// accumulate queues acc = alpha·g + beta·acc for a parameter, and measures g
// where that is wanted. An empty g is zero.
func (w *Window) accumulate(p *param, g snug.View, alpha, beta float32) error {
	measured := w.measures && w.overflow != DropMicro
	switch {
	case p.Len == 0:
		return nil
	case g.Len() == 0:
		return w.decay(w.device, p, beta, w.roundingSeed(g))
	case w.dtype == snug.F32 && measured:
		return w.measure(p, p.acc, g, alpha, beta)
	case w.dtype == snug.F32:
		return accumulateJob{acc: p.acc, g: g, alpha: alpha, beta: beta}.launch(w.device)
	case measured:
		if err := w.measure(p, snug.View{}, g, 0, 0); err != nil {
			return err
		}
	}
	return roundedJob{acc: p.acc, g: g, alpha: alpha, beta: beta, seed: w.roundingSeed(g), tensor: p.stream}.launch(w.device)
}

// roundingSeed returns another seed for every rounding of an element: one of a
// micro-batch is that which adds g, the other, without g, decays or weights it.
func (w *Window) roundingSeed(g snug.View) uint64 {
	seed := w.seed + 2*uint64(w.stats.Micros)
	if g.Len() == 0 {
		seed++
	}
	return seed
}

// AddAll adds all gradients of the open micro-batch, as [Window.Add] does for
// each; gradients of parameters that grads does not yield are zero. With DropMicro
// it looks for NaNs and infinities first, in one more pass that waits for the
// device, and returns false when it found any: the micro-batch is then left
// out, and [Window.NonFinite] says where they were.
//
// It is called once in a micro-batch, instead of Add and Into, and walks more
// than once: grads must yield the same every time. When the first walk fails or panics,
// nothing has changed. Errors, with nothing
// written, are the errors of Add, and [snug.ErrConfig] when grads is nil or a
// gradient was added before. When grads does not yield the same again, which
// is [snug.ErrConfig] too, or work on the device fails, the window must be
// Reset.
func (w *Window) AddAll(grads iter.Seq2[string, snug.View]) (added bool, err error) {
	if err := w.usable("AddAll"); err != nil {
		return false, err
	}
	switch {
	case !w.open:
		return false, fmt.Errorf("accum: AddAll: call Begin first, no micro-batch is open: %w", snug.ErrConfig)
	case grads == nil:
		return false, fmt.Errorf("accum: AddAll: no gradients, the walker is nil: %w", snug.ErrConfig)
	case w.dropped || slices.ContainsFunc(w.params, func(p param) bool { return p.added }):
		return false, fmt.Errorf("accum: AddAll: gradients were added to this micro-batch before: %w", snug.ErrConfig)
	}
	if err := w.walk(grads, w.check); err != nil {
		return false, err
	}
	checked := w.walked
	if w.overflow == DropMicro && w.micro > 0 {
		err = w.inspect(grads, checked)
	}
	if err == nil && !w.dropped {
		err = w.walkAgain(grads, w.add, checked)
	}
	if err != nil {
		return false, err
	}
	w.half = "" // which the first gradient has set
	return !w.dropped, nil
}

// walk calls visit for every gradient. It leaves no added flag of a walk that
// failed or went before.
func (w *Window) walk(grads iter.Seq2[string, snug.View], visit func(string, snug.View) bool) (err error) {
	w.walked, w.walkErr = 0, nil
	w.forget()
	ended := false
	device.Hold(w.device)
	defer func() {
		if e := device.Release(w.device); w.walkErr == nil && e != nil {
			w.walkErr, err = e, fmt.Errorf("accum: AddAll: %w", e)
		}
		if !ended || w.walkErr != nil {
			w.forget()
		}
	}()
	grads(visit)
	ended = true
	return w.walkErr
}

// walkAgain is walk for gradients that were checked; there must be as
// many.
func (w *Window) walkAgain(grads iter.Seq2[string, snug.View], visit func(string, snug.View) bool, checked int) error {
	err := w.walk(grads, visit)
	if err == nil && w.walked != checked {
		err = fmt.Errorf("accum: AddAll: the walker yielded %d gradients, then %d, want the same again: %w", checked, w.walked, snug.ErrConfig)
	}
	return err
}

// forget clears the added flags.
func (w *Window) forget() {
	for i := range w.params {
		w.params[i].added, w.params[i].inPlace = false, false
	}
}

// checkOne checks a gradient, and marks it to find one that comes twice.
func (w *Window) checkOne(name string, g snug.View) bool {
	if w.walkErr != nil {
		return false // to a walker that goes on though it was told to stop
	}
	p, err := w.lookup("AddAll", name)
	if err == nil {
		err = w.fits("AddAll", p, g)
	}
	if w.walkErr = err; err != nil {
		return false
	}
	p.added = true
	w.walked++
	return true
}

// addOne adds a gradient, which it checks again: the walker is not ours.
func (w *Window) addOne(name string, g snug.View) bool {
	if !w.checkOne(name, g) {
		return false
	}
	w.half = "AddAll"
	w.walkErr = w.enter("AddAll", &w.params[w.index[name]], g)
	return w.walkErr == nil
}
