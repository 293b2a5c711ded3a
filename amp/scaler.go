package amp

import (
	"fmt"
	"iter"
	"math"

	"github.com/snug-ml/snug"
)

// Scaler is loss scaling, the state machine of torch.amp.GradScaler. The caller
// multiplies the gradient of the loss by Scale, so that small gradients do not
// vanish in float16. For each optimizer, Unscale divides the gradients by it and
// looks for overflows, and Step runs the optimizer unless there was one. Update
// then sets the scale of the next step: it backs off after an overflow and grows
// after Interval steps without.
//
// The optimizer's name stands for a set of gradients: an overflow skips the
// steps of that set only, and backs off the scale that all share. An optimizer
// is ready, unscaled or stepped, and Update makes all of them ready. Where a walk over
// gradients stops half-way, by an error or a panic of the walker, they are undefined: calls
// for that optimizer are errors until Update. Keep the
// scale for all micro-batches of an accumulation window: call Update between
// windows.
//
// A Scaler keeps no gradients and a few bytes for each optimizer. It is not
// safe for concurrent use.
type Scaler struct {
	opts       ScalerOptions // with defaults
	scale      float32       // before it is rounded to a power of two
	used       bool          // Scale was called
	tracker    int           // finite steps in a row
	patience   int           // overflows until the scale backs off
	optimizers map[string]progress
	began      bool // a walk has changed gradients
}

// progress is how far one optimizer is in the current step. An optimizer that is not in
// the map is ready.
type progress struct {
	stats   Stats // of its gradients, unscaled and clipped
	stepped bool
	failed  bool // a walk has stopped half-way, so that the gradients are undefined
}

// NewScaler returns a Scaler. The error wraps [snug.ErrConfig].
func NewScaler(o ScalerOptions) (*Scaler, error) {
	o = o.withDefaults()
	if err := o.check(); err != nil {
		return nil, err
	}
	return &Scaler{opts: o, scale: o.Init, patience: o.Hysteresis, optimizers: map[string]progress{}}, nil
}

// Scale returns the loss scale of the current step, by which the caller
// multiplies the loss or its gradient. It is 0 for a Scaler that was not made by
// NewScaler; every other method of such a Scaler returns an error.
func (s *Scaler) Scale() float32 {
	s.used = true
	return s.current()
}

func (s *Scaler) current() float32 {
	switch {
	case s.opts.Mode == Disabled:
		return 1
	case s.opts.PowerOfTwo:
		return powerBelow(s.scale)
	}
	return s.scale
}

// SetInterval changes the number of finite steps before the scale grows. When
// that many have gone by already, it grows at the next Update. The error wraps
// [snug.ErrConfig].
func (s *Scaler) SetInterval(steps int) error {
	if err := s.made("SetInterval"); err != nil {
		return err
	}
	o := s.opts
	o.Interval = steps
	if err := o.check(); err != nil {
		return err
	}
	s.opts = o
	return nil
}

// Unscale multiplies the gradients of an optimizer, of float32 or bfloat16, by
// the reciprocal of the scale, float32(1/float64(scale)), and returns their
// statistics, all in one pass over each gradient: it counts the products that
// are not finite and sums the squares in float64. The result is latched: it
// decides whether Step steps, even if the gradients change in between. It
// waits for the device. The products do not depend on the CPU or the device;
// Norm does not depend on GOMAXPROCS and is within 2^-53·Elements of the exact
// norm, relatively.
//
// Errors, with nothing written: [snug.ErrConfig] when the optimizer's
// gradients were unscaled since the last Update, when Scale was never called, so
// that no loss can have been scaled, when grads is nil, or when it yields nothing, as a
// window of package accum does before its first micro-batch has ended, while one is open,
// and, with a Reducer, until it is full; [snug.ErrDType] for a
// gradient of float16, in which unscaling would lose what the scale has saved;
// [snug.ErrDevice]. When grads does not yield the same twice, which is
// [snug.ErrConfig] too, or work on the device fails, the gradients are
// undefined.
func (s *Scaler) Unscale(optimizer string, grads iter.Seq2[string, snug.View]) (Stats, error) {
	if err := s.ready("Unscale", optimizer); err != nil {
		return Stats{}, err
	}
	factor := float32(1 / float64(s.current()))
	s.began = false
	defer s.settle(optimizer)
	stats, err := pass{op: "Unscale", began: &s.began, factor: factor, limit: noLimit, noF16: s.opts.Mode != Disabled}.run(grads)
	if err != nil {
		return Stats{}, err
	}
	s.optimizers[optimizer], s.began = progress{stats: stats}, false
	return stats, nil
}

