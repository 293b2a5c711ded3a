package quant8

import (
	"fmt"
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/optim"
	"github.com/snug-ml/snug/internal/state"
)

// FoldOptions configures [Optimizer.FoldInBackward]. A zero field means its default, except Weight and
// Total.
type FoldOptions struct {
	// Weight is what the gradients of the micro-batch, which are means, are means over, such as its
	// target tokens. Total is the weight of all micro-batches of the step. Both are finite and above 0,
	// and Weight is at least 2^-40 of Total.
	Weight, Total float64
	// GradScale multiplies the gradients, such as the inverse of a loss scale; default 1.
	GradScale float32
	// MeanSquares gives v the mean of the squares of the micro-batches' gradients G, (n/N)·G², in place
	// of the sum of the squares of their parts of the mean, (n/N·G)². A magnitude of √(n/N)·G of 2^63 or
	// more is then an error.
	MeanSquares bool
	// MaxNorm, unless 0, clips with the norm of the step before: the gradients of a step are multiplied
	// by min(1, MaxNorm/(norm+1e-6)). A step is not clipped if the step before it had no MaxNorm. Steps that
	// were not folded do not count here.
	MaxNorm float64
	// Squares returns the sum of the squares of a gradient on a device other than the CPU, for MaxNorm.
	Squares func(g snug.View) (float64, error)
}

// FoldInBackward makes the step that [Optimizer.Advance] has begun from several micro-batches, one call
// for each, and never holds more than one gradient: the backward pass of each micro-batch folds its
// gradients into the moments as they arrive, and that of the last one updates the parameters. With the
// weight n of a micro-batch, the weight N of all, and g the micro-batch's gradient times n/N the moments of
// [Default] become as follows, and those of other rules likewise, by their own equations:
//
//	m ← β1·m + (1-β1)·g      the first
//	m ← m + (1-β1)·g         those that follow
//	v ← β2·v + (1-β2)·g²     the first
//	v ← v + (1-β2)·g²        those that follow
//
// as in Zhang et al. 2023, "Adam Accumulation to Reduce Memory Footprints of both Activations and
// Gradients for Large-scale DNN Training", arXiv:2305.19982. m is that of a step with the mean of the
// gradients, up to rounding, and so is a step without v. v is not: it has the sum of the squares, not the
// square of the sum. Where the gradients of k micro-batches of equal weight are independent noise both are
// the same on average. Where all are equal v is k times smaller, and steps are up to √k times longer: early
// in a run, where they are alike, the rate may have to be lower. With MeanSquares v is the same where all
// are equal, and k times larger where they are noise (Wang and Aitchison 2024, "Batch size invariant Adam",
// arXiv:2402.18824).
//
// Moments in 8 and 4 bits are encoded again for each micro-batch, and those in 16 bits rounded, with other
// random numbers for each.
//
// The weights of the calls add up to Total, up to a relative 1e-9: full says that this call was the last
// and the parameters are updated. With one micro-batch, and without MaxNorm, the result has the same bits
// as that of [Optimizer.StepInBackward]. Between the calls backward may read the parameters, which are those before
// the step. In each call every parameter that was added comes once; other rules for backward and ready are
// those of StepInBackward. norm is 0 without MaxNorm; with it and full it is the norm by which the next
// step is clipped, the root of the mean of the squares of the micro-batches' norms times GradScale. That is
// at least the norm of the mean gradient.
//
// [Optimizer.WriteTo] between two calls saves what came before, and a restored optimizer goes on with the
// next. Options, Total included, are then those of the calls before.
//
// The rule is one whose Traits say that it Folds: the update of others needs the whole gradient. Options.NonFinite is Fail, because what is folded cannot be taken back,
// and MaxUpdate is 0. A gradient that is not finite is an error before any of it is folded.
//
// Errors are those of StepInBackward, and wrap [snug.ErrConfig] also for weights that do not fit, and
// for parameters that did not come. An error before the first parameter of a call is folded leaves the
// optimizer as it was, and the call may be repeated. After a later one it cannot be used until a state is
// restored.
func (a *Optimizer) FoldInBackward(o FoldOptions, backward func(ready Ready) error) (full bool, norm float64, err error) {
	if full, norm, err = a.foldInBackward(o, backward); err != nil {
		return false, 0, fmt.Errorf("quant8: %s: fold in backward: %w", a.label(), err)
	}
	return full, norm, nil
}

// folding is a step that several micro-batches make.
type folding struct {
	state.OptimizerFold
	part optim.Fold // of the micro-batch that is being folded
}

// bound returns the factor of gradients whose products are below 2^63: with MeanSquares v gets the squares of more than
// the gradients times their scale.
func (f *folding) bound(scale float32) float32 {
	if f.part.Squares == 0 {
		return scale
	}
	x := float64(scale) * math.Sqrt(f.part.Squares)
	return float32(max(-math.MaxFloat32, min(x, math.MaxFloat32)))
}

// weightError is the relative error of sums of weights.
const weightError = 1e-9

