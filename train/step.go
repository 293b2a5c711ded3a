package train

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/fused"
	"github.com/snug-ml/snug/meter"
)

// Train makes one step of the optimizer with the mean of the gradients of the micro-batches. It writes a checkpoint
// after every SaveEvery steps. Where that step was skipped or its loss is not finite, it does so after the next step that
// updates parameters and has a finite loss.
//
// After an error the parameters are as before the step, without gradients up to rounding. There are two exceptions. An
// error of the optimizer, the Storage or the device, and an error of a step in the backward pass, can leave some parameters updated:
// resume a checkpoint then. [Trainer.Save] does not write such parameters, and with plan.Folded Train does not go on with them.
// An error of writing a checkpoint comes after the step is made.
//
// The error wraps [snug.ErrConfig] when no rank has a micro-batch, when a weight is negative or not finite, or all are
// 0; it wraps [snug.ErrNonFinite] and names the parameters when gradients are not finite; or it comes from the model.
func (t *Trainer[B]) Train(ctx context.Context, batches []B) (Report, error) {
	if t.closed() {
		return Report{}, fmt.Errorf("train: the Trainer is closed: %w", snug.ErrConfig)
	}
	if ctx == nil {
		return Report{}, fmt.Errorf("train: the context is nil: %w", snug.ErrConfig)
	}
	if t.halfway && t.gradients.traits().final {
		return Report{}, fmt.Errorf("train: %w", t.stopped())
	}
	if err := t.gradients.average(false); err != nil {
		return Report{}, fmt.Errorf("train: step %d: %w", t.step+1, err)
	}
	t.options.Monitor.Step(t.step + 1)
	report, err := t.train(ctx, batches)
	t.options.Monitor.Enter(meter.Idle, "")
	if err != nil {
		return report, fmt.Errorf("train: step %d: %w", t.step+1, err)
	}
	t.begun, t.halfway = false, false
	t.step++
	report.Step = t.step
	t.countBytes()
	every := t.options.SaveEvery
	if t.due = t.due || every > 0 && t.step%every == 0; t.due && report.sound() {
		if err := t.Save(ctx); err != nil {
			return report, err
		}
		t.due = false
	}
	return report, nil
}

// sound reports whether the step has an update and a finite loss, or the model has no losses.
func (r Report) sound() bool { return r.Skipped == "" && (r.Targets == 0 || r.Loss-r.Loss == 0) }

// train makes a step: pass, norm, scale or skip, apply, report.
func (t *Trainer[B]) train(ctx context.Context, batches []B) (r Report, err error) {
	r.Rate, r.Scale = t.options.Schedule(t.step), t.Scale()
	if batches, err = t.counted(batches); err != nil {
		return r, err
	}
	if err := t.buffers.keep(); err != nil {
		return r, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, t.buffers.restore())
		}
	}()
	loss, err := t.pass(ctx, batches, r.Rate)
	if err == nil {
		err = t.buffers.mean(&t.ranks)
	}
	if err != nil {
		return r, err
	}
	r.Loss, r.Targets = loss.Mean(), loss.Targets
	defer func() {
		if t.gradients.end(err == nil && r.Skipped != ""); err != nil {
			err = errors.Join(err, t.scale.forget())
		}
	}()
	f, err := t.gradients.norm()
	if r.Norm = f.Norm; err != nil {
		return r, err
	}
	r.Skipped, err = t.scale.step(f, func() error { return t.gradients.apply(ctx, r.Rate, f.Norm) })
	return r, err
}

// pass runs the micro-batches, and returns the loss over all ranks. Where memory runs out it divides them, unless
// parameters have changed.
func (t *Trainer[B]) pass(ctx context.Context, batches []B, rate float32) (loss fused.Loss, err error) {
	for range t.splits {
		if batches, err = t.split(batches); err != nil {
			return loss, err
		}
	}
	for {
		if loss, err = t.collected(t.gradients.pass(ctx, batches, rate)); err == nil {
			loss, err = t.lossOfAll(loss)
		}
		if err == nil {
			return loss, nil
		}
		t.gradients.end(false)
		if t.divide == nil || t.gradients.traits().changes || !errors.Is(err, snug.ErrNoMemory) {
			return loss, err
		}
		smaller, splitErr := t.split(batches)
		if splitErr != nil {
			return loss, errors.Join(err, splitErr)
		}
		if err := t.buffers.restore(); err != nil {
			return loss, err
		}
		batches = smaller
		t.splits++
	}
}

