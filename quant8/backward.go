package quant8

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/sweep"
)

// BackwardOptions configures [Optimizer.StepInBackward]. A zero field means its default.
type BackwardOptions struct {
	// GradScale multiplies the gradients, such as the inverse of a loss scale;
	// default 1.
	GradScale float32
	// MaxNorm, unless 0, clips the Euclidean norm of all gradients together, times
	// GradScale: the step multiplies the gradients by min(1, MaxNorm/(norm+1e-6)), as
	// torch.nn.utils.clip_grad_norm_ does. Clipping takes a second backward pass.
	MaxNorm float64
	// Squares returns the sum of the squares of a gradient on a device other than the
	// CPU, for MaxNorm.
	Squares func(g snug.View) (float64, error)
}

// Ready is the function that a backward pass calls for every parameter as soon as its
// gradient g is complete. When it returns, the memory of g may hold the next gradient; on
// a device, work that is queued from then on may write it. Several goroutines may call it
// at a time for different parameters.
type Ready func(name string, p, g snug.View) error

// StepInBackward makes the step that [Optimizer.Advance] has begun during the backward
// pass, so that no more than one gradient is held at a time (Lv et al. 2023, "Full
// Parameter Fine-tuning for Large Language Models with Limited Resources",
// arXiv:2306.09782). It calls backward, which computes the gradients of the loss and
// calls ready once for each parameter. After ready returns, backward does not read the
// parameter.
//
// To clip, StepInBackward calls backward twice: first to measure the norm, which it
// returns, then to step. Both times the gradients must be the same. If the first pass has
// a gradient that is not finite, all parameters stay as they were and the step may be
// made again, unless Options.NonFinite skips such gradients. Without MaxNorm the norm is
// 0.
//
// The result has the same bits as [Optimizer.Step] for every parameter with all gradients
// in memory.
//
// Gradients are not added up over micro-batches: each gradient is the gradient of one
// whole batch. [Optimizer.FoldInBackward] takes several. For a parameter that is used in several places it is the sum over all of
// them.
//
// It returns the error of backward, or else the first error of ready. ready returns the
// errors of Step, also for a parameter that comes twice in a pass. Other errors wrap
// [snug.ErrConfig] for options that are not valid, before Advance, or when the passes do
// not have the same parameters; and [snug.ErrDevice] for MaxNorm on a device without
// Squares. After an error or a panic of the pass that steps, the parameters that came
// before are updated. Step may update the others.
func (a *Optimizer) StepInBackward(o BackwardOptions, backward func(ready Ready) error) (norm float64, err error) {
	if norm, err = a.stepInBackward(o, backward); err != nil {
		return 0, fmt.Errorf("quant8: %s: step in backward: %w", a.label(), err)
	}
	return norm, nil
}

func (a *Optimizer) stepInBackward(o BackwardOptions, backward func(ready Ready) error) (norm float64, err error) {
	if o.GradScale == 0 {
		o.GradScale = 1
	}
	if err := a.usable(); err != nil {
		return 0, err
	}
	switch {
	case backward == nil:
		return 0, fmt.Errorf("the backward pass is nil: %w", snug.ErrConfig)
	case !(o.MaxNorm >= 0) || math.IsInf(o.MaxNorm, 0):
		return 0, fmt.Errorf("MaxNorm is %g, want a finite number from 0 on: %w", o.MaxNorm, snug.ErrConfig)
	case !finite(o.GradScale):
		return 0, fmt.Errorf("GradScale is %g, want a finite number: %w", o.GradScale, snug.ErrConfig)
	}
	if err := a.begun(); err != nil {
		return 0, err
	}
	scale := o.GradScale
	var measured map[string]float64
	if o.MaxNorm > 0 {
		pass := backwardPass{seen: map[string]float64{}}
		err := pass.run(backward, func(name string, p, g snug.View) (float64, error) { return a.squaresOf(name, p, g, &o) })
		if err != nil {
			return 0, err
		}
		measured = pass.seen
		norm = math.Abs(float64(o.GradScale)) * pass.norm()
		if math.IsInf(norm, 0) || norm != norm {
			return 0, fmt.Errorf("the norm of the gradients is %g: %w", norm, snug.ErrNonFinite)
		}
		scale *= float32(min(1, o.MaxNorm/(norm+1e-6)))
	}
	pass := backwardPass{seen: map[string]float64{}}
	err = pass.run(backward, func(name string, p, g snug.View) (float64, error) { return 0, a.Step(name, p, g, scale) })
	if err == nil && measured != nil {
		err = pass.sameAs(measured)
	}
	return norm, err
}

