package gomlx

import (
	stdcontext "context"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"slices"

	"github.com/gomlx/gomlx/backends"
	"github.com/gomlx/gomlx/pkg/core/tensors"
	"github.com/gomlx/gomlx/pkg/ml/context"
	gotrain "github.com/gomlx/gomlx/pkg/ml/train"
	"github.com/gomlx/gomlx/pkg/ml/train/optimizers"
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/fused"
	"github.com/snug-ml/snug/plan"
	"github.com/snug-ml/snug/quant8"
	"github.com/snug-ml/snug/train"
)

// Options are those of package train of snug. There, nil as Schedule is a constant rate of 0.001; here it is the parameter
// learning_rate of the context, if it is set.
type Options = train.Options

// Ranks and Checkpoints are parts of Options.
type (
	Ranks       = train.Ranks
	Checkpoints = train.Checkpoints
)

// Report is the result of a step.
type Report = train.Report

// Batch is a micro-batch as datasets of GoMLX yield it.
type Batch struct {
	Spec           any // passed to the model; each value that == tells apart has graphs of its own
	Inputs, Labels []*tensors.Tensor
	// Weight is the weight of the micro-batch in the mean of a step, such as the number of its labels that count. 0 is the
	// length of the first axis of the first input, or 1 if that is a scalar. NoWeight leaves the micro-batch out; other
	// negative numbers are errors.
	Weight float64
}

// NoWeight, as Batch.Weight, stands for a weight of 0, such as that of a micro-batch without a label that counts. Train
// needs another micro-batch besides, whose weight is above 0.
const NoWeight = -1

// Next returns the next batch of a dataset. At its end the error is io.EOF; other errors are those of the dataset, and
// wrap [snug.ErrConfig] if it is nil or panics.
func Next(ds gotrain.Dataset) (b Batch, err error) {
	if ds == nil {
		return b, fmt.Errorf("gomlx: Next: the dataset is nil: %w", snug.ErrConfig)
	}
	ended := false
	err = catch("gomlx: Next", func() (err error) {
		b.Spec, b.Inputs, b.Labels, err = ds.Yield()
		ended = err == io.EOF
		return err
	})
	if ended {
		return Batch{}, io.EOF
	}
	return b, err
}

// check returns an error for a batch that no graph takes.
func (b Batch) check() error {
	if len(b.Inputs) == 0 {
		return fmt.Errorf("a batch has no inputs: %w", snug.ErrConfig)
	}
	for i, t := range slices.Concat(b.Inputs, b.Labels) {
		if t == nil || !t.Ok() {
			return fmt.Errorf("tensor %d of the inputs and labels of a batch is nil or finalized: %w", i, snug.ErrConfig)
		}
	}
	if w := b.Weight; w != NoWeight && !(w >= 0 && w <= math.MaxFloat64) {
		return fmt.Errorf("a batch has the weight %v, want a finite number of 0 or more, or NoWeight: %w", w, snug.ErrConfig)
	}
	return nil
}

func (b Batch) rows() int {
	if d := b.Inputs[0].Shape().Dimensions; len(d) > 0 {
		return d[0]
	}
	return 1
}

// arguments returns what a graph of training takes.
func (b Batch) arguments(scale float32) (list []any) {
	for _, t := range b.Inputs {
		list = append(list, t)
	}
	for _, t := range b.Labels {
		list = append(list, t)
	}
	return append(list, tensors.FromScalar(scale))
}

// New builds the graph of a model for batches like first, whose numbers it does not use, and returns a Trainer for its
// variables. With Options.Dir it owns the folder until Close, and resumes its newest checkpoint, which replaces the
// values of the variables. loss may be nil if the model calls train.AddLoss of GoMLX. A loss that is not a scalar is
// averaged. A context that has the variables, such as from checkpoints of GoMLX, is passed as ctx.Reuse(). A New that fails
// may have made some of the variables: for another try pass ctx.Checked(false), which makes those that lack.
//
// The graph for first uses all variables that training uses, and changes all that training changes, see [Trainer.Train]. If
// some batches use fewer, pass another. Variables that do not train have the values of the run before New resumes it.
//
// The error wraps [snug.ErrConfig] for arguments that are nil, for a model that panics or that the package does not
// support, for options that do not fit together, and for a checkpoint of another run; [snug.ErrDType] for a variable that
// trains and is not float32, bfloat16 or float16; and [snug.ErrCorrupt] for a damaged checkpoint.
func New(backend backends.Backend, ctx *context.Context, model gotrain.ModelFn, loss gotrain.LossFn, first Batch, o Options) (*Trainer, error) {
	m, err := newModel(backend, ctx, model, loss, first)
	if err != nil {
		return nil, fmt.Errorf("gomlx: New: %w", err)
	}
	if rule := quant8.TraitsOf(o.Optimizer); rule.ForwardOnly {
		return nil, fmt.Errorf("gomlx: New: %s evaluates a batch twice with the same random numbers, which GoMLX's state of them does not give: %w", rule.Title, snug.ErrConfig)
	}
	if o.Gradients == plan.InBackward && o.Clip > 0 && len(m.moved) > 0 {
		return nil, fmt.Errorf("gomlx: New: InBackward with Clip runs a batch twice, and the model changes variable %q each time: %w", m.moved[0].ScopeAndName(), snug.ErrConfig)
	}
	if o.Schedule == nil {
		if m.rated() {
			return nil, fmt.Errorf("gomlx: New: the model sets the learning rate in its graph, which the optimizer does not see: set Schedule: %w", snug.ErrConfig)
		}
		rate := 0.001
		if err := catch("gomlx: New", func() error {
			rate = context.GetParamOr(ctx, optimizers.ParamLearningRate, rate)
			return nil
		}); err != nil {
			return nil, err
		}
		o.Schedule = train.Constant(float32(rate))
	}
	t := &Trainer{model: m}
	if t.inner, err = train.New[Batch](m, o); err != nil {
		return nil, fmt.Errorf("gomlx: New: %w", err)
	}
	t.resumed = t.Step()
	if err := m.setStep(t.Step()); err != nil {
		return nil, errors.Join(fmt.Errorf("gomlx: New: %w", err), t.Close())
	}
	return t, nil
}

