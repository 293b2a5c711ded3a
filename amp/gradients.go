package amp

import (
	"fmt"
	"iter"
	"math"

	"github.com/snug-ml/snug"
)

// Stats is what one pass over gradients found.
type Stats struct {
	Norm      float64 // L2 norm over all elements; Inf or NaN when NonFinite > 0
	Gradients int     // number of gradients
	Elements  int     // number of their elements
	NonFinite int     // how many of them are NaN or infinite

	// Overflows says which gradients those are in, in the order of the walk; nil
	// when there are none.
	Overflows []snug.NonFinite
}

// Err returns an error that wraps [snug.ErrNonFinite] and names the first NaN or
// infinity, or nil when all gradients are finite.
func (s Stats) Err() error {
	if s.NonFinite == 0 {
		return nil
	}
	if len(s.Overflows) == 0 { // as in statistics that the caller made or added up
		return fmt.Errorf("amp: %d of %d elements are not finite: %w", s.NonFinite, s.Elements, snug.ErrNonFinite)
	}
	return fmt.Errorf("amp: %d of %d elements in %d gradients are not finite, first %v: %w",
		s.NonFinite, s.Elements, len(s.Overflows), s.Overflows[0], snug.ErrNonFinite)
}

// Measure returns the statistics of gradients of any floating-point type. It
// reads each element once, adds the squares in float64 in an order that the
// lengths alone decide, and writes nothing; the result does not depend on
// GOMAXPROCS. When it finds a NaN or an infinity it reads all once more, to say
// which gradients hold them. It waits for the device.
//
// Errors: [snug.ErrDType], [snug.ErrDevice], and [snug.ErrConfig] when grads
// is nil or does not yield the same twice.
func Measure(grads iter.Seq2[string, snug.View]) (Stats, error) {
	return pass{op: "Measure", factor: 1, limit: noLimit}.run(grads)
}

// Clip scales gradients of any floating-point type so that their L2 norm is at
// most maxNorm: it multiplies every element by [ClipCoef](norm, maxNorm), and
// measures the products in the same pass, so that Stats tells whether they are
// finite and what their norm is now. norm is the norm that [Scaler.Unscale] or
// [Measure] returned. With a coefficient of 1 it only reads. It waits for the
// device; where nothing shall wait, give ClipCoef to the optimizer as a factor
// instead.
//
// Errors, with nothing written: [snug.ErrConfig] when norm or maxNorm is
// negative, maxNorm is NaN, or grads is nil; [snug.ErrNonFinite] when norm is not
// finite; [snug.ErrDType], [snug.ErrDevice]. When grads does not yield the same
// twice, which is [snug.ErrConfig] too, the gradients are undefined.
func Clip(grads iter.Seq2[string, snug.View], norm, maxNorm float64) (Stats, error) {
	return clip(grads, norm, maxNorm, nil)
}

// clip is Clip that says when it begins to write.
func clip(grads iter.Seq2[string, snug.View], norm, maxNorm float64, began *bool) (Stats, error) {
	if norm < 0 || !(maxNorm >= 0) {
		return Stats{}, fmt.Errorf("amp: Clip: norm is %v, maxNorm is %v, want both 0 or more: %w", norm, maxNorm, snug.ErrConfig)
	}
	if math.IsNaN(norm) || math.IsInf(norm, 0) {
		return Stats{}, fmt.Errorf("amp: Clip: norm is %v, want a finite number: %w", norm, snug.ErrNonFinite)
	}
	return pass{op: "Clip", began: began, factor: ClipCoef(norm, maxNorm), limit: noLimit}.run(grads)
}

// ClipValue cuts the elements of gradients of any floating-point type off: those
// above limit become limit and those below -limit become -limit, as
// torch.nn.utils.clip_grad_value_ does, rounded to the gradient's type. Unlike
// there a NaN or an infinity is not hidden: both become NaN, and Stats, which
// the same pass measures, counts them. It waits for the device.
//
// Errors, with nothing written: [snug.ErrConfig] when limit is negative or not
// finite or grads is nil; [snug.ErrDType], [snug.ErrDevice]. When grads does not
// yield the same twice, which is [snug.ErrConfig] too, the gradients are
// undefined.
func ClipValue(grads iter.Seq2[string, snug.View], limit float32) (Stats, error) {
	return clipValue(grads, limit, nil)
}

// clipValue is ClipValue that says when it begins to write.
func clipValue(grads iter.Seq2[string, snug.View], limit float32, began *bool) (Stats, error) {
	if !(limit >= 0) || !finite(limit) {
		return Stats{}, fmt.Errorf("amp: ClipValue: limit is %v, want a finite number, 0 or more: %w", limit, snug.ErrConfig)
	}
	return pass{op: "ClipValue", began: began, factor: 1, limit: limit}.run(grads)
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
