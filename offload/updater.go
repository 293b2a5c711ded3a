package offload

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"github.com/snug-ml/snug"
)

// Stepper is an optimizer that updates parameters range by range, such as a
// quant8.Optimizer with the Updater's Store as its Storage.
type Stepper interface {
	// Add registers a parameter of n elements.
	Add(name string, n int) error
	// Advance begins the next step.
	Advance(lr float32)
	// StepRange updates p, the elements of the parameter that begin at lo, with their
	// gradient g·gradScale.
	StepRange(name string, lo int, p, g snug.View, gradScale float32) error
}

// UpdaterOptions configure an [Updater]. The zero value is valid.
type UpdaterOptions struct {
	// PageLen is the number of elements of a page of weights and of gradients, and of the
	// ranges that the Stepper gets. The chunk length of the Stepper must divide it. 0 means
	// 65536, which is also the default chunk of package quant8 unless its Block is not a
	// power of two. A rule that needs whole parameters needs a PageLen of the
	// longest parameter.
	PageLen int
	// Delayed makes [Updater.Step] start its update and return; the next Step waits for
	// it. The update runs in parallel with the next forward and backward pass, which use
	// the parameters of the step before: the gradients of step t use parameters updated
	// through step t-2, as in ZeRO-Offload's delayed parameter update (Ren et al. 2021,
	// section 5.2). The store holds a second set of gradients.
	Delayed bool
	// Mover copies gradients and parameters that lie on its device. Vectors on other
	// devices are copied in the queue of their device.
	Mover *Mover
}

// Updater trains parameters and keeps only a few pages of them in host memory at a time.
// The float32 weights, the sums of the gradients and, through a [Stepper], the state of
// the optimizer are pages of a [Store]. The model has the parameters in its own type and
// on its own device. A step is a pipeline over pages: while it computes a page, the store
// reads the next pages and writes the pages before.
//
//	u, err := NewUpdater(store, opt, UpdaterOptions{})
//	err = u.Add("w", len(w), fill)          // for every parameter: its first weights
//	steps, err := u.Resume()                // that the store has; 0 in a new one
//	err = u.Bind("w", snug.ViewOf(w))       // where the model has it
//	for each further step {
//		err = u.Accumulate("w", 0, g, 1)    // as gradients arrive, in any order and pieces
//		norm, err := u.Norm()               // to clip, or to skip the step: u.Drop()
//		err = u.Step(lr, gradScale)
//	}
//	err = u.Commit()                        // or BeginCommit, during the next steps
//
// Weights, gradients and results have the bits of the same steps in memory. The HostLimit
// of the store must hold a page of weights, a page of gradients, the pages that one
// StepRange of the Stepper pins, and with Delayed another page of gradients. A step of
// pages that are in memory allocates nothing.
//
// Accumulate may be called from many goroutines, for elements that do not overlap. Other
// methods run alone. After an error of Step or Wait some parameters are updated and others
// are not, and all calls return the error: open the store again and call [Updater.Resume],
// which continues from the last commit. A panic of the Stepper reaches the caller of Step,
// or with Delayed of the call that ends the update; all later calls return an error that
// wraps [snug.ErrConfig].
type Updater struct {
	s      *Store
	opt    Stepper
	o      UpdaterOptions
	params []*updated
	byName map[string]*updated
	steps  int
	set    int   // set of gradients that Accumulate adds to
	under  *task // the update under way; nil if there is none
	err    error
	resume bool // the store has steps that Resume has not taken up

	mu    sync.Mutex // guards stage
	stage []float32  // a page on its way to or from a device
	sums  []float64
}

// updated is one parameter.
type updated struct {
	name    string
	weights *Tensor[float32]
	grads   [2]*Tensor[float32] // the second with Delayed only
	target  snug.View           // the model's vector; empty if there is none
	copied  movable             // the tensor of BindTensor, or nil
	made    bool                // Add made it; it was not in the store
}

// Names in the store, and their bytes, of the counters of an Updater.
const (
	weightsSuffix = "/weights"
	gradSuffix    = "/grad"
	nextSuffix    = "/grad_next"
	updaterKey    = "updater"
	updaterBytes  = 8       // the number of steps, u64
	stepUnderWay  = 1 << 63 // bit of it that is set from the first page of a step to the last
)