func (a *Optimizer) foldInBackward(o FoldOptions, backward func(ready Ready) error) (full bool, norm float64, err error) {
	if o.GradScale == 0 {
		o.GradScale = 1
	}
	if err := a.usable(); err != nil {
		return false, 0, err
	}
	if err := a.checkFold(o, backward == nil); err != nil {
		return false, 0, err
	}
	share, clip := o.Weight/o.Total, 1.0
	if o.MaxNorm > 0 && a.fold.Norm > 0 {
		clip = min(1, o.MaxNorm/(a.fold.Norm+1e-6))
	}
	full = a.fold.Weight+o.Weight >= o.Total*(1-weightError)
	a.fold.part = optim.Fold{Later: a.fold.Micros > 0, More: !full}
	if o.MeanSquares {
		a.fold.part.Squares = 1 / share
	}
	pass := backwardPass{seen: map[string]float64{}}
	if err := a.foldPass(&pass, o, float32(float64(o.GradScale)*share*clip), backward); err != nil {
		return false, 0, err
	}
	f := a.fold.OptimizerFold
	f.Micros, f.Weight, f.Total = f.Micros+1, f.Weight+o.Weight, o.Total
	f.Squares += share * math.Pow(float64(o.GradScale)*pass.norm(), 2)
	if full {
		norm = math.Sqrt(f.Squares)
		f = state.OptimizerFold{Norm: norm}
	}
	a.fold = folding{OptimizerFold: f}
	return full, norm, nil
}

// foldPass runs the backward pass of a micro-batch.
func (a *Optimizer) foldPass(pass *backwardPass, o FoldOptions, scale float32, backward func(ready Ready) error) error {
	for _, q := range a.params {
		clear(q.marks)
	}
	done := false
	defer func() { // also when backward panics
		a.fold.part = optim.Fold{}
		if !done {
			a.endFold()
		}
	}()
	err := pass.run(backward, func(name string, p, g snug.View) (squares float64, err error) {
		if o.MaxNorm > 0 {
			squares, err = a.squaresOf(name, p, g, &BackwardOptions{GradScale: scale, Squares: o.Squares})
		}
		if err == nil && math.IsInf(squares, 0) {
			err = fmt.Errorf("parameter %q: the norm of its gradient is %g: %w", name, squares, snug.ErrNonFinite)
		}
		if err == nil {
			err = a.Step(name, p, g, scale)
		}
		return squares, err
	})
	if err != nil {
		return err
	}
	for _, name := range a.names() {
		if _, ok := pass.seen[name]; !ok {
			return fmt.Errorf("parameter %q did not come: %w", name, snug.ErrConfig)
		}
	}
	done = true
	return nil
}

// endFold ends a micro-batch that failed. If it has folded nothing, all is as before it.
func (a *Optimizer) endFold() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, q := range a.params {
		if q.n > 0 && !q.marks.All(optim.Waiting) && a.invalid == "" {
			a.invalid = fmt.Sprintf("the fold of micro-batch %d of step %d stopped half-way: restore a state", a.fold.Micros+1, a.t)
		}
	}
	if a.fold.Micros == 0 {
		return
	}
	for _, q := range a.params {
		q.marks.Set(0, len(q.marks), optim.Updated) // of the micro-batches before
	}
}

// checkFold checks whether a micro-batch can be folded.
func (a *Optimizer) checkFold(o FoldOptions, noPass bool) error {
	refuse := func(format string, args ...any) error {
		return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), snug.ErrConfig)
	}
	f := a.fold.OptimizerFold
	switch {
	case !a.o.Folds:
		return refuse("%s", a.o.Refuses(Folded))
	case a.o.NonFinite != Fail:
		return refuse("Options.NonFinite skips gradients, and what is folded cannot be taken back")
	case a.o.MaxUpdate != 0:
		return refuse("Options.MaxUpdate is %g, want 0: the norm of an update is known after the last micro-batch", a.o.MaxUpdate)
	case noPass:
		return refuse("the backward pass is nil")
	case !(o.Total > 0) || math.IsInf(o.Total, 0):
		return refuse("Total is %g, want a finite number above 0", o.Total)
	case !(o.Weight >= o.Total*0x1p-40):
		return refuse("Weight is %g, want a number above 0, and at least 2^-40 of the Total of %g", o.Weight, o.Total)
	case f.Micros > 0 && o.Total != f.Total:
		return refuse("Total is %g, and was %g before", o.Total, f.Total)
	case o.Weight > (o.Total-f.Weight)*(1+weightError)+o.Total*weightError:
		return refuse("Weight is %g, more than is left of the Total of %g after %g", o.Weight, o.Total, f.Weight)
	case f.Micros == math.MaxInt32:
		return refuse("%d micro-batches are too many", f.Micros)
	case !(o.MaxNorm >= 0) || math.IsInf(o.MaxNorm, 0):
		return refuse("MaxNorm is %g, want a finite number from 0 on", o.MaxNorm)
	case !finite(o.GradScale):
		return refuse("GradScale is %g, want a finite number", o.GradScale)
	}
	if err := a.begun(); err != nil {
		return err
	}
	for _, name := range a.names() {
		q := a.params[name]
		if a.o.hyper.Coupled && q.options.WeightDecay != 0 {
			return refuse("parameter %q has weight decay, which %s adds to the whole gradient", name, a.o.Title)
		}
		if f.Micros == 0 && !q.marks.All(optim.Waiting) {
			return refuse("parameter %q already has an update in step %d: call Advance first", name, a.t)
		}
	}
	return nil
}
