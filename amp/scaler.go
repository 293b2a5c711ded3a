package amp

import (
	"fmt"
	"iter"
	"math"

	"github.com/snug-ml/snug"
)

// ScalerOptions configures a [Scaler]. The zero value has the defaults of
// torch.amp.GradScaler.
type ScalerOptions struct {
	Init     float32 // first loss scale; 0 means 65536
	Growth   float32 // factor of growth, above 1; 0 means 2
	Backoff  float32 // factor after an overflow, between 0 and 1; 0 means 0.5
	Interval int     // finite steps in a row before the scale grows; 0 means 2000

	// Floor is the least scale. 0 means 2^-126, the least whose reciprocal is
	// finite. Init, Floor and Cap of 1 make a scaler that never scales, yet
	// skips steps with non-finite gradients, as bfloat16 training wants.
	Floor float32
	// Cap is the greatest scale; 0 means none. Without one the scale stops
	// growing before it becomes infinite.
	Cap float32
	// Hysteresis is the number of overflows, since the scale last had its
	// chance to grow, that it takes for the scale to back off, as in DeepSpeed
	// and Megatron-LM; 0 means 1.
	Hysteresis int
}

// minScale is the least scale whose reciprocal float32 holds.
const minScale = 0x1p-126

func (o ScalerOptions) withDefaults() ScalerOptions {
	setDefault(&o.Init, 65536)
	setDefault(&o.Growth, 2)
	setDefault(&o.Backoff, 0.5)
	setDefault(&o.Interval, 2000)
	setDefault(&o.Floor, minScale)
	setDefault(&o.Hysteresis, 1)
	return o
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// check returns an error unless o, with its defaults, is in range.
func (o ScalerOptions) check() error {
	switch {
	case !(o.Growth > 1) || math.IsInf(float64(o.Growth), 0):
		return fmt.Errorf("amp: scaler: Growth is %v, want above 1 and finite: %w", o.Growth, snug.ErrConfig)
	case !(o.Backoff > 0 && o.Backoff < 1):
		return fmt.Errorf("amp: scaler: Backoff is %v, want between 0 and 1: %w", o.Backoff, snug.ErrConfig)
	case o.Interval < 1:
		return fmt.Errorf("amp: scaler: Interval is %d, want 1 or more: %w", o.Interval, snug.ErrConfig)
	case !(o.Floor >= minScale):
		return fmt.Errorf("amp: scaler: Floor is %v, want 2^-126 or more: %w", o.Floor, snug.ErrConfig)
	case !(o.Cap >= 0) || math.IsInf(float64(o.Cap), 0):
		return fmt.Errorf("amp: scaler: Cap is %v, want a finite number, 0 for none: %w", o.Cap, snug.ErrConfig)
	case !o.inRange(o.Init):
		return fmt.Errorf("amp: scaler: Init is %v, want Floor %v or more and at most Cap %v: %w", o.Init, o.Floor, o.Cap, snug.ErrConfig)
	case o.Hysteresis < 1:
		return fmt.Errorf("amp: scaler: Hysteresis is %d, want 1 or more: %w", o.Hysteresis, snug.ErrConfig)
	}
	return nil
}

// inRange reports whether scale lies between Floor and Cap, or is finite
// without a Cap.
func (o ScalerOptions) inRange(scale float32) bool {
	return scale >= o.Floor && scale <= math.MaxFloat32 && (o.Cap == 0 || scale <= o.Cap)
}

// Scaler is dynamic loss scaling, the state machine of torch.amp.GradScaler.
// The caller multiplies the gradient of the loss by Scale, so that small
// gradients do not vanish in float16. For each optimizer, Unscale divides the
// gradients by it and looks for overflows, and Step runs the optimizer unless
// there was one. Update then sets the scale of the next step: it backs off
// after an overflow and grows after Interval steps without.
//
// The optimizer's name stands for a set of gradients: an overflow skips the
// steps of that set only, and backs off the scale that all share. Keep the
// scale for all micro-batches of an accumulation window: call Update between
// windows.
//
// A Scaler keeps no gradients and a few bytes for each optimizer. It is not
// safe for concurrent use.
type Scaler struct {
	opts       ScalerOptions // with defaults
	scale      float32
	tracker    int // finite steps in a row
	patience   int // overflows until the scale backs off
	optimizers map[string]optimizer
}

// optimizer is the progress of one optimizer in the current step. One that the
// map lacks is ready.
type optimizer struct {
	overflow bool
	stepped  bool
}

// NewScaler returns a Scaler. The error wraps [snug.ErrConfig].
func NewScaler(o ScalerOptions) (*Scaler, error) {
	o = o.withDefaults()
	if err := o.check(); err != nil {
		return nil, err
	}
	return &Scaler{opts: o, scale: o.Init, patience: o.Hysteresis, optimizers: map[string]optimizer{}}, nil
}

// Scale returns the loss scale of the current step.
func (s *Scaler) Scale() float32 { return s.scale }

// SetInterval changes the number of finite steps before the scale grows. When
// that many have gone by already, it grows at the next Update. The error wraps
// [snug.ErrConfig].
func (s *Scaler) SetInterval(steps int) error {
	o := s.opts
	o.Interval = steps
	if err := o.check(); err != nil {
		return err
	}
	s.opts = o
	return nil
}

// Unscale multiplies the float32 gradients of an optimizer by the reciprocal
// of the scale, float32(1/float64(scale)), and returns their statistics, all
// in one pass over each gradient: it counts the products that are not finite
// and sums the squares in float64. It waits for the device. The products do
// not depend on the CPU or the device; Norm does not depend on GOMAXPROCS and
// is within 2^-53·Elements of the exact one, relatively.
//
// Errors, with nothing written: [snug.ErrConfig] when the optimizer's
// gradients were unscaled since the last Update, or when grads is nil;
// [snug.ErrDType] when a gradient is not float32; [snug.ErrDevice]. When grads
// does not yield the same twice, which is [snug.ErrConfig] too, or work on the
// device fails, the gradients are undefined.
func (s *Scaler) Unscale(optimizer string, grads iter.Seq2[string, snug.View]) (Stats, error) {
	if s.optimizers == nil {
		return Stats{}, fmt.Errorf("amp: Unscale: the scaler was not made by NewScaler: %w", snug.ErrConfig)
	}
	if o, found := s.optimizers[optimizer]; found {
		return Stats{}, fmt.Errorf("amp: Unscale: optimizer %q was %s since the last Update: %w", optimizer, o, snug.ErrConfig)
	}
	stats, err := sweepGradients("Unscale", grads, float32(1/float64(s.scale)), true)
	if err != nil {
		return Stats{}, err
	}
	s.note(optimizer, stats.NonFinite > 0)
	return stats, nil
}

func (s *Scaler) note(name string, overflow bool) {
	s.optimizers[name] = optimizer{overflow: overflow}
}

func (o optimizer) String() string {
	if o.stepped {
		return "stepped"
	}
	return "unscaled"
}

// Step calls step once if Unscale found all gradients of the optimizer finite,
// and reports whether it did. It returns the error of step unchanged; Step may
// then be called again. The error wraps [snug.ErrConfig] when step is nil, when
// Unscale was not called for the optimizer since the last Update, or when Step
// was.
func (s *Scaler) Step(optimizer string, step func() error) (stepped bool, err error) {
	if step == nil {
		return false, fmt.Errorf("amp: Step: the function of optimizer %q is nil: %w", optimizer, snug.ErrConfig)
	}
	o, found := s.optimizers[optimizer]
	if !found {
		return false, fmt.Errorf("amp: Step: optimizer %q was not unscaled since the last Update: %w", optimizer, snug.ErrConfig)
	}
	if o.stepped {
		return false, fmt.Errorf("amp: Step: optimizer %q was stepped since the last Update: %w", optimizer, snug.ErrConfig)
	}
	if !o.overflow {
		if err := step(); err != nil {
			return false, err
		}
	}
	o.stepped = true
	s.optimizers[optimizer] = o
	return !o.overflow, nil
}

// Update ends the step of all optimizers and sets the scale of the next. The
// error wraps [snug.ErrConfig] when nothing was unscaled since the last Update.
func (s *Scaler) Update() error {
	if len(s.optimizers) == 0 {
		return fmt.Errorf("amp: Update: no optimizer was unscaled since the last Update: %w", snug.ErrConfig)
	}
	overflow := false
	for _, o := range s.optimizers {
		overflow = overflow || o.overflow
	}
	clear(s.optimizers)
	if overflow {
		s.backOff()
	} else {
		s.advance()
	}
	return nil
}

// backOff notes an overflow.
func (s *Scaler) backOff() {
	s.tracker = 0
	if s.patience--; s.patience <= 0 {
		s.patience = 0
		s.scale = max(s.scale*s.opts.Backoff, s.opts.Floor)
	}
}

// advance notes a finite step. torch compares the tracker with ==, so that
// there an interval lowered below the tracker ends growth for good.
func (s *Scaler) advance() {
	if s.tracker++; s.tracker < s.opts.Interval {
		return
	}
	s.tracker, s.patience = 0, s.opts.Hysteresis
	grown := s.scale * s.opts.Growth
	if s.opts.Cap > 0 {
		grown = min(grown, s.opts.Cap)
	}
	if !math.IsInf(float64(grown), 0) {
		s.scale = grown
	}
}
