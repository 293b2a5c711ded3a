package amp

import (
	"fmt"
	"math"

	"github.com/snug-ml/snug"
)

// Mode is how a [Scaler] chooses the loss scale.
type Mode int

const (
	// Dynamic backs the scale off after an overflow and lets it grow after
	// Interval steps without.
	Dynamic Mode = iota
	// Static keeps the scale at Init. Steps with an overflow are skipped.
	Static
	// Disabled is a scale of 1 that skips nothing, as GradScaler(enabled=False)
	// is: Unscale only measures, and Step always steps. With it the same loop
	// trains in float32.
	Disabled
)

// ScalerOptions configures a [Scaler]. The zero value has the defaults of
// torch.amp.GradScaler.
type ScalerOptions struct {
	Mode Mode // Dynamic, unless set

	Init     float32 // first loss scale; 0 means 65536
	Growth   float64 // factor of growth, above 1; 0 means 2
	Backoff  float64 // factor after an overflow, between 0 and 1; 0 means 0.5
	Interval int     // finite steps in a row before the scale grows; 0 means 2000

	// Floor is the least scale. 0 means 2^-126, the least whose reciprocal is
	// finite. Init, Floor and Cap of 1 make a scaler that never scales, yet
	// skips steps with non-finite gradients, as bfloat16 training wants.
	Floor float32
	// FloorError makes Update fail when gradients overflow though the scale is
	// the least, as DeepSpeed's raise_error_at_min_scale does: another scale
	// will not help them.
	FloorError bool
	// Cap is the greatest scale; 0 means none. Without one the scale stops
	// growing before it becomes infinite.
	Cap float32
	// Hysteresis is the number of overflows, since the scale last had its
	// chance to grow, that it takes for the scale to back off, as in DeepSpeed
	// and Megatron-LM; 0 means 1.
	Hysteresis int
	// PowerOfTwo rounds the scale that is handed out down to a power of two, so
	// that scaling and unscaling change exponents only, whatever Init, Growth and
	// Backoff are. Floor must be a power of two then.
	PowerOfTwo bool
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
	case o.Mode < Dynamic || o.Mode > Disabled:
		return fmt.Errorf("amp: scaler: Mode is %d, want Dynamic, Static or Disabled: %w", o.Mode, snug.ErrConfig)
	case !(o.Growth > 1) || math.IsInf(o.Growth, 0):
		return fmt.Errorf("amp: scaler: Growth is %v, want above 1 and finite: %w", o.Growth, snug.ErrConfig)
	case !(o.Backoff > 0 && o.Backoff < 1):
		return fmt.Errorf("amp: scaler: Backoff is %v, want between 0 and 1: %w", o.Backoff, snug.ErrConfig)
	case o.Interval < 1:
		return fmt.Errorf("amp: scaler: Interval is %d, want 1 or more: %w", o.Interval, snug.ErrConfig)
	case !(o.Floor >= minScale):
		return fmt.Errorf("amp: scaler: Floor is %v, want 2^-126 or more: %w", o.Floor, snug.ErrConfig)
	case o.PowerOfTwo && o.Floor != powerBelow(o.Floor):
		return fmt.Errorf("amp: scaler: Floor is %v, want a power of two with PowerOfTwo: %w", o.Floor, snug.ErrConfig)
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

// powerBelow returns the largest power of two that is at most x, a normal number
// above 0.
func powerBelow(x float32) float32 {
	return math.Float32frombits(math.Float32bits(x) &^ (1<<23 - 1))
}
