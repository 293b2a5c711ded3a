package train

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/accum"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/fused"
	"github.com/snug-ml/snug/internal/fault"
	"github.com/snug-ml/snug/meter"
)

// Model is what a Trainer trains, with micro-batches of type B.
type Model[B any] interface {
	// Trainable yields the parameters that train, always in the same order, of float32, bfloat16 or
	// float16 on one device.
	Trainable() iter.Seq2[string, snug.View]
	// Weight returns the weight of a micro-batch in the mean of a step, such as its number of
	// targets. A micro-batch of weight 0 is left out.
	Weight(batch B) float64
	// Backprop runs a micro-batch forward and backward. It adds to the window the gradients of the
	// mean loss of the micro-batch times scale, and returns the loss, not scaled.
	Backprop(ctx context.Context, batch B, scale float32, w Window) (fused.Loss, error)
	// Evaluate returns the loss of a micro-batch without training on it.
	Evaluate(ctx context.Context, batch B) (fused.Loss, error)
}

// Report is the result of a step.
type Report struct {
	Step    int     // number of steps done, this one included
	Loss    float64 // mean over the targets of the step, in nats
	Targets int
	Norm    float64 // norm of all gradients before clipping, 0 if not measured; folded and without gradients see package quant8
	Rate    float32 // learning rate
	Scale   float32 // loss scale of the step, 1 without one
	Skipped string  // why nothing was updated; empty if the step updated the parameters
}

// Trainer trains a model. It is not safe for concurrent use.
type Trainer[B any] struct {
	model     Model[B]
	options   Options
	params    []param
	gradients gradients[B] // nil after Close
	scale     scaling
	ranks     ranks
	buffers   buffers
	holders   holders
	closers   []func() error
	ready     bool // New has made it
	averaged  bool // the model holds the averages, see Average

	step   int
	splits int // how many times each micro-batch is divided in two
	divide func(batch B) (x, y B, ok bool)
	// begun says that a failed attempt in the backward pass has begun the next step of the optimizer. halfway says that
	// a failed attempt may have changed parameters or the optimizer's state.
	begun, halfway bool

	checkpoints *Folder
	notes       any
	received    json.RawMessage // notes of the checkpoint that was resumed, from rank 0
	saved       int             // step of the newest checkpoint
	due         bool            // a checkpoint of SaveEvery is not yet written
}

// param is a parameter that trains.
type param struct {
	name     string
	value    snug.View // without elements if the ranks divide it
	n        int       // elements
	lo, hi   int       // the elements that this rank updates
	pages    *accum.Pages
	key      string // in the pages, if the ranks divide it
	mastered bool
}

// New returns a Trainer for a model. With Options.Dir it owns the folder until Close, and resumes its newest
// checkpoint, which replaces the values of the parameters.
//
// The error wraps [snug.ErrConfig] for options that do not fit together and for a checkpoint of another run,
// [snug.ErrDType] and [snug.ErrDevice] for the parameters, [snug.ErrCorrupt] for a damaged checkpoint, and
// [snug.ErrNoMemory], or comes from the Storage or the file system.
func New[B any](model Model[B], o Options) (*Trainer[B], error) {
	t := &Trainer[B]{model: model, options: o, saved: -1}
	if err := t.make(); err != nil {
		return nil, fmt.Errorf("train: New: %w", errors.Join(err, t.Close()))
	}
	return t, nil
}

func (t *Trainer[B]) make() (err error) {
	o := &t.options
	if err := o.check(t.model == nil); err != nil {
		return err
	}
	t.gradients = t.chosen()
	t.holders.monitor = o.Monitor
	if t.ranks, err = newRanks(o.Reducer); err != nil {
		return err
	}
	if err := fault.Check(snug.ErrConfig, t.gradients.excludes(o)...); err != nil {
		return err
	}
	for _, step := range []func() error{t.collect, t.collectBuffers, t.alike, t.open, t.gradients.make, t.begin, t.equal} {
		if err := step(); err != nil {
			return err
		}
	}
	t.countBytes()
	t.ready = true
	return nil
}

// closes makes Close call free.
func (t *Trainer[B]) closes(free func() error) { t.closers = append(t.closers, free) }

