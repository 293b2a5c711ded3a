package train

import (
	"fmt"

	"github.com/snug-ml/snug/internal/fault"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/quant8"
)

// Average puts into the model the parameters with which it is evaluated and saved. With an optimizer whose Traits
// say that it Averages they are averages; with others Average does nothing. Until the next Train, the memory of the gradients holds the
// parameters in training, so that Average takes no further memory. The next Train restores them bit for bit.
//
// Evaluate and Close call Average. A program has to call it only if it evaluates or saves the model itself, after Train
// and before Close.
//
// After an error, too, the next Train restores the parameters in training. The error comes from the optimizer, the
// Storage or the device, or wraps [snug.ErrConfig] after Close.
func (t *Trainer[B]) Average() (err error) {
	defer fault.Named(&err, "train: Average")
	switch {
	case t.closed():
		return fmt.Errorf("the Trainer is closed: %w", snug.ErrConfig)
	case !quant8.TraitsOf(t.options.Optimizer).Averages || t.averaged:
		return nil
	case t.halfway:
		return t.stopped()
	}
	return t.gradients.average(true)
}

func (w *window[B]) average(on bool) error {
	if !on && w.t.averaged {
		if err := w.each(func(_ string, spare, value snug.View, _ int) error { return convert(value, spare) }); err != nil {
			return fmt.Errorf("the parameters that train: %w", err)
		}
		w.t.averaged = false
	}
	if !on {
		return nil
	}
	if err := w.each(func(_ string, spare, value snug.View, _ int) error { return convert(spare, value) }); err != nil {
		return err
	}
	w.t.averaged = true
	return w.each(func(name string, _, value snug.View, lo int) error { return w.opt.Average(name, lo, value, value) })
}

// each calls do for all weights in parts. value is a part as the optimizer sees it, beginning at element lo of the
// parameter; spare is the memory of its gradient.
func (w *window[B]) each(do func(name string, spare, value snug.View, lo int) error) error {
	begin := 0
	for _, p := range w.t.params {
		step := func(lo int, value snug.View) error {
			spare, err := w.buffer.Slice(begin+lo, begin+lo+value.Len())
			if err != nil {
				return err
			}
			return do(p.name, spare, value, lo)
		}
		var err error
		switch {
		case !p.mastered:
			err = w.place.update(p.value, step)
		case w.t.options.Masters == amp.NoMaster: // whose Update rounds at random
			err = step(0, p.value)
		default:
			err = w.master.Update(p.name, p.value, step)
		}
		if err != nil {
			return err
		}
		begin += p.n
	}
	return nil
}

// convert copies between float32 and the type of a parameter, which holds the values exactly.
func convert(to, from snug.View) error {
	if to.DType() == from.DType() {
		return snug.Copy(to, from)
	}
	return amp.Cast(to, from)
}
