package accum

import (
	"errors"
	"fmt"
	"iter"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/device"
)

// NonFinite returns the NaNs and infinities that were found in the micro-batches
// of this window, with Measure or DropMicro: for the first micro-batch that has
// any, and for each that was dropped, all gradients that hold them, in the order
// of the parameters; for later ones, and with a Reducer, the first gradient, with
// the count of all. Micro is the number of the micro-batch. The slice is valid
// until Reset.
func (w *Window) NonFinite() []snug.NonFinite { return w.overflows }

// Moments returns what the norms of this window's micro-batches say of the noise
// of gradients, for [NoiseScale.Observe], with Measure or DropMicro; the zero
// Moments without, and while the window is not full. The losses' scale is
// divided out where Options.Scaler tells it. Where kernels add in place, only
// the first micro-batch's gradient is ever seen by itself, and it alone counts.
func (w *Window) Moments() Moments {
	n := &w.noise
	if !w.full || n.counted == 0 || w.Total() == 0 {
		return Moments{}
	}
	m := Moments{Squares: n.sum / n.weight, Inverse: float64(n.counted) / n.weight, Total: w.Total()}
	if n.inPlace {
		m.Squares, m.Inverse = n.first, 1/n.firstWeight
	}
	if w.scaler != nil {
		m.Squares /= float64(w.scale) * float64(w.scale)
	}
	return m
}

// noise gathers the squared norms of a window's micro-batches.
type noise struct {
	sum, weight        float64 // Σ nᵢ|gᵢ|², Σ nᵢ
	first, firstWeight float64 // |g|² of the first, and its n
	counted            int
	inPlace            bool // some were added by kernels
}

func (n *noise) add(squares, weight float64, inPlace bool) {
	if n.counted == 0 {
		n.first, n.firstWeight = squares, weight
	}
	n.sum += weight * squares
	n.weight += weight
	n.counted++
	n.inPlace = n.inPlace || inPlace
}

func (n *noise) rescale(factor float64) {
	n.sum *= factor * factor
	n.first *= factor * factor
}

// measure queues a measurement of g, the gradient or the accumulator of a
// parameter, and adds it to acc unless that is empty.
func (w *Window) measure(p *param, acc, g snug.View, alpha, beta float32) error {
	if !w.measures || g.Len() == 0 {
		return nil
	}
	records, err := w.found.On(g)
	if err != nil {
		return err
	}
	return measuredJob{acc: acc, g: g, records: records, alpha: alpha, beta: beta, ordinal: int64(w.index[p.Name]) + 1}.launch(w.device)
}

// inspect drops the micro-batch if its gradients hold a non-finite value.
func (w *Window) inspect(grads iter.Seq2[string, snug.View], checked int) error {
	if err := w.walkAgain(grads, w.look, checked); err != nil {
		return err
	}
	if err := w.found.Collect(); err != nil {
		return fmt.Errorf("accum: AddAll: %w", err)
	}
	if w.dropped = w.found.Total.NonFinite > 0; !w.dropped {
		return nil
	}
	before := len(w.overflows)
	if err := w.walkAgain(grads, w.locateOne, checked); err != nil {
		return err
	}
	slices.SortFunc(w.overflows[before:], func(a, b snug.NonFinite) int { return w.index[a.Name] - w.index[b.Name] })
	return nil
}

// locateOne notes the non-finite values of a gradient.
func (w *Window) locateOne(name string, g snug.View) bool {
	if !w.checkOne(name, g) {
		return false
	}
	if err := w.locate(&w.params[w.index[name]], g); err != nil {
		w.walkErr = fmt.Errorf("accum: AddAll: gradient %q: %w", name, err)
	}
	return w.walkErr == nil
}

// lookOne queues the measurement of a gradient.
func (w *Window) lookOne(name string, g snug.View) bool {
	if !w.checkOne(name, g) {
		return false
	}
	w.half = "AddAll"
	if err := w.measure(&w.params[w.index[name]], snug.View{}, g, 0, 0); err != nil {
		w.walkErr = fmt.Errorf("accum: AddAll: gradient %q: %w", name, err)
	}
	return w.walkErr == nil
}

// locate notes the non-finite values of one vector of a parameter.
func (w *Window) locate(p *param, v snug.View) error {
	w.found.Reset()
	if err := w.measure(p, snug.View{}, v, 0, 0); err != nil {
		return err
	}
	if err := w.found.Collect(); err != nil {
		return err
	}
	if w.found.Total.NonFinite > 0 {
		w.note(p)
	}
	return nil
}

// note adds what was found to the overflows.
func (w *Window) note(p *param) {
	found := w.found.Found(p.Name)
	found.Micro = w.micros
	w.overflows = append(w.overflows, found)
}

// measured takes what the gradients of the micro-batch that ends hold.
func (w *Window) measured() error {
	if !w.measures || w.micro == 0 || w.dropped {
		return nil
	}
	if err := w.measureAllInPlace(); err != nil {
		return err
	}
	if err := w.found.Collect(); err != nil {
		return err
	}
	total := w.found.Total
	switch {
	case total.NonFinite == 0:
		w.noise.add(total.Squares, w.micro, w.inPlace)
	case len(w.overflows) > 0 || w.reducer != nil:
		w.note(&w.params[total.Ordinal-1])
	default:
		return w.locateAll()
	}
	return nil
}

func (w *Window) measureAllInPlace() (err error) {
	device.Hold(w.device)
	defer func() { err = errors.Join(err, device.Release(w.device)) }()
	for i := range w.params {
		if err := w.measureInPlace(&w.params[i]); err != nil {
			return err
		}
	}
	return nil
}

// measureInPlace measures the accumulator of a parameter that kernels have added
// to, once in a micro-batch. Where there are non-finite values already, more
// cannot be told from them.
func (w *Window) measureInPlace(p *param) error {
	if !p.inPlace {
		return nil
	}
	p.inPlace = false
	if len(w.overflows) > 0 {
		return nil
	}
	return w.measure(p, snug.View{}, p.acc, 0, 0)
}

// locateAll looks for non-finite values in the accumulators, which had none
// before this micro-batch.
func (w *Window) locateAll() error {
	for i := range w.params {
		if err := w.locate(&w.params[i], w.params[i].acc); err != nil {
			return err
		}
	}
	return nil
}