// Join is for ranks that each unscale a part of the gradients. It replaces what Unscale has found in this rank's part by
// the statistics of all parts: Step, Clip and Update decide by these. Only NonFinite and Norm matter. The error wraps
// [snug.ErrConfig] when the optimizer was not unscaled, or was stepped.
func (s *Scaler) Join(optimizer string, all Stats) error {
	_, err := s.clip("Join", optimizer, func(progress) (Stats, error) { return all, nil })
	if err == nil {
		s.optimizers[optimizer] = progress{stats: all} // of gradients that are not finite here too
	}
	return err
}

// settle notes that the gradients of an optimizer are undefined where a walk has begun and
// has not ended well, also by a panic.
func (s *Scaler) settle(optimizer string) {
	if s.began {
		s.optimizers[optimizer], s.began = progress{failed: true}, false
	}
}

// made returns an error for the zero value.
func (s *Scaler) made(op string) error {
	if s.optimizers == nil {
		return fmt.Errorf("amp: %s: the scaler was not made by NewScaler: %w", op, snug.ErrConfig)
	}
	return nil
}

// ready returns an error unless gradients may be unscaled.
func (s *Scaler) ready(op, name string) error {
	if err := s.made(op); err != nil {
		return err
	}
	if s.optimizers[name].failed {
		return undefined(op, name)
	}
	if o, found := s.optimizers[name]; found {
		return fmt.Errorf("amp: %s: optimizer %q was %s since the last Update: %w", op, name, o, snug.ErrConfig)
	}
	if !s.used && s.opts.Mode != Disabled {
		return fmt.Errorf("amp: %s: no loss was scaled, Scale was never called: %w", op, snug.ErrConfig)
	}
	return nil
}

// undefined is the error of gradients that are half unscaled or half clipped.
func undefined(op, name string) error {
	return fmt.Errorf("amp: %s: a walk over the gradients of optimizer %q stopped half-way, call Update: %w", op, name, snug.ErrConfig)
}

// skips reports whether the optimizer is not stepped.
func (s *Scaler) skips(o progress) bool { return o.stats.NonFinite > 0 && s.opts.Mode != Disabled }

func (o progress) String() string {
	if o.stepped {
		return "stepped"
	}
	return "unscaled"
}

// Clip is the function [Clip] for gradients of an optimizer that were unscaled,
// with the norm that was found then. It checks the products: an overflow that
// came since is latched, as one that Unscale finds. Gradients with an overflow,
// which will not be stepped, it leaves as they are.
//
// The errors are the errors of Clip, and [snug.ErrConfig] when the optimizer was not
// unscaled or was stepped since the last Update.
func (s *Scaler) Clip(optimizer string, grads iter.Seq2[string, snug.View], maxNorm float64) (Stats, error) {
	return s.clip("Clip", optimizer, func(o progress) (Stats, error) { return clip(grads, o.stats.Norm, maxNorm, &s.began) })
}

// ClipValue is [Scaler.Clip] with the function [ClipValue].
func (s *Scaler) ClipValue(optimizer string, grads iter.Seq2[string, snug.View], limit float32) (Stats, error) {
	return s.clip("ClipValue", optimizer, func(progress) (Stats, error) { return clipValue(grads, limit, &s.began) })
}

func (s *Scaler) clip(op, name string, run func(progress) (Stats, error)) (Stats, error) {
	if err := s.made(op); err != nil {
		return Stats{}, err
	}
	o, found := s.optimizers[name]
	if o.failed {
		return Stats{}, undefined(op, name)
	}
	if !found || o.stepped {
		return Stats{}, fmt.Errorf("amp: %s: optimizer %q was not unscaled since the last Update, or was stepped: %w", op, name, snug.ErrConfig)
	}
	if o.stats.NonFinite > 0 {
		return o.stats, nil
	}
	s.began = false
	defer s.settle(name)
	stats, err := run(o)
	if err != nil {
		return Stats{}, err
	}
	s.optimizers[name], s.began = progress{stats: stats}, false
	return stats, nil
}