// Train makes one step with the mean of the gradients of the micro-batches, see the method of package train. It checks all
// of them first. After an error in the model the variables that the graph changes are as before the step, too. A step that
// is skipped leaves them as the graph changed them. Train does not finalize the tensors.
//
// A batch may have another Spec and other shapes than that of New, for which it builds a graph. The error wraps
// [snug.ErrConfig] if that graph makes a variable, uses one that the graph of New does not use, or changes one that it does
// not change.
func (t *Trainer) Train(ctx stdcontext.Context, batches []Batch) (Report, error) {
	if !t.made() {
		return Report{}, errZero
	}
	for i, b := range batches {
		if err := b.check(); err != nil {
			return Report{}, fmt.Errorf("gomlx: micro-batch %d: %w", i, err)
		}
	}
	before := t.Step()
	saved, err := t.model.beginStep(before)
	if err != nil {
		return Report{}, fmt.Errorf("gomlx: %w", err)
	}
	report, err := t.inner.Train(ctx, batches)
	if err != nil && t.Step() == before {
		return report, errors.Join(err, saved.restore())
	}
	return report, errors.Join(err, t.model.setStep(t.Step()))
}

// Evaluate returns the loss over all batches, as the model computes it when it does not train. A batch of NoWeight is left
// out. Variables that the graph changes are as before afterwards; a graph that makes a variable, or changes one that trains,
// is an error that wraps [snug.ErrConfig].
func (t *Trainer) Evaluate(ctx stdcontext.Context, batches iter.Seq[Batch]) (loss fused.Loss, err error) {
	if !t.made() {
		return fused.Loss{}, errZero
	}
	saved, err := snapshotOf(t.model.touched)
	if err != nil {
		return fused.Loss{}, fmt.Errorf("gomlx: Evaluate: %w", err)
	}
	t.model.saved = &saved
	defer func() {
		t.model.saved = nil
		err = errors.Join(err, saved.restore())
	}()
	return t.inner.Evaluate(ctx, batches)
}

// Run trains until Step is steps, with micro batches of the dataset in each step. At the end of the dataset it begins
// again. After each step it calls each, unless that is nil, and ends with its error. Run finalizes the tensors of a batch
// after use, unless the dataset says that it owns them.
//
// After New has resumed a checkpoint, the first Run leaves out the batches of the steps that the checkpoint has: a dataset
// that yields the same batches again then gives the bits of a run that was never interrupted. It takes micro batches for
// each of these steps, so micro must be that of the run. If an error ends it before, the next Run leaves out the rest.
//
// The batches that Run has read for a step that fails are gone: the next Run goes on with those that follow.
//
// The error wraps [snug.ErrConfig] for a micro below 1, a nil or an empty dataset, or comes from Train, the dataset or
// each.
func (t *Trainer) Run(ctx stdcontext.Context, ds gotrain.Dataset, steps, micro int, each func(Report) error) error {
	if !t.made() {
		return errZero
	}
	if ctx == nil || ds == nil {
		return fmt.Errorf("gomlx: Run: the context or the dataset is nil: %w", snug.ErrConfig)
	}
	if micro < 1 {
		return fmt.Errorf("gomlx: Run: %d micro-batches in a step, want 1 or more: %w", micro, snug.ErrConfig)
	}
	owned := true
	if o, ok := ds.(gotrain.DatasetCustomOwnership); ok {
		err := catch("gomlx: the dataset's IsOwnershipTransferred", func() error { owned = o.IsOwnershipTransferred(); return nil })
		if err != nil {
			return err
		}
	}
	release := func(list []Batch) (err error) {
		for _, b := range list {
			if owned {
				err = errors.Join(err, finalize(b.Inputs), finalize(b.Labels))
			}
		}
		return err
	}
	for t.Step() < steps {
		if t.resumed > 0 {
			t.skip, t.resumed = t.resumed*micro, 0
		}
		for ; t.skip > 0; t.skip-- {
			if err := ctx.Err(); err != nil {
				return fmt.Errorf("gomlx: Run: %w", err)
			}
			b, err := next(ds)
			if err != nil {
				return err
			}
			if err := release([]Batch{b}); err != nil {
				return err
			}
		}
		var list []Batch
		var err error
		for len(list) < micro && err == nil {
			var b Batch
			if b, err = next(ds); err == nil {
				list = append(list, b)
			}
		}
		var report Report
		if err == nil {
			report, err = t.Train(ctx, list)
		}
		if err = errors.Join(err, release(list)); err != nil {
			return err
		}
		if each != nil {
			if err := each(report); err != nil {
				return err
			}
		}
	}
	return nil
}

// next is Next for a dataset that begins again at its end.
func next(ds gotrain.Dataset) (Batch, error) {
	b, err := Next(ds)
	if err != io.EOF {
		return b, err
	}
	if err := catch("gomlx: the dataset's Reset", func() error { ds.Reset(); return nil }); err != nil {
		return b, err
	}
	if b, err = Next(ds); err == io.EOF {
		name := fmt.Sprintf("%T", ds)
		_ = catch("gomlx: the dataset's Name", func() error { name = ds.Name(); return nil }) // those of hugot panic
		return b, fmt.Errorf("gomlx: the dataset %s has no batches: %w", name, snug.ErrConfig)
	}
	return b, err
}
