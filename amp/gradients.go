package amp

import (
	"fmt"
	"iter"
	"math"

	"github.com/snug-ml/snug"
)

// Stats is what one pass over gradients found.
type Stats struct {
	Norm      float64   // L2 norm over all elements; Inf or NaN when NonFinite > 0
	Elements  int       // number of elements
	NonFinite int       // how many of them are NaN or infinite
	First     *Location // the first of those, nil if there is none
}

// Location is one element of a gradient.
type Location struct {
	Name  string // of the parameter
	Index int    // element of its gradient
	Value float32
}

// String returns the form name[index] = value.
func (l *Location) String() string { return fmt.Sprintf("%s[%d] = %v", l.Name, l.Index, l.Value) }

// Measure returns the statistics of gradients of any floating-point type. It
// reads each element once, adds the squares in float64, and writes nothing;
// the result does not depend on GOMAXPROCS. It waits for the device.
//
// Errors: [snug.ErrDType], [snug.ErrDevice], and [snug.ErrConfig] when grads
// is nil or does not yield the same twice.
func Measure(grads iter.Seq2[string, snug.View]) (Stats, error) {
	return sweepGradients("Measure", grads, 1, false)
}

// CheckFinite returns an error that wraps [snug.ErrNonFinite] and names the
// first NaN or infinity of gradients, if there is one. It costs what [Measure]
// costs and returns its errors.
func CheckFinite(grads iter.Seq2[string, snug.View]) error {
	stats, err := sweepGradients("CheckFinite", grads, 1, false)
	if err == nil && stats.NonFinite > 0 {
		err = fmt.Errorf("amp: CheckFinite: %d of %d elements, first %v: %w", stats.NonFinite, stats.Elements, stats.First, snug.ErrNonFinite)
	}
	return err
}

// Clip scales gradients of any floating-point type so that their L2 norm is at
// most maxNorm: it multiplies every element by coef = [ClipCoef](norm,
// maxNorm). norm is the norm that [Scaler.Unscale] or [Measure] returned. When
// coef is 1 it touches nothing. It does not wait for the device.
//
// Errors: [snug.ErrConfig] when norm or maxNorm is negative, maxNorm is NaN, or
// grads is nil or does not yield the same twice; [snug.ErrNonFinite] when norm
// is not finite; [snug.ErrDType], [snug.ErrDevice].
func Clip(grads iter.Seq2[string, snug.View], norm, maxNorm float64) (coef float32, err error) {
	if norm < 0 || !(maxNorm >= 0) {
		return 0, fmt.Errorf("amp: Clip: norm is %v, maxNorm is %v, want both 0 or more: %w", norm, maxNorm, snug.ErrConfig)
	}
	if math.IsNaN(norm) || math.IsInf(norm, 0) {
		return 0, fmt.Errorf("amp: Clip: norm is %v, want a finite number: %w", norm, snug.ErrNonFinite)
	}
	coef = ClipCoef(norm, maxNorm)
	return coef, scaleGradients("Clip", grads, coef)
}

// ClipCoef returns min(1, maxNorm/(norm+1e-6)), the factor of
// torch.nn.utils.clip_grad_norm_, for callers that fold it into the gradient
// scale of an optimizer. maxNorm may be +Inf, for no clipping. The result is
// NaN when norm or maxNorm is NaN or negative, or norm is infinite, so that a
// mistake does not go unseen.
func ClipCoef(norm, maxNorm float64) float32 {
	if !(norm >= 0) || !(maxNorm >= 0) || math.IsInf(norm, 0) {
		return float32(math.NaN())
	}
	return float32(min(1, maxNorm/(norm+1e-6)))
}
