package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/offload"
	"github.com/snug-ml/snug/plan"
	"github.com/snug-ml/snug/quant8"
)

// maxNorm is what the gradient's norm is clipped to.
const maxNorm = 1

// trainer is a model and what updates it.
type trainer struct {
	*model
	data   *corpus
	scaler *amp.Scaler // nil without mixed precision
	master *amp.Master // nil without mixed precision
	opt    *quant8.Optimizer
	store  *offload.Store // nil without offload
	step   int            // steps done
	first  float64        // loss on held-out text before training
	host   *hostStep      // nil unless a device's state is paged on the host

	skipped         string // why the last step was skipped, if it was
	inputs, targets []int32
}

// newTrainer makes a trainer on dev with the model's first weights, or with those
// of the newest checkpoint. pages is the folder for paged state.
func newTrainer(dev *snug.Device, c config, data *corpus, pages string, saved *checkpoints) (t *trainer, err error) {
	m, err := newModel(dev, c)
	if err != nil {
		return nil, err
	}
	t = &trainer{model: m, data: data}
	defer func() {
		if err != nil {
			err = errors.Join(err, t.Close())
		}
	}()
	t.inputs = make([]int32, c.batch().Micro*c.context)
	t.targets = make([]int32, len(t.inputs))

	adam := c.optimizerOptions()
	var hold amp.MasterOptions
	hold.Chunk = c.chunk
	if c.on[useOffload] {
		if t.store, err = offload.Open(pages, offload.Options{HostLimit: c.hostLimit()}); err != nil {
			return t, err
		}
		adam.Storage, hold.Storage = t.store, t.store
		if !dev.IsCPU() {
			t.host = newHostStep(c.chunk)
		}
	} else {
		hold.Device = dev
	}
	if t.opt, err = quant8.New(rule, adam); err != nil {
		return t, err
	}
	if c.on[useAMP] {
		if t.scaler, err = amp.NewScaler(amp.ScalerOptions{}); err != nil {
			return t, err
		}
		if t.master, err = amp.NewMaster(hold); err != nil {
			return t, err
		}
	}
	for _, p := range m.params {
		if err := t.opt.Add(p.name, p.len()); err != nil {
			return t, err
		}
		if t.master != nil && saved.about != nil { // what begin does otherwise
			if err := t.master.Add(p.name, p.len(), nil); err != nil {
				return t, err
			}
		}
	}
	if saved.about != nil {
		err = saved.restore(t)
	} else {
		err = t.begin()
	}
	t.count()
	return t, cmp.Or(err, t.meter.Check())
}

// begin gives every parameter its first values.
func (t *trainer) begin() error {
	for i, p := range t.params {
		fill := t.firstValues(i)
		if t.master == nil {
			w := make([]float32, p.len())
			if err := fill(0, w); err != nil {
				return err
			}
			if err := snug.Copy(p.value, w); err != nil {
				return err
			}
			continue
		}
		if err := t.master.Add(p.name, p.len(), fill); err != nil {
			return err
		}
		if err := t.master.Copy(p.name, p.value); err != nil {
			return err
		}
	}
	return nil
}

// count tells the meter what the optimizer holds. Everything in memory counts on the device,
// as one memory; of pages it is told again where they are.
func (t *trainer) count() {
	if t.store != nil {
		s := t.store.Stats()
		t.meter.Set(plan.OnDevice, plan.State, s.HostBytes, s.HostPeak)
		t.meter.Set(plan.OnHost, plan.State, s.HostBytes, s.HostPeak)
		t.meter.Set(plan.OnDisk, plan.State, s.DiskBytes, s.DiskBytes)
		return
	}
	t.meter.Set(plan.OnDevice, plan.State, t.opt.StateBytes(), 0)
	if t.master != nil {
		t.meter.Set(plan.OnDevice, plan.Masters, t.master.Bytes(), 0)
	}
}

// Close frees the paged state.
func (t *trainer) Close() error {
	err := t.meter.Close()
	if t.store != nil {
		err = errors.Join(err, t.store.Close())
	}
	return err
}

// lossScale returns what losses are multiplied by.
func (t *trainer) lossScale() float32 {
	if t.scaler == nil {
		return 1
	}
	return t.scaler.Scale()
}

// train does one step: the micro-batches of a window, then the update. It
// returns the mean loss.
func (t *trainer) train(ctx context.Context) (float64, error) {
	sum := 0.0
	for micro := range t.batch().Window {
		loss, err := t.microStep(ctx, micro)
		if err != nil {
			return 0, err
		}
		sum += loss
	}
	stepped, err := t.update()
	if err != nil {
		return 0, err
	}
	mean := sum / t.window.Weight()
	if stepped {
		t.window.Reset()
	} else {
		t.window.Skip()
	}
	t.count()
	t.step++
	return mean, t.meter.Check()
}

