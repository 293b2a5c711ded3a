package remat

import (
	"context"
	"fmt"

	"github.com/snug-ml/snug"
)

// Repeat returns the stages of a loop: all stages, n times over, as the steps of a
// recurrent network or the frames of a video pass through the same layers. Within
// them, [Iteration] tells the number of the round. Plan the chain with
// [Costs.Repeat]. n below 1 gives no stages.
func Repeat[A, S any](n int, stages ...Stage[A, S]) []Stage[A, S] {
	var all []Stage[A, S]
	for i := range n {
		for _, s := range stages {
			if s == nil {
				all = append(all, nil) // which a Chain refuses
				continue
			}
			all = append(all, iterated[A, S]{s, i})
		}
	}
	return all
}

// Repeat returns the costs of a chain whose stages are those of c, n times over.
// The output of the last stage is the input of the first, so that they have the
// same size. The error wraps [snug.ErrConfig] when n is below 1 or c is not valid,
// and [snug.ErrShape] when the sizes differ.
func (c Costs) Repeat(n int) (Costs, error) {
	if err := c.Validate(); err != nil {
		return Costs{}, err
	}
	if n < 1 {
		return Costs{}, fmt.Errorf("remat: costs: %d rounds of a loop, want 1 or more: %w", n, snug.ErrConfig)
	}
	if last := c.value(len(c.Stages)); last != c.Input {
		return Costs{}, fmt.Errorf("remat: costs: a loop whose input has %d bytes and whose output has %d: %w", c.Input, last, snug.ErrShape)
	}
	all := Costs{Input: c.Input}
	for range n {
		all.Stages = append(all.Stages, c.Stages...)
	}
	return all, all.Validate()
}

// Iteration returns the round of a loop, from 0, in which a stage of [Repeat] runs,
// of the innermost loop; 0 outside of one. A stage with dropout, say, numbers its
// random numbers with it.
func Iteration(ctx context.Context) int {
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
