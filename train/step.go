package train

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/fused"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/plan"
	"github.com/snug-ml/snug/quant8"
)

// group is the name under which the scaler knows the gradients.
const group = "model"

// Train makes one step of the optimizer with the mean of the gradients of the micro-batches. It writes a checkpoint
// after every SaveEvery steps. Where that step was skipped or its loss is not finite, it does so after the next step that
// updates parameters and has a finite loss.
//
// After an error the parameters are as before the step, with [quant8.MeZO] up to rounding. There are two exceptions. An
// error of the optimizer, the Storage or the device, and with InBackward any error, can leave some parameters updated:
// resume a checkpoint then. [Trainer.Save] does not write such parameters, and with Fold Train does not go on with them.
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
	if t.halfway && t.options.Gradients == plan.Folded {
		return Report{}, fmt.Errorf("train: %w", t.stopped())
	}
	if err := t.trainable(); err != nil {
		return Report{}, fmt.Errorf("train: step %d: %w", t.step+1, err)
	}
	t.options.Monitor.Step(t.step + 1)
	report, err := t.train(ctx, batches)
	t.options.Monitor.Enter(plan.Idle, "")
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

func (t *Trainer[B]) train(ctx context.Context, batches []B) (r Report, err error) {
	r.Rate, r.Scale = t.options.Schedule(t.step), t.Scale()
	if batches, err = t.counted(batches); err != nil {
		return r, err
	}
	for range t.splits {
		if batches, err = t.split(batches); err != nil {
			return r, err
		}
	}
	if t.single != nil {
		return r, t.trainInBackward(ctx, batches, &r)
	}
	for {
		var loss fused.Loss
		if t.zeroth != nil {
			if err = t.trainForward(ctx, batches, &r); err == nil {
				return r, nil
			}
		} else if loss, err = t.accumulate(ctx, batches); err == nil {
			r.Loss, r.Targets = loss.Mean(), loss.Targets
			break
		} else {
			t.reset()
		}
		if t.divide == nil || !errors.Is(err, snug.ErrNoMemory) {
			return r, err
		}
		smaller, splitErr := t.split(batches)
		if splitErr != nil {
			return r, errors.Join(err, splitErr)
		}
		batches = smaller
		t.splits++
	}
	if err := t.update(ctx, &r); err != nil {
		t.reset()
		return r, err
	}
	if r.Skipped == "" || t.shards != nil {
		t.reset()
	} else {
		t.window.Skip()
	}
	return r, nil
}

// reset begins the next window.
func (t *Trainer[B]) reset() {
	if t.shards != nil {
		t.shards.Reset()
		return
	}
	t.window.Reset()
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
	case keep == 0 && t.options.Reducer != nil: // other ranks may have some
		return nil, nil
	case len(batches) == 0:
		return nil, fmt.Errorf("there are no micro-batches: %w", snug.ErrConfig)
	case keep == 0:
		return nil, fmt.Errorf("no micro-batch has a weight above 0, such as labels that count: %w", snug.ErrConfig)
	case keep == len(batches):
		return batches, nil
	}
	var list []B
	for _, b := range batches {
		if t.model.Weight(b) > 0 {
			list = append(list, b)
		}
	}
	return list, nil
}