// NewUpdater returns an Updater without parameters, whose weights and gradients lie in
// s. The error wraps [snug.ErrConfig].
func NewUpdater(s *Store, opt Stepper, o UpdaterOptions) (*Updater, error) {
	if o.PageLen == 0 {
		o.PageLen = 1 << 16
	}
	switch {
	case !s.made():
		return nil, errNoStore
	case opt == nil:
		return nil, fmt.Errorf("offload: updater: the optimizer is nil: %w", snug.ErrConfig)
	case o.PageLen < 1 || o.PageLen > maxPage/4:
		return nil, fmt.Errorf("offload: updater: PageLen is %d elements, want 1 to %d: %w", o.PageLen, maxPage/4, snug.ErrConfig)
	}
	u := &Updater{s: s, opt: opt, o: o, byName: map[string]*updated{}, resume: s.Has(updaterKey)}
	u.sums = make([]float64, chunksOf(o.PageLen))
	return u, nil
}

// Add adds a parameter of n elements, also to the Stepper. Its weights are the tensor
// name/weights of the store. If the store has that tensor, its weights stay. Otherwise
// fill is called for each page in order and writes weights lo to lo+len(w)-1 to w; a nil
// fill leaves zeros. The gradients are the tensor name/grad, and with Delayed also
// name/grad_next.
//
// Errors: [snug.ErrConfig] when the name was added before or a step is under way, and the
// errors of fill, of [Create], and of the Stepper. After an error or a panic of fill the
// parameter is not added.
func (u *Updater) Add(name string, n int, fill func(lo int, w []float32) error) (err error) {
	if err := u.usable(); err != nil {
		return err
	}
	if u.byName[name] != nil || u.under != nil {
		return fmt.Errorf("offload: updater: parameter %q was added before, or during a step: %w", name, snug.ErrConfig)
	}
	p := &updated{name: name}
	var made []string
	added := false
	defer func() {
		for _, key := range made {
			if !added {
				err = errors.Join(err, u.s.Delete(key))
			}
		}
	}()
	if err = u.create(p, n, fill, &made); err == nil {
		err = u.opt.Add(name, n)
	}
	if err != nil {
		return in(err, "updater: add %q", name)
	}
	added = true
	u.params = append(u.params, p)
	u.byName[name] = p
	return nil
}

// create makes the tensors of p, and appends the names of new ones to made.
func (u *Updater) create(p *updated, n int, fill func(lo int, w []float32) error, made *[]string) (err error) {
	tensor := func(suffix string) (t *Tensor[float32]) {
		if err != nil {
			return nil
		}
		isNew := !u.s.Has(p.name + suffix)
		if t, err = Create[float32](u.s, p.name+suffix, n, u.o.PageLen); err == nil && isNew {
			*made = append(*made, p.name+suffix)
		}
		return t
	}
	p.weights = tensor(weightsSuffix)
	p.made = len(*made) > 0
	first := p.made && fill != nil
	p.grads[0] = tensor(gradSuffix)
	if u.o.Delayed {
		p.grads[1] = tensor(nextSuffix)
	}
	if err != nil || !first {
		return err
	}
	return p.weights.walk(0, n, true, func(page Page[float32], part []float32, lo int) (err error) {
		defer func() { err = errors.Join(err, page.Unpin(true)) }()
		return fill(lo, part)
	})
}

// Bind sets the vector that the model uses as a parameter, of any floating-point type on any
// device, and writes the weights to it, rounded to nearest. From then on every step writes
// them: each page when it is updated, or with Delayed all pages in the next Step, Wait or
// Commit. The vector must stay usable. Another call replaces it; an empty View removes it.
//
// Errors: [snug.ErrConfig] for a name that was not added, [snug.ErrDType],
// [snug.ErrShape], [snug.ErrDevice], and errors of the store and the device.
func (u *Updater) Bind(name string, target snug.View) error {
	p, err := u.param(name)
	switch {
	case err != nil:
		return err
	case target.Len() > 0 && !target.DType().IsFloat():
		return fmt.Errorf("offload: updater: bind %q to a vector of %s, want a floating-point type: %w", name, target.DType(), snug.ErrDType)
	case target.Len() > 0 && target.Len() != p.weights.Len():
		return fmt.Errorf("offload: updater: bind %q to %d elements, it has %d: %w", name, target.Len(), p.weights.Len(), snug.ErrShape)
	}
	if _, err := snug.CommonDevice(target); err != nil {
		return in(err, "updater: bind %q", name)
	}
	if err := u.Wait(); err != nil {
		return err
	}
	p.target = target
	return u.publish(p)
}

