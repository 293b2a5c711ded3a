package cpu

import (
	"iter"
	"sync"
)

// Registry holds the implementations of one kernel, at most one a tier. F is
// the kernel's function type, or a struct of functions. A kernel family is a
// package-level Registry that init functions fill, so that one process can run
// and compare every tier.
type Registry[F any] struct {
	impls [numTiers]*F
	once  sync.Once
	best  *F
	tier  Tier
}

// Add registers f for tier t. Call it from init.
func (r *Registry[F]) Add(t Tier, f F) { r.impls[t] = &f }

// Best returns the implementation of the highest tier that this machine has
// and SNUG_CPU allows. A bad SNUG_CPU allows the Go tier only.
func (r *Registry[F]) Best() *F {
	r.once.Do(func() {
		limit, _ := Limit()
		for t := Go; t <= limit; t++ {
			if r.impls[t] != nil && t.Has() {
				r.best, r.tier = r.impls[t], t
			}
		}
	})
	return r.best
}

// Tier returns the tier of Best.
func (r *Registry[F]) Tier() Tier {
	r.Best()
	return r.tier
}

// All yields every registered implementation that this machine can run, the
// Go tier first, whatever SNUG_CPU says. Tests compare them.
func (r *Registry[F]) All() iter.Seq2[Tier, *F] {
	return func(yield func(Tier, *F) bool) {
		for t := range numTiers {
			if r.impls[t] != nil && t.Has() && !yield(t, r.impls[t]) {
				return
			}
		}
	}
}