// collect lists the parameters, which may need a loss scale.
func (t *Trainer[B]) collect() (err error) {
	params := t.model.Trainable()
	if params == nil {
		return fmt.Errorf("the model's Trainable is nil: %w", snug.ErrConfig)
	}
	way := t.gradients.traits()
	for name, v := range params {
		p := param{name: name, value: v, n: v.Len()}
		if m, ok := t.model.(Paged); ok {
			if err := t.divided(m, &p); err != nil {
				return err
			}
			v = p.value
		}
		if !v.DType().IsFloat() {
			return fmt.Errorf("parameter %q holds %s, want f32, f16 or bf16: %w", name, v.DType(), snug.ErrDType)
		}
		if len(t.params) > 0 && v.Device() != t.params[0].value.Device() {
			return fmt.Errorf("parameter %q is on %s, and %q on %s: %w", name, v.Device().Name(),
				t.params[0].name, t.params[0].value.Device().Name(), snug.ErrDevice)
		}
		if err := t.options.checkStep(v.DType()); err != nil {
			return fmt.Errorf("parameter %q: %w", name, err)
		}
		if v.DType() == snug.F16 && t.options.Scaler == nil && way.backward {
			t.options.Scaler = &amp.ScalerOptions{}
		}
		p.hi, p.mastered = p.n, v.DType() != snug.F32 && way.held
		t.params = append(t.params, p)
	}
	if t.params == nil {
		return fmt.Errorf("the model has no parameters that train: %w", snug.ErrConfig)
	}
	t.scale, err = newScaling(&t.options)
	return err
}

// closed reports whether Close was called.
func (t *Trainer[B]) closed() bool { return t.gradients == nil }

// Step returns the number of steps done, with the steps before a resume.
func (t *Trainer[B]) Step() int { return t.step }

// Saved returns the step of the newest checkpoint that this Trainer has written or resumed, 0 for none.
func (t *Trainer[B]) Saved() int { return max(0, t.saved) }

// Notes returns the notes of the checkpoint that New resumed, as JSON: nil if it resumed none, and null if the
// checkpoint had no notes.
func (t *Trainer[B]) Notes() json.RawMessage { return t.received }

// SetNotes sets the notes of the next checkpoints, which they hold as JSON in addition to Options.About. Notes may
// differ when the run is resumed; the loss before training is an example. Without a call, checkpoints keep the notes of
// the checkpoint that New resumed.
func (t *Trainer[B]) SetNotes(notes any) { t.notes = notes }

// Scale returns the loss scale of the next step, 1 without one.
func (t *Trainer[B]) Scale() float32 { return t.scale.Scale() }

// Bytes returns the bytes of gradients, master weights and optimizer state that the Trainer holds, in pages or not, and
// of the workspace of the optimizer and of master weights: nothing after Close.
func (t *Trainer[B]) Bytes() meter.Bytes {
	if t.closed() {
		return meter.Bytes{}
	}
	return t.gradients.bytes()
}

// countBytes tells the monitor what is held in memory, without pages.
func (t *Trainer[B]) countBytes() {
	if t.options.Monitor == nil {
		return
	}
	b := t.Bytes()
	if t.gradients.traits().held { // else they are counted while the model runs
		t.holders.set(meter.Gradients, b[meter.Gradients])
	}
	t.holders.set(meter.Workspace, b[meter.Workspace])
	if t.options.Storage == nil {
		t.holders.set(meter.Masters, b[meter.Masters])
		t.holders.set(meter.State, b[meter.State])
	}
}

// Evaluate calls [Trainer.Average] and returns the loss over all batches, without training on them. With Options.Reducer it
// is the loss of this rank's batches. The error wraps
// [snug.ErrConfig] for a nil sequence, and is otherwise that of the model.
func (t *Trainer[B]) Evaluate(ctx context.Context, batches iter.Seq[B]) (all fused.Loss, err error) {
	defer fault.Named(&err, "train: Evaluate")
	if batches == nil {
		return all, fmt.Errorf("the sequence of batches is nil: %w", snug.ErrConfig)
	}
	if !t.closed() {
		if err := t.Average(); err != nil {
			return all, errors.Unwrap(err) // without the name of the function
		}
	}
	for b := range batches {
		loss, err := t.evaluate(ctx, b, t.splits)
		if err != nil {
			return fused.Loss{}, err
		}
		all = all.Plus(loss)
	}
	return all, nil
}

// Close calls [Trainer.Average], closes the folder of checkpoints unless it is Options.Folder, and frees memory of a
// device. The caller then closes the model and the Storage. Closing twice does nothing.
func (t *Trainer[B]) Close() (err error) {
	if t.ready && !t.closed() && !t.halfway {
		err = errors.Unwrap(t.Average())
	}
	for _, closes := range t.closers {
		err = errors.Join(err, closes())
	}
	t.holders.close()
	t.gradients, t.checkpoints, t.closers = nil, nil, nil
	return err
}
