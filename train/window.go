package train

import (
	"context"
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/accum"
	"github.com/snug-ml/snug/fused"
	"github.com/snug-ml/snug/internal/fault"
	"github.com/snug-ml/snug/meter"
)

// window holds the mean gradients of a step in float32, from the first micro-batch to the update. With a Reducer the mean is
// that of all ranks.
type window[B any] struct {
	updater[B]
	acc    *accum.Window
	micros micros
	buffer snug.View // the gradients
}

// micros is the schedule of a window that ends after so many micro-batches.
type micros int

func (m *micros) Target(accum.Progress) accum.Target { return accum.Target{Micros: int(*m)} }

func (*window[B]) traits() traits                   { return traits{held: true, backward: true} }
func (*window[B]) excludes(o *Options) []fault.Rule { return nil }

func (w *window[B]) make() (err error) {
	if err := w.updater.make(); err != nil {
		return err
	}
	t := w.t
	list, n := make([]accum.Param, len(t.params)), 0
	for i, p := range t.params {
		list[i] = accum.Param{Name: p.name, Len: p.n}
		n += p.n
		t.holders.add(meter.Gradients, p.name, 4*int64(p.n))
	}
	buffer, free, err := snug.MakeView(t.params[0].value.Device(), snug.F32, n)
	if err != nil {
		return fmt.Errorf("gradients of %d elements: %w", n, err)
	}
	t.closes(free)
	w.buffer, w.micros = buffer, 1
	w.acc, err = accum.New(list, accum.Options{Schedule: &w.micros, Buffer: buffer, Measure: t.options.Measure,
		Reducer: t.options.Reducer, Bucket: t.options.Bucket})
	return err
}

func (w *window[B]) pass(ctx context.Context, batches []B, _ float32) (all fused.Loss, err error) {
	t := w.t
	more, err := t.missingPasses(len(batches))
	if err != nil {
		return all, err
	}
	w.micros = micros(max(1, len(batches)))
	begin := func(b B) error { return w.acc.Begin(t.model.Weight(b)) }
	end := func() error {
		_, err := w.acc.End()
		return err
	}
	if more > 0 {
		err := t.emptyPasses(ctx, more, batches[0], intoOnly{w.acc}, begin, func() error {
			w.acc.Reset()
			return nil
		})
		if err != nil {
			return all, err
		}
	}
	if len(batches) == 0 { // other ranks have some
		if err := w.acc.Begin(0); err != nil {
			return all, err
		}
		return all, end()
	}
	return t.passes(ctx, batches, w.acc, begin, end)
}

func (w *window[B]) norm() (f found, err error) {
	if f.Stats, err = w.t.scale.measure(w.acc.Gradients()); f.NonFinite == 0 {
		return f, err
	}
	if f.overflows = named(w.acc.NonFinite()); f.overflows == "" { // else the window has measured each micro-batch
		f.overflows = named(f.Overflows)
	}
	return f, err
}

func (w *window[B]) apply(ctx context.Context, rate float32, norm float64) error {
	return w.update(ctx, rate, norm, w.acc.Gradient)
}

func (w *window[B]) end(skipped bool) {
	if skipped {
		w.acc.Skip()
	} else {
		w.acc.Reset()
	}
}

func (w *window[B]) bytes() meter.Bytes {
	b := w.updater.bytes()
	b[meter.Gradients] = int64(w.buffer.Bytes())
	return b
}