// SplitBy sets the function that divides a micro-batch in two, and returns false for one that cannot be divided. When a step
// runs out of memory, Train divides all micro-batches, runs the step again, and divides those of later steps too; Evaluate
// divides its batches likewise. The mean over the step stays the same, up to rounding. With InBackward Train does not divide,
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
func (t *Trainer[B]) evaluate(ctx context.Context, b B, splits int) (fused.Loss, error) {
	if splits == 0 {
		loss, err := t.model.Evaluate(ctx, b)
		if err == nil || t.divide == nil || !errors.Is(err, snug.ErrNoMemory) {
			return loss, err
		}
		if _, _, ok := t.divide(b); !ok {
			return loss, err
		}
		splits = 1
	}
	x, y, ok := t.divide(b)
	if !ok {
		return t.evaluate(ctx, b, 0)
	}
	var all fused.Loss
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

// backprop runs a micro-batch alone, and waits for its loss.
func (t *Trainer[B]) backprop(ctx context.Context, b B, scale float32, into Window) (fused.Loss, error) {
	return t.collected(t.model.Backprop(ctx, b, scale, into))
}

// collected adds to a loss what the Losses have collected.
func (t *Trainer[B]) collected(loss fused.Loss, err error) (fused.Loss, error) {
	sum, takeErr := t.options.Losses.Take() // after an error too, which forgets them
	loss.Sum += sum
	return loss, cmp.Or(err, takeErr)
}

// accumulate runs the micro-batches of a step.
func (t *Trainer[B]) accumulate(ctx context.Context, batches []B) (fused.Loss, error) {
	return t.together(t.collected(t.accumulateAll(ctx, batches)))
}

// accumulateAll is accumulate without the losses that are collected and those of other ranks.
func (t *Trainer[B]) accumulateAll(ctx context.Context, batches []B) (all fused.Loss, err error) {
	if t.shards != nil {
		return t.accumulateShards(ctx, batches)
	}
	more, err := t.missingPasses(len(batches))
	if err != nil {
		return all, err
	}
	*t.count.n = max(1, len(batches))
	if more > 0 {
		err := t.pass(ctx, more, batches[0], intoOnly{t.into}, func() error { return t.window.Begin(t.model.Weight(batches[0])) }, func() error {
			t.window.Reset()
			return nil
		})
		if err != nil {
			return all, err
		}
	}
	if len(batches) == 0 {
		return all, t.accumulateNothing()
	}
	for i, b := range batches {
		if err := t.window.Begin(t.model.Weight(b)); err != nil {
			return all, err
		}
		loss, err := t.model.Backprop(ctx, b, t.Scale(), t.into)
		if err != nil {
			return all, fmt.Errorf("micro-batch %d: %w", i, err)
		}
		if _, err := t.window.End(); err != nil {
			return all, err
		}
		all = all.Plus(loss)
	}
	return all, nil
}

// update steps the optimizer with the mean of the window, unless the gradients are not finite.
func (t *Trainer[B]) update(ctx context.Context, r *Report) (err error) {
	var stats amp.Stats
	if t.scaler == nil {
		if stats, err = amp.Measure(t.gradients()); err != nil {
			return err
		}
		if stats, err = t.joinStats(stats); err != nil {
			return err
		}
		if r.Norm = stats.Norm; stats.NonFinite == 0 {
			return t.apply(ctx, r.Rate, stats.Norm)
		}
		if !t.options.SkipNonFinite {
			return fmt.Errorf("%s: %w", t.overflows(stats), snug.ErrNonFinite)
		}
		r.Skipped = t.overflows(stats)
		return nil
	}
	if stats, err = t.scaler.Unscale(group, t.gradients()); err != nil {
		return err
	}
	if stats, err = t.joinStats(stats); err != nil {
		return err
	}
	if t.shards != nil {
		if err := t.scaler.Join(group, stats); err != nil {
			return err
		}
	}
	r.Norm = stats.Norm
	stepped, err := t.scaler.Step(group, nil, func() error { return t.apply(ctx, r.Rate, stats.Norm) })
	if err != nil {
		return err
	}
	if err := t.scaler.Update(); err != nil {
		return err
	}
	if !stepped {
		r.Skipped = fmt.Sprintf("%s; the loss scale was %v and is %v", t.overflows(stats), r.Scale, t.scaler.Scale())
	}
	return nil
}

// clip returns the factor that clips gradients of this norm.
func (t *Trainer[B]) clip(norm float64) float32 {
	if t.options.Clip == 0 {
		return 1
	}
	return amp.ClipCoef(norm, t.options.Clip)
}

// overflows names the gradients that are not finite, with their micro-batch if the window has measured it.
func (t *Trainer[B]) overflows(stats amp.Stats) string {
	var found []snug.NonFinite
	if t.window != nil {
		found = t.window.NonFinite()
	}
	if len(found) == 0 {
		found = stats.Overflows
	}
	if len(found) == 0 {
		return t.overflowsElsewhere()
	}
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

// apply updates every parameter, or this rank's part of it, with its gradient, which is clipped. norm is that of all
// gradients. Where the updates of matrices may take seconds it looks between them whether ctx has ended.
func (t *Trainer[B]) apply(ctx context.Context, rate float32, norm float64) (err error) {
	if err := ctx.Err(); err != nil {
		return err
	}
	slow := t.opt.Operations() > slowUpdate
	if t.pages != nil {
		defer func() { err = errors.Join(err, t.pages.grads.end()) }()
		if err := t.copyGradients(); err != nil {
			return err
		}
	}
	coef := t.clip(norm)
	t.opt.Advance(rate)
	t.opt.Within(norm) // it was measured just now
	t.halfway, t.updating = true, ""
	if t.pages == nil { // else the optimizer works on the host
		dev := t.params[0].value.Device()
		device.Hold(dev)
		defer func() { err = errors.Join(err, device.Release(dev)) }()
	}
	for _, p := range t.params {
		if err := ctx.Err(); slow && err != nil {
			return err
		}
		t.updates(p.name)
		grad, err := t.gradient(p)
		if err != nil {
			return err
		}
		step := func(lo int, w snug.View) error {
			g, err := grad.Slice(lo, lo+w.Len())
			if err == nil && t.pages != nil {
				g, err = t.pages.grads.next(g)
			}
			if err != nil {
				return err
			}
			return t.opt.StepRange(p.name, lo, w, g, coef)
		}
		err = t.change(p, func(_ int, value snug.View) error {
			switch {
			case p.mastered:
				return t.master.Update(p.name, value, step)
			case t.pages != nil:
				return t.pages.update(value, step)
			}
			return step(0, value)
		})
		if err != nil {
			return err
		}
	}
	return t.gather()
}

// slowUpdate is about the floating-point operations of a second, of the updates of all parameters.
const slowUpdate = 1e10

// copyGradients starts to copy the gradients to the host, in the order of their use.
func (t *Trainer[B]) copyGradients() error {
	for _, p := range t.params {
		grad, err := t.gradient(p)
		if err != nil {
			return err
		}
		t.pages.grads.add(grad)
	}
	return t.pages.grads.begin()
}

// updates tells the Monitor that the optimizer updates a parameter, if its layer is not that of the last update.
func (t *Trainer[B]) updates(name string) {
	if layer := plan.LayerOf(name); t.options.Monitor != nil && layer != t.updating {
		t.updating = layer
		t.options.Monitor.Enter(plan.Update, layer)
	}
}

// stopped returns the error of calls that cannot go on from half a step.
func (t *Trainer[B]) stopped() error {
	return fmt.Errorf("step %d stopped half-way: resume the newest checkpoint: %w", t.step+1, snug.ErrConfig)
}

// advance begins a step in the backward pass, unless a failed attempt that changed nothing has already begun it.
func (t *Trainer[B]) advance(rate float32) {
	if !t.begun || t.halfway {
		t.opt.Advance(rate)
	}
	t.begun = true
}

// trainInBackward is train with an update of each parameter in the backward pass.
func (t *Trainer[B]) trainInBackward(ctx context.Context, batches []B, r *Report) error {
	if t.options.Gradients == plan.Folded {
		return t.trainFolding(ctx, batches, r)
	}
	if len(batches) != 1 {
		return fmt.Errorf("%d micro-batches, and InBackward takes one: %w", len(batches), snug.ErrConfig)
	}
	t.advance(r.Rate)
	measures := t.options.Clip > 0 // the first pass only measures the norm
	norm, err := t.opt.StepInBackward(quant8.BackwardOptions{MaxNorm: t.options.Clip}, func(ready quant8.Ready) error {
		if !measures {
			ready = t.changing(ready)
		}
		measures = false
		t.single.begin(ready)
		loss, err := t.backprop(ctx, batches[0], 1, t.single)
		if err != nil {
			return err
		}
		r.Loss, r.Targets = loss.Mean(), loss.Targets
		return t.single.end()
	})
	r.Norm = norm
	return err
}

// changing wraps ready to note that the step has changed parameters or the state. A gradient that is not finite changes
// neither.
func (t *Trainer[B]) changing(ready quant8.Ready) quant8.Ready {
	return func(name string, p, g snug.View) error {
		before := t.halfway
		t.halfway = true
		err := ready(name, p, g)
		if errors.Is(err, snug.ErrNonFinite) {
			t.halfway = before
		}
		return err
	}
}

// leastShare is the share of the weight of a folded step below which a micro-batch is left out. It is more than the
// tolerance with which FoldInBackward compares sums of weights.
const leastShare = 0x1p-29

// weighing returns the micro-batches of a folded step whose weight is not negligible, and the sum of their weights.
func (t *Trainer[B]) weighing(batches []B) (list []B, weight float64) {
	total := 0.0
	for _, b := range batches {
		total += t.model.Weight(b)
	}
	little := func(b B) bool { return t.model.Weight(b) < leastShare*total }
	if math.IsInf(total, 1) || !slices.ContainsFunc(batches, little) {
		return batches, total
	}
	for _, b := range batches {
		if !little(b) {
			list, weight = append(list, b), weight+t.model.Weight(b)
		}
	}
	return list, weight
}

// trainFolding is trainInBackward with any number of micro-batches.
func (t *Trainer[B]) trainFolding(ctx context.Context, batches []B, r *Report) (err error) {
	o := quant8.FoldOptions{MaxNorm: t.options.Clip}
	batches, o.Total = t.weighing(batches)
	var all fused.Loss
	t.advance(r.Rate)
	for i, b := range batches {
		o.Weight = t.model.Weight(b)
		_, r.Norm, err = t.opt.FoldInBackward(o, func(ready quant8.Ready) error {
			t.single.begin(t.changing(ready))
			loss, err := t.backprop(ctx, b, 1, t.single)
			if err != nil {
				return err
			}
			all = all.Plus(loss)
			return t.single.end()
		})
		if err != nil {
			return fmt.Errorf("micro-batch %d: %w", i, err)
		}
	}
	r.Loss, r.Targets = all.Mean(), all.Targets
	return nil
}
