package accum

import (
	"fmt"
	"iter"

	"github.com/snug-ml/snug"
)

// Gradients yields the name and the mean gradient of every parameter, in the order given to New: views of the window's
// vector, valid until the next Begin or Reset. The mean is over the micro-batches that have ended. Gradients yields
// nothing before the first has ended, while one is open, and once a call has stopped half-way; with a Reducer it yields
// nothing until the window is full and reduced. With Shard it yields the parts that [Window.Part] returns, and leaves
// out parameters without a part on this rank. The caller may change the values of a full window, as unscaling and
// clipping do.
func (w *Window) Gradients() iter.Seq2[string, snug.View] {
	if w.gradients == nil {
		return func(func(string, snug.View) bool) {}
	}
	return w.gradients
}

func (w *Window) yieldGradients(yield func(string, snug.View) bool) {
	if !w.readable() {
		return
	}
	for i := range w.params {
		p := &w.params[i]
		_, grad := w.part(p)
		if grad.Len() == 0 && p.Len > 0 {
			continue
		}
		if !yield(p.Name, grad) {
			return
		}
	}
}

func (w *Window) readable() bool {
	return w.half == "" && (w.full || w.micros > 0 && !w.open && w.reducer == nil)
}

// Gradient returns the mean gradient of one parameter, as Gradients yields it.
// The error wraps [snug.ErrConfig] for an unknown name, and when Gradients
// yields nothing.
func (w *Window) Gradient(name string) (snug.View, error) {
	_, grad, err := w.Part(name)
	return grad, err
}

// Part returns the part of the mean gradient of one parameter that this rank
// has: with Shard the elements from lo on that are in its shard, which may be
// none, otherwise all of them. Its errors are the errors of [Window.Gradient].
func (w *Window) Part(name string) (lo int, grad snug.View, err error) {
	p, err := w.lookup("Gradient", name)
	if err != nil {
		return 0, snug.View{}, err
	}
	if !w.readable() {
		return 0, snug.View{}, fmt.Errorf("accum: Gradient: parameter %q: no micro-batch has ended, one is open, or nothing is reduced yet: %w", name, snug.ErrConfig)
	}
	lo, grad = w.part(p)
	return lo, grad, nil
}
