package train

import (
	"fmt"
	"iter"
	"strings"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
)

// scaling is the loss scale, and what happens to a step whose gradients are not finite.
type scaling interface {
	// Scale returns the loss scale of the next step.
	Scale() float32
	// measure divides the gradients by the loss scale, and measures them.
	measure(gradients iter.Seq2[string, snug.View]) (amp.Stats, error)
	// step calls apply if the gradients are finite. Otherwise it returns an error, or why the step is skipped.
	step(f found, apply func() error) (skipped string, err error)
	// forget ends a step that has failed.
	forget() error
	parts() []savedPart
}

func newScaling(o *Options) (scaling, error) {
	if o.Scaler == nil {
		return unscaled{skips: o.SkipNonFinite}, nil
	}
	s, err := amp.NewScaler(*o.Scaler)
	return scaled{s}, err
}

// unscaled is a loss without a scale.
type unscaled struct{ skips bool }

func (unscaled) Scale() float32 { return 1 }

func (unscaled) measure(gradients iter.Seq2[string, snug.View]) (amp.Stats, error) {
	return amp.Measure(gradients)
}

func (u unscaled) step(f found, apply func() error) (skipped string, err error) {
	switch {
	case f.NonFinite == 0:
		return "", apply()
	case u.skips:
		return f.overflows, nil
	}
	return "", fmt.Errorf("%s: %w", f.overflows, snug.ErrNonFinite)
}

func (unscaled) forget() error      { return nil }
func (unscaled) parts() []savedPart { return nil }

// scaled is a loss with the dynamic scale of package amp.
type scaled struct{ *amp.Scaler }

// group is the name under which the scaler knows the gradients.
const group = "model"

func (s scaled) measure(gradients iter.Seq2[string, snug.View]) (amp.Stats, error) {
	return s.Unscale(group, gradients)
}

func (s scaled) step(f found, apply func() error) (skipped string, err error) {
	before := s.Scale()
	if err := s.Join(group, f.Stats); err != nil {
		return "", err
	}
	stepped, err := s.Step(group, nil, apply)
	if err != nil {
		return "", err
	}
	if err := s.Update(); err != nil || stepped {
		return "", err
	}
	return fmt.Sprintf("%s; the loss scale was %v and is %v", f.overflows, before, s.Scale()), nil
}

func (s scaled) forget() error      { return s.UpdateTo(s.Scale()) }
func (s scaled) parts() []savedPart { return []savedPart{small(scalerPart, s)} }

// named names gradients that are not finite.
func named(found []snug.NonFinite) string {
	more := ""
	if n := len(found) - 3; n > 0 {
		found, more = found[:3], fmt.Sprintf(" and %d more gradients", n)
	}
	var list []string
	for _, o := range found {
		list = append(list, o.String())
	}
	return strings.Join(list, "; ") + more
}