// backwardPass holds the parameters that have come in a pass, and the sums of the squares
// of their gradients.
type backwardPass struct {
	calls sync.WaitGroup // running calls of ready
	mu    sync.Mutex
	seen  map[string]float64
	ended bool
	err   error // the first error of ready, which backward may not have returned
}

// run calls backward, with a ready that calls use. It returns the error of backward, or
// else the first error of ready.
func (b *backwardPass) run(backward func(Ready) error, use func(name string, p, g snug.View) (float64, error)) error {
	defer b.end()
	if err := backward(func(name string, p, g snug.View) error { return b.ready(name, p, g, use) }); err != nil {
		return err
	}
	b.end()
	return b.err
}

// end refuses further calls of ready, and waits for the running ones.
func (b *backwardPass) end() {
	b.mu.Lock()
	b.ended = true
	b.mu.Unlock()
	b.calls.Wait()
}

// ready marks a parameter as seen and calls use for it. A panic of use passes through,
// and ready notes that the pass is not whole.
func (b *backwardPass) ready(name string, p, g snug.View, use func(name string, p, g snug.View) (float64, error)) (err error) {
	if err := b.enter(name); err != nil {
		return err
	}
	defer b.calls.Done()
	squares, err := 0.0, fmt.Errorf("parameter %q: its work panicked: %w", name, snug.ErrConfig)
	defer func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.seen[name] = squares; b.err == nil {
			b.err = err
		}
	}()
	squares, err = use(name, p, g)
	return err
}

// enter marks a parameter as seen.
func (b *backwardPass) enter(name string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended {
		return fmt.Errorf("parameter %q is ready after the end of the backward pass: %w", name, snug.ErrConfig)
	}
	if _, twice := b.seen[name]; twice {
		err := fmt.Errorf("parameter %q came twice in a backward pass: %w", name, snug.ErrConfig)
		if b.err == nil {
			b.err = err
		}
		return err
	}
	b.seen[name] = 0
	b.calls.Add(1)
	return nil
}

// norm adds in the order of the names, because the order of the calls can differ.
func (b *backwardPass) norm() float64 {
	sum := 0.0
	for _, name := range slices.Sorted(maps.Keys(b.seen)) {
		sum += b.seen[name]
	}
	return math.Sqrt(sum)
}

func (b *backwardPass) sameAs(first map[string]float64) error {
	for _, name := range slices.Sorted(maps.Keys(first)) {
		if _, ok := b.seen[name]; !ok {
			return fmt.Errorf("parameter %q came in the first backward pass and not in the second: %w", name, snug.ErrConfig)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(b.seen)) {
		if _, ok := first[name]; !ok {
			return fmt.Errorf("parameter %q came in the second backward pass and not in the first: %w", name, snug.ErrConfig)
		}
	}
	return nil
}

// squaresOf checks the operands of a step and returns the sum of the squares of the
// elements of the gradient that the step uses.
func (a *Optimizer) squaresOf(name string, p, g snug.View, o *BackwardOptions) (float64, error) {
	q, dev, err := a.checkOperands(name, 0, true, p, g, o.GradScale)
	if err != nil {
		return 0, err
	}
	first, err := a.checkGradient(dev, q, 0, g, o.GradScale, o.GradScale)
	switch {
	case err != nil || first >= 0 && a.o.NonFinite == SkipStep:
		return 0, err
	case !dev.IsCPU() && o.Squares == nil:
		return 0, fmt.Errorf("parameter %q: the gradient lies on %s, which wants the option Squares: %w", name, dev, snug.ErrDevice)
	case !dev.IsCPU():
		return o.Squares(g)
	}
	return sumSquares(g, o.GradScale), nil
}

// sumSquares returns the sum of the squares of a host view. It leaves out elements that
// times scale are not finite.
func sumSquares(g snug.View, scale float32) float64 {
	sums := squareSums.Get().(*squares)
	defer squareSums.Put(sums)
	sums.parameter, sums.update = 0, 0
	items := cpu.Chunks(g.Len(), grain)
	sums.begin(items)
	sumTask.Run(items, sumArgs{g, scale, sums})
	sums.end()
	return sums.update
}

type sumArgs struct {
	g     snug.View
	scale float32
	sums  *squares
}

var sumTask = cpu.NewTask(func(a *sumArgs, item int) {
	lo, hi := cpu.Chunk(a.g.Len(), grain, item)
	for lo < hi {
		end := hi
		if i := sweep.FirstNotBelow(a.g, lo, hi, a.scale, tooLarge); i >= 0 {
			end = i
		}
		a.sums.items[item][1] += sweep.Squares(a.g, lo, end)
		lo = end + 1
	}
})
