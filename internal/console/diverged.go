package console

import (
	"fmt"
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/train"
)

// A run has diverged after lostSteps steps in a row whose loss is not finite or whose gradients are not. With a loss scale
// it takes lostScaled steps with such gradients: a scale that begins at 2^16 is 2^-16 by then, and no cause of overflows.
const (
	lostSteps  = 10
	lostScaled = 32
)

// Diverged is the error of a run whose losses or updates are not finite any more. It wraps [snug.ErrNonFinite].
type Diverged struct {
	What  string  // what is not finite, and when
	Step  int     // the last step that had a finite loss and an update, 0 for none of this process
	Loss  float64 // its loss
	Saved int     // the step of the newest checkpoint, 0 for none
}

func (d Diverged) Error() string {
	text := "the run has diverged: " + d.What
	if d.Step > 0 {
		text += fmt.Sprintf("; the last step that was not so is %d, with the loss %.4f", d.Step, d.Loss)
	}
	switch {
	case d.Saved == 0:
	case d.Saved >= d.Step && d.Step > 0:
		text += fmt.Sprintf("; the checkpoint of step %d may have diverged weights, and without it a run goes on from the one before", d.Saved)
	default:
		text += fmt.Sprintf("; the checkpoint of step %d stays", d.Saved)
	}
	return text
}

func (d Diverged) Unwrap() error { return snug.ErrNonFinite }

// watch counts the last steps in a row without a finite loss, and without an update.
type watch struct {
	infinite, skipped int
	scaled            bool    // the last step had a loss scale
	now, step         int     // the last step, and the last one with a finite loss and an update
	loss              float64 // of step
}

// add takes up a step, and returns why the run has diverged, or nothing.
func (w *watch) add(r train.Report) string {
	w.now, w.scaled = r.Step, r.Scale != 1
	if w.infinite++; finite(r.Loss) {
		w.infinite = 0
	}
	if w.skipped++; r.Skipped == "" {
		w.skipped = 0
	}
	if w.infinite == 0 && w.skipped == 0 {
		w.step, w.loss = r.Step, r.Loss
	}
	limit := lostSteps
	if w.scaled {
		limit = lostScaled
	}
	return w.since(lostSteps, limit)
}

// end returns why a run that ends has diverged, or nothing. measured says that the loss on held-out data is finite.
func (w *watch) end(measured bool) string {
	losses, skips := 1, 2
	if measured {
		losses = lostSteps
	}
	if w.scaled {
		skips = lostSteps
	}
	return w.since(losses, skips)
}

// since says what happened in the last steps, if they are as many as losses that are not finite, or as skips.
func (w *watch) since(losses, skips int) string {
	switch {
	case w.infinite >= losses:
		return fmt.Sprintf("the loss is not finite in %s", w.last(w.infinite))
	case w.skipped >= skips:
		return fmt.Sprintf("gradients are not finite in %s", w.last(w.skipped))
	}
	return ""
}

// last names the last n steps.
func (w *watch) last(n int) string {
	if n == 1 {
		return fmt.Sprintf("step %d", w.now)
	}
	return fmt.Sprintf("steps %d to %d", w.now-n+1, w.now)
}

// doubtful reports whether the weights may have diverged, so that a checkpoint is not written.
func (w *watch) doubtful() bool { return w.infinite > 0 || w.skipped >= lostSteps }

func finite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }

// diverged is the error of a run in which something is not finite.
func (t Training[B]) diverged(w *watch, what string) Diverged {
	return Diverged{what, w.step, w.loss, t.Trainer.Saved()}
}