// passes runs micro-batches forward and backward, and calls begin and end for each.
func (t *Trainer[B]) passes(ctx context.Context, batches []B, into Window, begin func(b B) error, end func() error) (all fused.Loss, err error) {
	for i, b := range batches {
		if err := begin(b); err != nil {
			return all, err
		}
		loss, err := t.model.Backprop(ctx, b, t.Scale(), into)
		if err != nil {
			return all, fmt.Errorf("micro-batch %d: %w", i, err)
		}
		if err := end(); err != nil {
			return all, err
		}
		all = all.Plus(loss)
	}
	return all, nil
}

// counted returns the micro-batches whose weight is above 0.
func (t *Trainer[B]) counted(batches []B) ([]B, error) {
	keep := 0
	for i, b := range batches {
		w := t.model.Weight(b)
		if !(w >= 0) || math.IsInf(w, 1) {
			return nil, fmt.Errorf("micro-batch %d has the weight %v, want a finite number of 0 or more: %w", i, w, snug.ErrConfig)
		}
		if w > 0 {
			keep++
		}
	}
	switch {
	case keep == 0 && t.ranks.many: // other ranks may have some
		return nil, nil
	case len(batches) == 0:
		return nil, fmt.Errorf("there are no micro-batches: %w", snug.ErrConfig)
	case keep == 0:
		return nil, fmt.Errorf("no micro-batch has a weight above 0, such as labels that count: %w", snug.ErrConfig)
	case keep == len(batches):
		return batches, nil
	}
	return slices.DeleteFunc(slices.Clone(batches), func(b B) bool { return t.model.Weight(b) == 0 }), nil
}

// SplitBy sets the function that divides a micro-batch in two, and returns false for one that cannot be divided. When a step
// runs out of memory, Train divides all micro-batches, runs the step again, and divides those of later steps too; Evaluate
// divides its batches likewise. The mean over the step stays the same, up to rounding. With steps in the backward pass Train does not divide,
// because parameters have changed when memory runs out. Call it before the first step. The error wraps [snug.ErrConfig] for
// nil, and with a Reducer, because the ranks make a step together.
func (t *Trainer[B]) SplitBy(split func(batch B) (a, b B, ok bool)) error {
	switch {
	case t.closed():
		return fmt.Errorf("train: SplitBy: the Trainer is closed: %w", snug.ErrConfig)
	case split == nil:
		return fmt.Errorf("train: SplitBy: the function is nil: %w", snug.ErrConfig)
	case t.options.Reducer != nil:
		return fmt.Errorf("train: SplitBy does not go with a Reducer, because the ranks make a step together: %w", snug.ErrConfig)
	}
	t.divide = split
	return nil
}

// evaluate evaluates a batch, or its parts if memory runs out.
func (t *Trainer[B]) evaluate(ctx context.Context, b B, splits int) (all fused.Loss, err error) {
	if splits == 0 {
		all, err = t.model.Evaluate(ctx, b)
		if err == nil || t.divide == nil || !errors.Is(err, snug.ErrNoMemory) {
			return all, err
		}
		splits = 1
	}
	x, y, ok := t.divide(b)
	switch {
	case !ok && err != nil:
		return all, err
	case !ok:
		return t.evaluate(ctx, b, 0)
	}
	all = fused.Loss{}
	for _, half := range []B{x, y} {
		if !(t.model.Weight(half) > 0) {
			continue
		}
		loss, err := t.evaluate(ctx, half, splits-1)
		if err != nil {
			return fused.Loss{}, err
		}
		all = all.Plus(loss)
	}
	return all, nil
}

// split divides each micro-batch in two, if it can be divided.
func (t *Trainer[B]) split(batches []B) ([]B, error) {
	var list []B
	divided := false
	for _, b := range batches {
		x, y, ok := t.divide(b)
		if !ok {
			list = append(list, b)
			continue
		}
		list, divided = append(list, x, y), true
	}
	if !divided {
		return nil, fmt.Errorf("micro-batches cannot be divided further: %w", snug.ErrNoMemory)
	}
	return t.counted(list)
}

// collected adds to a loss what the Losses have collected.
func (t *Trainer[B]) collected(loss fused.Loss, err error) (fused.Loss, error) {
	sum, takeErr := t.options.Losses.Take() // after an error too, which forgets them
	loss.Sum += sum
	return loss, cmp.Or(err, takeErr)
}

// stopped returns the error of calls that cannot go on from half a step.
func (t *Trainer[B]) stopped() error {
	return fmt.Errorf("step %d stopped half-way: resume the newest checkpoint: %w", t.step+1, snug.ErrConfig)
}
