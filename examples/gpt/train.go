package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/offload"
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
	opt    *quant8.AdamW
	store  *offload.Store // nil without offload
	step   int            // steps done
	first  float64        // loss on held-out text before training
	host   *hostStep      // nil unless a device's state is paged on the host

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
	sequences, _ := c.batch()
	t.inputs = make([]int32, sequences*c.context)
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
	if t.opt, err = quant8.NewAdamW(adam); err != nil {
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
	}
	if saved.header != nil {
		err = saved.restore(t)
	} else {
		err = t.begin()
	}
	t.count()
	return t, err
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

// count tells the meter what the optimizer holds.
func (t *trainer) count() {
	if t.store != nil {
		s := t.store.Stats()
		t.meter.set(optimizer, s.HostBytes, s.HostPeak)
		return
	}
	t.meter.set(optimizer, t.opt.StateBytes(), 0)
	if t.master != nil {
		t.meter.set(masters, t.master.Bytes(), 0)
	}
}

// Close frees the paged state.
func (t *trainer) Close() error {
	if t.store == nil {
		return nil
	}
	return t.store.Close()
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
	sequences, micros := t.batch()
	t.shape(sequences, t.context)
	scale := t.lossScale()
	sum := 0.0
	for micro := range micros {
		for i := range sequences {
			at := uint64(t.step)*uint64(sequences*micros) + uint64(micro*sequences+i)
			lo, hi := i*t.context, (i+1)*t.context
			sequence(t.inputs[lo:hi], t.targets[lo:hi], t.data.train, mix(t.seed)+at)
		}
		if err := t.window.Begin(float64(len(t.targets))); err != nil {
			return 0, err
		}
		loss, err := t.backprop(ctx, t.inputs, t.targets, scale)
		if err != nil {
			return 0, err
		}
		if _, err := t.window.End(); err != nil {
			return 0, err
		}
		sum += loss
	}
	if err := t.update(); err != nil {
		return 0, err
	}
	t.window.Reset()
	t.count()
	t.step++
	return sum / float64(micros*len(t.targets)), nil
}

// update steps the optimizer with the window's gradients, unless they
// overflowed and the loss scale has to shrink.
func (t *trainer) update() error {
	if t.scaler == nil {
		stats, err := amp.Measure(t.window.Gradients())
		if err != nil {
			return err
		}
		if err := stats.Err(); err != nil {
			return fmt.Errorf("step %d: %w", t.step+1, err)
		}
		return t.apply(amp.ClipCoef(stats.Norm, maxNorm))
	}
	stats, err := t.scaler.Unscale("adamw", t.window.Gradients())
	if err != nil {
		return err
	}
	_, err = t.scaler.Step("adamw", nil, func() error { return t.apply(amp.ClipCoef(stats.Norm, maxNorm)) })
	if err != nil {
		return err
	}
	return t.scaler.Update()
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
