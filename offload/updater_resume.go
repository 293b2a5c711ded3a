package offload

import (
	"encoding/binary"
	"fmt"
	"math"
	"strings"

	"github.com/snug-ml/snug"
)

// StepCounter is a [Stepper] that counts the steps it has begun.
type StepCounter interface {
	Steps() int
}

// Locator is a [Stepper] that says whether its state lies in storage.
type Locator interface {
	StoredIn(storage any) bool
}

// Resume continues from the steps that the store has. Call it on a new Updater with a new
// Stepper after all parameters were added and before the first Accumulate, Step or
// Commit, which return errors before Resume if the store has steps. It returns the number
// of these steps, 0 for a new store.
//
// Resume brings the Stepper to the same step. It calls Advance as many times as the store
// has steps, unless the Stepper is a [StepCounter] that has this number already,
// as after its own state was restored. A Stepper that is a [Locator], such as the optimizers of package quant8, must have its state in the Updater's store. The options of
// the Stepper, such as Beta1, are not saved: they must be the same.
//
// Errors: [snug.ErrConfig] when steps were made, when the parameters differ from the
// store's, or when the Stepper's state is elsewhere; [snug.ErrCorrupt], also when
// [Store.Commit] was called in the middle of a step or after a step that failed; and
// errors of the store.
func (u *Updater) Resume() (steps int, err error) {
	if err := u.usable(); err != nil {
		return 0, err
	}
	if u.steps > 0 {
		return 0, fmt.Errorf("offload: updater: resume after %d steps: %w", u.steps, snug.ErrConfig)
	}
	if !u.s.Has(updaterKey) {
		return 0, nil
	}
	b, err := u.s.Acquire(updaterKey, updaterBytes)
	if err != nil {
		return 0, err
	}
	saved := binary.LittleEndian.Uint64(b)
	if err := u.s.Release(updaterKey, false); err != nil {
		return 0, err
	}
	if saved&stepUnderWay != 0 {
		return 0, fmt.Errorf("offload: updater: the store was committed in the middle of step %d, not by the Updater: %w", saved&^stepUnderWay, snug.ErrCorrupt)
	}
	if saved > math.MaxInt32 {
		return 0, fmt.Errorf("offload: updater: the store says %d steps: %w", saved, snug.ErrCorrupt)
	}
	steps = int(saved)
	if steps > 0 {
		if err := u.sameParams(steps); err != nil {
			return 0, err
		}
		if err := u.advance(steps); err != nil {
			return 0, err
		}
	}
	u.steps, u.resume = steps, false
	if u.o.Delayed {
		u.set = u.steps % 2
	}
	return u.steps, nil
}

// sameParams checks that the parameters are the same as in the saved steps.
func (u *Updater) sameParams(steps int) error {
	for _, p := range u.params {
		if p.made {
			return fmt.Errorf("offload: updater: resume: parameter %q is new, the store has %d steps without it: %w", p.name, steps, snug.ErrConfig)
		}
	}
	for _, key := range u.s.Keys() {
		name, weights := strings.CutSuffix(key, weightsSuffix)
		if weights && u.byName[name] == nil && u.s.Has(name+gradSuffix) {
			return fmt.Errorf("offload: updater: resume: the store has parameter %q, which was not added: %w", name, snug.ErrConfig)
		}
	}
	return nil
}

// advance brings the Stepper to the saved steps.
func (u *Updater) advance(steps int) error {
	if opt, ok := u.opt.(StepCounter); ok {
		switch made := opt.Steps(); made {
		case steps:
			return nil
		case 0:
		default:
			return fmt.Errorf("offload: updater: resume: the optimizer has made %d steps, the store %d: %w", made, steps, snug.ErrConfig)
		}
	}
	if opt, ok := u.opt.(Locator); ok && !opt.StoredIn(u.s) {
		return fmt.Errorf("offload: updater: resume: the state of the optimizer is not in the Updater's store, so the state of its %d steps is lost; "+
			"make the store its Storage, or restore its state first: %w", steps, snug.ErrConfig)
	}
	u.err = errCutOff // unless the Stepper returns
	for range steps {
		u.opt.Advance(0)
	}
	u.err = nil
	return nil
}