// Step calls step once if all gradients of the optimizer are finite, and
// reports whether it did. Unless Unscale was called since the last Update, it
// unscales grads first; otherwise it does not look at grads, which may be nil.
// It returns the error of step unchanged, and lets its panics through. After either, Step
// may be called again: step then runs from its beginning, and must itself pass over the
// parameters that it has updated before. An optimizer's count of steps goes up within
// step, as by quant8's Advance, so that skipped steps do not count.
//
// Other errors are the errors of [Scaler.Unscale], and [snug.ErrConfig] when step is
// nil or when Step was called for the optimizer since the last Update.
func (s *Scaler) Step(optimizer string, grads iter.Seq2[string, snug.View], step func() error) (stepped bool, err error) {
	if step == nil {
		return false, fmt.Errorf("amp: Step: the function of optimizer %q is nil: %w", optimizer, snug.ErrConfig)
	}
	if _, found := s.optimizers[optimizer]; !found {
		if _, err := s.Unscale(optimizer, grads); err != nil {
			return false, fmt.Errorf("amp: Step: optimizer %q was not unscaled since the last Update: %w", optimizer, err)
		}
	}
	o := s.optimizers[optimizer]
	switch {
	case o.failed:
		return false, undefined("Step", optimizer)
	case o.stepped:
		return false, fmt.Errorf("amp: Step: optimizer %q was stepped since the last Update: %w", optimizer, snug.ErrConfig)
	}
	if !s.skips(o) {
		if err := step(); err != nil {
			return false, err
		}
	}
	o.stepped = true
	s.optimizers[optimizer] = o
	return !s.skips(o), nil
}

// Update ends the step of all optimizers and sets the scale of the next. The
// error wraps [snug.ErrConfig] when no gradient was unscaled since the last
// Update. With FloorError it wraps [snug.ErrNonFinite] when gradients overflowed
// at the least scale; the step has ended then too, and training may go on.
func (s *Scaler) Update() error {
	if err := s.made("Update"); err != nil {
		return err
	}
	if s.opts.Mode == Disabled {
		clear(s.optimizers)
		return nil
	}
	overflow, checked := "", false
	for name, o := range s.optimizers {
		checked = checked || !o.failed
		if s.skips(o) && (overflow == "" || name < overflow) {
			overflow = name
		}
	}
	if len(s.optimizers) == 0 {
		return fmt.Errorf("amp: Update: no gradient was unscaled since the last Update: %w", snug.ErrConfig)
	}
	if !checked { // every walk stopped half-way, so the scale learns nothing
		clear(s.optimizers)
		return nil
	}
	if s.opts.Mode == Dynamic && overflow == "" {
		s.advance()
	} else if s.opts.Mode == Dynamic && !s.backOff() && s.opts.FloorError {
		stats := s.optimizers[overflow].stats
		clear(s.optimizers)
		return fmt.Errorf("amp: Update: gradients of optimizer %q overflow at the least scale, %v: %w", overflow, s.scale, stats.Err())
	}
	clear(s.optimizers)
	return nil
}

// UpdateTo ends the step of all optimizers, as Update does, and sets the scale
// of the next to scale. As in torch's update(new_scale), the count of finite
// steps goes on, and nothing need have been unscaled. The error wraps
// [snug.ErrConfig] when scale is not between Floor and Cap; nothing has changed
// then.
func (s *Scaler) UpdateTo(scale float32) error {
	if err := s.made("UpdateTo"); err != nil {
		return err
	}
	if !s.opts.inRange(scale) {
		return fmt.Errorf("amp: UpdateTo: the scale is %v, want Floor %v or more and at most Cap %v: %w", scale, s.opts.Floor, s.opts.Cap, snug.ErrConfig)
	}
	clear(s.optimizers)
	s.scale = scale
	return nil
}

// backOff notes an overflow. It returns false when the scale should shrink and
// cannot.
func (s *Scaler) backOff() bool {
	s.tracker = 0
	if s.patience--; s.patience > 0 {
		return true
	}
	s.patience = 0
	before := s.scale
	s.scale = max(float32(float64(before)*s.opts.Backoff), s.opts.Floor)
	return s.scale < before
}

// advance notes a finite step. torch compares the tracker with ==, so that
// there an interval lowered below the tracker ends growth for good.
func (s *Scaler) advance() {
	if s.tracker++; s.tracker < s.opts.Interval {
		return
	}
	s.tracker, s.patience = 0, s.opts.Hysteresis
	grown := float32(float64(s.scale) * s.opts.Growth)
	if s.opts.Cap > 0 {
		grown = min(grown, s.opts.Cap)
	}
	if !math.IsInf(float64(grown), 0) {
		s.scale = grown
	}
}