// BindTensor is [Updater.Bind] for a tensor of the store, of any floating-point type and
// the length of the parameter. A [Runner] can page it in from there. An empty name
// removes it. With Delayed the tensor does not change between Step and Wait, unlike
// [Updater.Weights]. A step also pins a page of the tensor.
//
// Errors: [snug.ErrConfig] for a name that was not added, or a tensor that does not exist
// or is attached, [snug.ErrDType], [snug.ErrShape], and errors of the store.
func (u *Updater) BindTensor(name, tensor string) error {
	p, err := u.param(name)
	if err != nil {
		return err
	}
	var t movable
	if tensor != "" {
		if t, err = u.findCopy(p, tensor); err != nil {
			return in(err, "updater: bind %q", name)
		}
	}
	if err := u.Wait(); err != nil {
		return err
	}
	p.copied = t
	return u.publish(p)
}

// findCopy returns a tensor that can hold p.
func (u *Updater) findCopy(p *updated, tensor string) (movable, error) {
	t, err := lookup(u.s, tensor)
	switch {
	case err != nil:
		return nil, err
	case !t.dtype().IsFloat():
		return nil, fmt.Errorf("tensor %q holds %s, want a floating-point type: %w", tensor, t.dtype(), snug.ErrDType)
	case t.Len() != p.weights.Len():
		return nil, fmt.Errorf("tensor %q has %d elements, want %d: %w", tensor, t.Len(), p.weights.Len(), snug.ErrShape)
	}
	return t, t.writable()
}

func (u *Updater) param(name string) (*updated, error) {
	if err := u.usable(); err != nil {
		return nil, err
	}
	p := u.byName[name]
	if p == nil {
		return nil, fmt.Errorf("offload: updater: parameter %q was not added: %w", name, snug.ErrConfig)
	}
	return p, nil
}

// begun is usable for calls that change the store.
func (u *Updater) begun() error {
	if err := u.usable(); err != nil || !u.resume {
		return err
	}
	return fmt.Errorf("offload: updater: the store has steps of an earlier run: call Resume first: %w", snug.ErrConfig)
}

func (u *Updater) usable() error {
	if u == nil || u.s == nil {
		return fmt.Errorf("offload: updater: it is nil, or was not made by NewUpdater: %w", snug.ErrConfig)
	}
	if u.err != nil {
		return in(u.err, "updater: an update failed before")
	}
	return nil
}

// Weights returns the tensor of a parameter's float32 weights, for programs that read or page
// them. With Delayed they change between Step and Wait. The error wraps [snug.ErrConfig] for
// a name that was not added.
func (u *Updater) Weights(name string) (*Tensor[float32], error) {
	p, err := u.param(name)
	if err != nil {
		return nil, err
	}
	return p.weights, nil
}

// Steps returns the number of steps that have begun, including the steps that
// [Updater.Resume] found.
func (u *Updater) Steps() int {
	if u == nil {
		return 0
	}
	return u.steps
}

// Step updates all parameters, in the order of Add, with the sums of their gradients
// times gradScale, and clears the gradients. gradScale is for example the inverse of a
// loss scale times a clipping factor. With [UpdaterOptions.Delayed] it ends the update
// before, as Wait does, starts its own update and returns. A later call returns the error
// of the update.
//
// Errors: [snug.ErrConfig], with nothing changed, when lr is negative or not finite, or
// gradScale is not finite; errors of the Stepper, the store and the device.
func (u *Updater) Step(lr, gradScale float32) error {
	if !(lr >= 0) || !finite(lr) || !finite(gradScale) {
		return fmt.Errorf("offload: updater: learning rate %g and gradScale %g, want finite numbers and a rate of 0 or more: %w", lr, gradScale, snug.ErrConfig)
	}
	if err := u.begun(); err != nil {
		return err
	}
	if err := u.Wait(); err != nil {
		return err
	}
	set := u.set
	u.steps++
	steps := u.steps
	if !u.o.Delayed {
		u.err = errCutOff // unless the Stepper returns
		u.err = u.update(set, steps, lr, gradScale)
		return u.err
	}
	u.set = 1 - set
	u.under = inBackground(func() error { return u.update(set, steps, lr, gradScale) })
	return nil
}

