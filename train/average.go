package train

import (
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/quant8"
)

// averages reports whether the parameters that are evaluated are not those that train.
func (o *Options) averages() bool {
	_, is := o.Optimizer.(quant8.ScheduleFree)
	return is
}

// Average gives the model the parameters that are to be evaluated and saved: with [quant8.ScheduleFree] their averages.
// Other optimizers evaluate what they train, and Average does nothing. Evaluate and Close call it, and the next Train
// goes on with the bits of the parameters that train, which the memory of the gradients holds meanwhile. Only a program
// that evaluates or saves the model between Train and Close without Evaluate has to call Average itself.
//
// After an error the next Train brings back the parameters that train. The error is that of the optimizer, the Storage
// or the device.
func (t *Trainer[B]) Average() error {
	if err := t.average(); err != nil {
		return fmt.Errorf("train: Average: %w", err)
	}
	return nil
}

func (t *Trainer[B]) average() error {
	switch {
	case t.closed():
		return fmt.Errorf("the Trainer is closed: %w", snug.ErrConfig)
	case !t.options.averages() || t.averaged:
		return nil
	case t.halfway:
		return t.stopped()
	}
	if err := t.each(func(_ string, spare, w snug.View, _ int) error { return convert(spare, w) }); err != nil {
		return err
	}
	t.averaged = true
	return t.each(func(name string, _, w snug.View, lo int) error { return t.opt.Average(name, lo, w, w) })
}

// trainable gives the model the parameters that train, after Average.
func (t *Trainer[B]) trainable() error {
	if !t.averaged {
		return nil
	}
	if err := t.each(func(_ string, spare, w snug.View, _ int) error { return convert(w, spare) }); err != nil {
		return fmt.Errorf("the parameters that train: %w", err)
	}
	t.averaged = false
	return nil
}

// each calls do for parts of all weights as the optimizer sees them, from element lo on, with their place in the memory
// of the gradients.
func (t *Trainer[B]) each(do func(name string, spare, w snug.View, lo int) error) error {
	begin := 0
	for _, p := range t.params {
		step := func(lo int, w snug.View) error {
			spare, err := t.buffer.Slice(begin+lo, begin+lo+w.Len())
			if err != nil {
				return err
			}
			return do(p.name, spare, w, lo)
		}
		var err error
		switch {
		case p.mastered && t.options.Masters != amp.NoMaster: // which rounds at random
			err = t.master.Update(p.name, p.value, step)
		case t.pages != nil && p.value.DType() == snug.F32:
			err = t.pages.update(p.value, step)
		default:
			err = step(0, p.value)
		}
		if err != nil {
			return err
		}
		begin += p.value.Len()
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
