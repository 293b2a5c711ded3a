package remat

import (
	"context"

	"github.com/snug-ml/snug/remat/internal/pass"
)

// Monitor counts the bytes that stages hold in device memory: activations, saved sets and transient buffers. A Monitor of
// package meter is one.
type Monitor interface {
	// Mark returns the bytes that are held now, and the most that were held since the last call of Mark.
	Mark() (held, peak int64)
}

// FirstPass reports whether a stage, or an operation of package tape, computes its forward step for the first time in
// a step of training. It is false in recomputations and in a backward step. So batch norm updates its averages once
// for each micro-batch, whatever the plan:
//
//	if remat.FirstPass(ctx) {
//		n.mean = (1-momentum)*n.mean + momentum*mean
//	}
//
// The stages of a run within a recomputed stage run again too. Outside of runs, as in [Chain.Eval], it is true.
func FirstPass(ctx context.Context) bool { return pass.First(ctx) }

// stepContext is the context of the steps of a run. It is valid until the step returns.
type stepContext[A, S any] struct {
	context.Context
	again bool // see FirstPass

	chain      *Chain[A, S]
	held, peak int64 // transient bytes that Tiles hold
	before     int64 // what the Monitor counted when the step began
}

type stepKey struct{}

// Value implements [context.Context].
func (s *stepContext[A, S]) Value(key any) any {
	switch {
	case key == stepKey{}:
		return s
	case s.again && key == pass.Key{}:
		return false
	}
	return s.Context.Value(key)
}

// begin begins a step.
func (s *stepContext[A, S]) begin(again bool) {
	s.again, s.held, s.peak = again, 0, 0
	if s.chain.Monitor != nil {
		s.before, _ = s.chain.Monitor.Mark()
	}
}

// transient returns the transient bytes of the step of a stage that has just ended: those that the Monitor has seen, or
// without one, the declared ones, and at least those of its Tiles. more is by how many bytes the values of the chain grow in the
// step. What is left after the step is less where a backward step frees a part of its saved set, and more where a stage
// allocates something that stays: neither is transient.
func (s *stepContext[A, S]) transient(declared, more int64) int64 {
	if s.chain.Monitor != nil {
		held, peak := s.chain.Monitor.Mark()
		return peak - max(held, s.before+more)
	}
	return max(declared, s.peak)
}

// stepOf returns the step of a chain of these types in which ctx is passed on, nil if there is none.
func stepOf[A, S any](ctx context.Context) *stepContext[A, S] {
	s, _ := ctx.Value(stepKey{}).(*stepContext[A, S])
	return s
}

// hold adds n to the bytes that Tiles hold in the step.
func (s *stepContext[A, S]) hold(n int64) {
	if s != nil {
		s.held += n
		s.peak = max(s.peak, s.held)
	}
}

// bytes returns the size of values, 0 outside of a step.
func (s *stepContext[A, S]) bytes(a A, saved ...S) (sum int64) {
	if s == nil {
		return 0
	}
	for _, v := range saved {
		sum += s.chain.SavedBytes(v)
	}
	return sum + s.chain.Bytes(a)
}