// update makes step number steps with a set of gradients.
func (u *Updater) update(set, steps int, lr, gradScale float32) error {
	if err := u.save(uint64(steps) | stepUnderWay); err != nil {
		return in(err, "updater: step %d", steps)
	}
	u.opt.Advance(lr)
	for _, p := range u.params {
		if err := u.updateParam(p, set, gradScale); err != nil {
			return in(err, "updater: step %d of %q", steps, p.name)
		}
	}
	return u.save(uint64(steps))
}

// save puts the counters into the store. The step count determines the set that
// Accumulate adds to.
func (u *Updater) save(steps uint64) error {
	b, err := u.s.Acquire(updaterKey, updaterBytes)
	if err != nil {
		return err
	}
	binary.LittleEndian.PutUint64(b, steps)
	return u.s.Release(updaterKey, true)
}

func (u *Updater) updateParam(p *updated, set int, gradScale float32) (err error) {
	var moves Move
	updated := false
	defer func() {
		if !updated {
			err = errors.Join(err, moves.Wait())
		}
	}()
	for i := range p.weights.Pages() {
		for _, t := range [...]*Tensor[float32]{p.weights, p.grads[set]} {
			t.Prefetch(i+1, i+2)
		}
		if err := u.updatePage(p, set, i, gradScale, &moves); err != nil {
			return err
		}
	}
	updated = true
	return moves.Await()
}

func (u *Updater) updatePage(p *updated, set, i int, gradScale float32, moves *Move) (err error) {
	w, err := p.weights.Pin(context.Background(), i)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Unpin(true)) }()
	g, err := p.grads[set].Pin(context.Background(), i)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.forget()) }()
	lo := i * u.o.PageLen
	err = u.opt.StepRange(p.name, lo, snug.ViewOf(w.Data), snug.ViewOf(g.Data), gradScale)
	if err == nil && !u.o.Delayed {
		err = u.put(p, lo, w.Data, moves)
	}
	return err
}

// Wait ends an update that is under way and writes its weights to the bound vectors and
// tensors. Without Delayed it does nothing. It returns the error of the update.
func (u *Updater) Wait() error {
	if u == nil || u.under == nil {
		return u.usable()
	}
	under := u.under
	u.under, u.err = nil, errCutOff // unless the Stepper has returned
	err := under.wait()
	for _, p := range u.params {
		if err == nil {
			err = u.publish(p)
		}
	}
	u.err = err
	return err
}

// publish writes all weights of p to its target.
func (u *Updater) publish(p *updated) error {
	if p.target.Len() == 0 && p.copied == nil {
		return nil
	}
	var moves Move
	err := p.weights.walk(0, p.weights.Len(), false, func(page Page[float32], part []float32, lo int) error {
		p.weights.Prefetch(page.p.num+1, page.p.num+2)
		return errors.Join(u.put(p, lo, part, &moves), page.Unpin(false))
	})
	if err != nil {
		return errors.Join(err, moves.Wait())
	}
	return moves.Await()
}

// Commit ends an update that is under way and makes all pages of the store durable, as
// [Store.Commit] does. A run that continues from there with [Updater.Resume] gives the bits
// of a run that was not interrupted, also in the middle of a window. With Delayed that needs
// commits at the same steps in both runs, because a commit ends the update under way.
func (u *Updater) Commit() error {
	if err := u.committable(); err != nil {
		return err
	}
	return u.s.Commit()
}

// BeginCommit is [Updater.Commit] in the background: further steps run while the state of the
// present step becomes durable. Errors and memory are as for [Store.BeginCommit].
func (u *Updater) BeginCommit() (Commit, error) {
	if err := u.committable(); err != nil {
		return Commit{}, err
	}
	return u.s.BeginCommit()
}

// committable ends an update that is under way, so that the store can commit.
func (u *Updater) committable() error {
	if err := u.begun(); err != nil {
		return err
	}
	return u.Wait()
}

func finite(x float32) bool {
	x = float32(x) // of a product too: x*y - x*y may be rounded once
	return x-x == 0
}