// microStep adds the gradients of a micro-batch to the window. It returns the sum
// of the losses.
func (t *trainer) microStep(ctx context.Context, micro int) (float64, error) {
	b := t.batch()
	first, end := b.Samples(0, micro)
	t.shape(end-first, t.context)
	n := (end - first) * t.context
	inputs, targets := t.inputs[:n], t.targets[:n]
	for i := first; i < end; i++ {
		at := uint64(t.step)*uint64(b.Global) + uint64(i)
		lo, hi := (i-first)*t.context, (i-first+1)*t.context
		sequence(inputs[lo:hi], targets[lo:hi], t.data.train, mix(t.seed)+at)
	}
	if err := t.window.Begin(float64(n)); err != nil {
		return 0, err
	}
	loss, err := t.backprop(ctx, inputs, targets, t.lossScale())
	if err != nil {
		return 0, err
	}
	if t.step+1 == t.poison && micro == b.Window/2 {
		if err := t.putNaN(); err != nil {
			return 0, err
		}
	}
	_, err = t.window.End()
	return loss, err
}

// putNaN puts a NaN into the gradient of a weight in the middle of the model, as
// an overflow would.
func (t *trainer) putNaN() error {
	acc, _, err := t.window.Into(fmt.Sprintf("block%d.up", t.layers/2))
	if err != nil {
		return err
	}
	return snug.Copy(sub(acc, acc.Len()/3, 1), []float32{float32(math.NaN())})
}

// update steps the optimizer with the window's gradients, unless they
// overflowed and the loss scale has to shrink.
func (t *trainer) update() (stepped bool, err error) {
	t.skipped = ""
	if t.scaler == nil {
		stats, err := amp.Measure(t.window.Gradients())
		if err != nil {
			return false, err
		}
		if err := stats.Err(); err != nil {
			return false, fmt.Errorf("%s: %w", t.overflows(stats), err)
		}
		return true, t.apply(amp.ClipCoef(stats.Norm, maxNorm))
	}
	stats, err := t.scaler.Unscale("adamw", t.window.Gradients())
	if err != nil {
		return false, err
	}
	stepped, err = t.scaler.Step("adamw", nil, func() error { return t.apply(amp.ClipCoef(stats.Norm, maxNorm)) })
	if err != nil {
		return false, err
	}
	scale := t.scaler.Scale()
	if err := t.scaler.Update(); err != nil {
		return false, err
	}
	if !stepped {
		t.skipped = fmt.Sprintf("step %d is skipped: %s; the loss scale was %v and is %v", t.step+1, t.overflows(stats), scale, t.scaler.Scale())
	}
	return stepped, nil
}

// overflows says where the values are that are not finite: by micro-batch, if the
// window has measured them.
func (t *trainer) overflows(stats amp.Stats) string {
	found := t.window.NonFinite()
	if len(found) == 0 {
		found = stats.Overflows
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

// apply updates every parameter with its gradient times coef.
func (t *trainer) apply(coef float32) error {
	t.opt.Advance(t.learningRate(t.step))
	for _, p := range t.params {
		grad, err := t.window.Gradient(p.name)
		if err != nil {
			return err
		}
		step := func(lo int, w snug.View) error {
			g := sub(grad, lo, w.Len())
			if t.host != nil {
				if g, err = t.host.gradient(g); err != nil {
					return err
				}
			}
			return t.opt.StepRange(p.name, lo, w, g, coef)
		}
		switch {
		case t.master != nil:
			err = t.master.Update(p.name, p.value, step)
		case t.host != nil:
			err = t.host.update(p.value, step)
		default:
			err = step(0, p.value)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// hostStep brings a chunk at a time of what lies on a device to the host, where
// the pages of the optimizer's state are, as ZeRO-Offload does.
type hostStep struct{ grad, weights []float32 }

func newHostStep(chunk int) *hostStep {
	return &hostStep{make([]float32, chunk), make([]float32, chunk)}
}

// gradient returns a copy of g on the host, valid until the next.
func (h *hostStep) gradient(g snug.View) (snug.View, error) {
	there := snug.ViewOf(h.grad[:g.Len()])
	return there, snug.Copy(there, g)
}

// update calls step with copies of the chunks of float32 weights and writes
// them back.
func (h *hostStep) update(weights snug.View, step func(lo int, w snug.View) error) error {
	for lo := 0; lo < weights.Len(); lo += len(h.weights) {
		n := min(len(h.weights), weights.Len()-lo)
		there, w := snug.ViewOf(h.weights[:n]), sub(weights, lo, n)
		if err := snug.Copy(there, w); err != nil {
			return err
		}
		if err := step(lo, there); err != nil {
			return err
		}
		if err := snug.Copy(w, there); err != nil {
			return err
		}
	}
	return nil
}

// heldOutLoss returns the mean loss on fixed sequences of held-out text.
func (t *trainer) heldOutLoss(ctx context.Context) (float64, error) {
	t.shape(1, t.context)
	inputs, targets := t.inputs[:t.context], t.targets[:t.context]
	sum := 0.0
	for i := range t.heldOut {
		sequence(inputs, targets, t.data.held, uint64(i))
		loss, err := t.evaluate(ctx, inputs, targets)
		if err != nil {
			return 0, err
		}
		sum += loss
	}
	return sum / float64(t.heldOut*t.context), nil
}

// held returns the bytes that are held now.
func (t *trainer) held() int64 {
	now, _ := t.meter.Held()
	return now[plan.OnDevice].Total()
}
