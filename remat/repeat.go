package remat

import (
	"context"
	"fmt"
	"slices"

	"github.com/snug-ml/snug"
)

// maxStages is the longest chain that [Repeat] and [Costs.Repeat] make. It takes 40 MiB for
// its stages, 88 MiB for its costs and 64 MiB for a plan of four operations a stage.
const maxStages = 1 << 20

// Repeat returns the stages of a loop: all stages, n times over, as the steps of a
// recurrent network or the frames of a video pass through the same layers. Within
// them, [Iteration] tells the number of the round. Plan the chain with
// [Costs.Repeat]. It takes 40 bytes for every stage that it returns. The error wraps
// [snug.ErrConfig] when n is below 1, there is no stage or a nil one, or there would be
// more than 2^20 stages.
func Repeat[A, S any](n int, stages ...Stage[A, S]) ([]Stage[A, S], error) {
	if i := slices.IndexFunc(stages, func(s Stage[A, S]) bool { return s == nil }); i >= 0 {
		return nil, fmt.Errorf("remat: loop: stage %d is nil: %w", i, snug.ErrConfig)
	}
	if err := checkRounds("loop", n, len(stages)); err != nil {
		return nil, err
	}
	all := make([]Stage[A, S], 0, n*len(stages))
	for i := range n {
		for _, s := range stages {
			all = append(all, iterated[A, S]{s, i})
		}
	}
	return all, nil
}

// checkRounds reports whether n rounds of so many stages are a chain.
func checkRounds(what string, n, stages int) error {
	if n < 1 {
		return fmt.Errorf("remat: %s: %d rounds of a loop, want 1 or more: %w", what, n, snug.ErrConfig)
	}
	if stages < 1 {
		return fmt.Errorf("remat: %s: a loop without stages: %w", what, snug.ErrConfig)
	}
	if n > maxStages/stages {
		return fmt.Errorf("remat: %s: %d rounds of %d stages, want %d stages at most, for which there are plans: %w", what, n, stages, maxStages, snug.ErrConfig)
	}
	return nil
}

// Repeat returns the costs of a chain that repeats the stages of c n times. The output of
// the last stage is the input of the first, so they have the same size. Rates stay the
// same. The error wraps [snug.ErrConfig] when n is below 1, c is not valid, the total of
// the sizes does not fit in 63 bits, or there would be more than 2^20 stages, of 88 bytes
// each, and [snug.ErrShape] when the sizes differ.
func (c Costs) Repeat(n int) (Costs, error) {
	if err := c.Validate(); err != nil {
		return Costs{}, err
	}
	if err := checkRounds("costs", n, len(c.Stages)); err != nil {
		return Costs{}, err
	}
	if last := c.value(len(c.Stages)); last != c.Input {
		return Costs{}, fmt.Errorf("remat: costs: a loop whose input has %d bytes and whose output has %d: %w", c.Input, last, snug.ErrShape)
	}
	all := c
	all.Stages = slices.Repeat(c.Stages, n)
	if err := all.Validate(); err != nil {
		return Costs{}, err
	}
	return all, nil
}

// Iteration returns the round of the innermost loop of [Repeat] in which a stage runs, from
// 0; outside of a loop it returns 0. A stage with dropout uses it as a part of the counter
// of its random numbers.
func Iteration(ctx context.Context) int {
	if ctx == nil {
		return 0
	}
	i, _ := ctx.Value(iterationKey{}).(int)
	return i
}

type iterationKey struct{}

// iterated is a stage in one round of a loop.
type iterated[A, S any] struct {
	Stage[A, S]
	round int
}

func (s iterated[A, S]) in(ctx context.Context) context.Context {
	return context.WithValue(ctx, iterationKey{}, s.round)
}

func (s iterated[A, S]) Forward(ctx context.Context, x A) (A, error) {
	return s.Stage.Forward(s.in(ctx), x)
}

func (s iterated[A, S]) ForwardSave(ctx context.Context, x A) (A, S, error) {
	return s.Stage.ForwardSave(s.in(ctx), x)
}

func (s iterated[A, S]) Backward(ctx context.Context, x A, saved S, dy A) (A, error) {
	return s.Stage.Backward(s.in(ctx), x, saved, dy)
}

// Resave is ForwardSave for stages that cannot stop early.
func (s iterated[A, S]) Resave(ctx context.Context, x A) (S, error) {
	if stage, ok := s.Stage.(Resaver[A, S]); ok {
		return stage.Resave(s.in(ctx), x)
	}
	_, saved, err := s.Stage.ForwardSave(s.in(ctx), x)
	return saved, err
}
