package remat

import (
	"context"
	"fmt"

	"github.com/snug-ml/snug"
)

// Stage is one step of a chain. A is the type of activations and their
// gradients, S of what a stage saves for its backward step.
//
// Forward and ForwardSave compute the same y from the same x, to the bit, so recomputed
// values equal kept ones. A stage with dropout draws its random numbers from a counter, not
// from a sequence.
//
// Values share no memory, with three exceptions: y is part of s, s may consist of y alone,
// and dx may be dy. A stage only borrows x. A step that fails, by an error or a panic,
// leaves no results behind.
type Stage[A, S any] interface {
	// Forward returns the output for x and keeps nothing else.
	Forward(ctx context.Context, x A) (y A, err error)
	// ForwardSave returns the output for x and what Backward needs. y belongs
	// to s and lives as long as s.
	ForwardSave(ctx context.Context, x A) (y A, s S, err error)
	// Backward returns the gradient with respect to x from the gradient with respect to y. It
	// takes ownership of dy, whether it succeeds or not: it releases dy or returns the same
	// memory as dx. It does not release s.
	Backward(ctx context.Context, x A, s S, dy A) (dx A, err error)
}

// Resaver is a [Stage] that stops early: where a plan computes a saved set again and
// nothing uses the output in it, a run calls Resave instead of ForwardSave.
type Resaver[A, S any] interface {
	// Resave returns the saved set of ForwardSave, to the bit and of the same size,
	// except for the output in it, which may have any value.
	Resave(ctx context.Context, x A) (s S, err error)
}

// Chain is a sequence of stages and the functions that measure and release their values.
// A run does not change it. One Chain may have any number of runs at the same time, also
// a run within a stage of another, as long as its stages allow that.
type Chain[A, S any] struct {
	Stages []Stage[A, S]

	// Bytes returns the size in bytes of an activation or gradient, SavedBytes the
	// size of a saved set with the output in it. Both are required.
	Bytes      func(A) int64
	SavedBytes func(S) int64

	// Release and ReleaseSaved free a value. They are called exactly once for
	// every value that the executor held and did not hand over. nil leaves
	// values to the garbage collector.
	Release      func(A)
	ReleaseSaved func(S)

	// Hash and HashSaved, if they are not nil, verify recomputation: a run hashes
	// every output and every saved set, and fails with a [*RecomputeError] when a
	// recomputed value has another hash than the first time. [HashView] hashes a
	// vector. Hash also checks an output that was at first only a part of a saved
	// set. A run does not compare packed values, values that are computed from
	// packed ones, and the saved sets of Resave. The cost is one pass over every
	// value and 16 bytes a stage.
	Hash      func(A) (uint64, error)
	HashSaved func(S) (uint64, error)

	// Store and StoreSaved begin to copy a value to a tier. Plans that page or pack
	// need them. The value does not change until [Copy].Stored returns. StoreSaved
	// needs Output, which returns the output within a loaded saved set.
	Store      func(ctx context.Context, t Tier, y A) (Copy[A], error)
	StoreSaved func(ctx context.Context, t Tier, s S) (Copy[S], error)
	Output     func(S) A

	// Monitor measures the transient bytes of the stages: what it has counted at the highest point of a step beyond what
	// is left after the step, or would be if the stage freed nothing of its saved set. So it counts activations, gradients and saved sets too, and nothing else changes while a
	// step runs. nil: transient bytes are those that Costs declares, and at least the values that [Tiles] hold.
	Monitor Monitor

	// Costs declares the transient bytes of the stages and the sizes that a run compares with the measured ones. nil
	// means no declared transient bytes and no comparison.
	Costs *Costs
}

// Run executes plan, or [KeepAll] if plan has no operations: it computes the output of the chain for x, calls loss once
// with it, and returns the gradient with respect to x. loss borrows y; the
// gradient dy that it returns shares no memory with y and belongs to the
// executor from then on, also if the run fails.
//
// The caller keeps x and owns dx. Everything else is released exactly once,
// as early as the plan says, and in any case before Run returns or a panic of
// a stage, of loss or of a function of c leaves it; Run does not recover from
// panics. ctx is checked before every operation.
//
// The error comes from the stage, the loss or ctx, and then dx and the Report are zero. Or
// it wraps [snug.ErrConfig] when the chain, the plan or an argument is not valid, or
// [snug.ErrShape] when the numbers of stages differ, and then nothing has run.
//
// Run makes a [Runner], which takes memory proportional to the plan's length.
// Keep one for repeated steps.
func (c *Chain[A, S]) Run(ctx context.Context, plan Plan, x A, loss func(y A) (dy A, err error)) (dx A, rep Report, err error) {
	r, err := c.NewRunner(plan)
	if err != nil {
		return dx, rep, err
	}
	return r.Run(ctx, x, loss)
}

// Eval returns the output of the chain for x, without a backward pass. It holds at most
// two values, x included, and does not need Bytes and SavedBytes. The caller keeps x and
// owns y. Errors and panics are the same as in [Chain.Run].
func (c *Chain[A, S]) Eval(ctx context.Context, x A) (y A, err error) {
	if err := c.checkStages(); err != nil {
		return y, err
	}
	if ctx == nil {
		return y, errNilContext
	}
	value, owned := x, false // owned: not x, so ours to release
	defer func() {
		if owned {
			c.release(value)
		}
	}()
	for i, stage := range c.Stages {
		if err := ctx.Err(); err != nil {
			return y, fmt.Errorf("remat: before stage %d: %w", i, err)
		}
		next, err := stage.Forward(ctx, value)
		if err != nil {
			return y, fmt.Errorf("remat: forward of stage %d: %w", i, err)
		}
		input, release := value, owned
		value, owned = next, true
		if release {
			c.release(input)
		}
	}
	owned = false
	return value, nil
}

var errNilContext = fmt.Errorf("remat: the context is nil: %w", snug.ErrConfig)

func (c *Chain[A, S]) checkStages() error {
	if c == nil || len(c.Stages) == 0 {
		return fmt.Errorf("remat: chain: want at least one stage: %w", snug.ErrConfig)
	}
	for i, s := range c.Stages {
		if s == nil {
			return fmt.Errorf("remat: chain: stage %d is nil: %w", i, snug.ErrConfig)
		}
	}
	return nil
}

// check returns plan with its operations, or why c cannot run it.
func (c *Chain[A, S]) check(plan Plan) (Plan, error) {
	if err := c.checkStages(); err != nil {
		return plan, err
	}
	if c.Bytes == nil || c.SavedBytes == nil {
		return plan, fmt.Errorf("remat: chain: want the functions Bytes and SavedBytes: %w", snug.ErrConfig)
	}
	if c.Costs != nil {
		if err := c.Costs.Validate(); err != nil {
			return plan, err
		}
		if len(c.Costs.Stages) != len(c.Stages) {
			return plan, fmt.Errorf("remat: chain of %d stages, costs of %d: %w", len(c.Stages), len(c.Costs.Stages), snug.ErrShape)
		}
	}
	plan, err := plan.For(len(c.Stages))
	if err != nil {
		return plan, err
	}
	if err := plan.Validate(); err != nil {
		return plan, err
	}
	return plan, c.checkCopies(plan)
}

func (c *Chain[A, S]) release(a A) {
	if c.Release != nil {
		c.Release(a)
	}
}

func (c *Chain[A, S]) releaseSaved(s S) {
	if c.ReleaseSaved != nil {
		c.ReleaseSaved(s)
	}
}
