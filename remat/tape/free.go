package tape

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/snug-ml/snug"
)

// Free says that the caller does not use the values any more. If other values may be
// recomputed from a freed value, it is evicted, unless the policy must save it, and computed
// again for them; it is forgotten when none of them is left. A value between Get and done
// stays until done. Values before an invalid one are freed.
func (t *Tape[V]) Free(values ...*Value[V]) error {
	if err := t.claim(); err != nil {
		return err
	}
	defer t.leave()
	for _, y := range values {
		if err := t.check(y); err != nil {
			return err
		}
		t.free(y)
	}
	return nil
}

// Banish frees y for good: the Tape releases its memory and does not need it
// again, not even to recompute others. An input is the caller's alone from then
// on. Values that were computed from y are computed again now, if they were
// evicted, and never evicted from then on. A loop that computes its next state
// from the last banishes the last: otherwise the Tape keeps the graph of all
// steps. The error wraps [snug.ErrConfig] when y is between Get and done or shares
// its memory with a value that is not freed.
func (t *Tape[V]) Banish(ctx context.Context, y *Value[V]) error {
	if err := t.enter(ctx); err != nil {
		return err
	}
	defer t.leave()
	if err := t.check(y); err != nil {
		return err
	}
	if err := y.checkAlone("banished"); err != nil {
		return err
	}
	if err := t.flush(ctx); err != nil {
		return err
	}
	var locked []*storage[V]
	defer func() { forAll(locked, t.unlock) }()
	for _, c := range y.s.consumers() {
		for _, c := range c.overwriters() {
			if c.operands == nil || c.onlyOverwritten() { // or it was offloaded or forgotten for the sake of the others
				continue
			}
			if _, err := t.lock(ctx, c, nil); err != nil {
				return err
			}
			locked = append(locked, c)
		}
	}
	var idle []*storage[V]
	for _, c := range locked {
		idle = append(idle, t.unlink(c)...)
	}
	defer t.collect(idle)
	t.free(y)
	return nil
}

// onlyOverwritten reports that s is only needed for values computed in its memory.
func (s *storage[V]) onlyOverwritten() bool { return s.users == 0 && s.needed == 1 && s.over != nil }

// overwriters returns the values computed in the memory of s, the last first, and s
// itself: computing one again destroys the values after it in the list.
func (s *storage[V]) overwriters() []*storage[V] {
	if s.over == nil {
		return []*storage[V]{s}
	}
	return append(s.over.overwriters(), s)
}

// Close releases all values that the Tape holds, also between Get and done, and discards
// offloaded ones. Further calls do nothing. The error wraps [snug.ErrConfig]
// when another method is running, and then nothing has been done.
func (t *Tape[V]) Close() error {
	if err := t.claim(); err != nil {
		if t != nil && t.closed {
			return nil
		}
		return err
	}
	defer t.leave()
	t.closed = true
	t.pending = nil
	t.stats.Values = 0
	defer func() { forAll(slices.Sorted(maps.Keys(t.copies)), t.discard) }()
	forAll(slices.Clone(t.live), t.dispose)
	return nil
}

// Stats returns what t has done so far, also after Close.
func (t *Tape[V]) Stats() Stats {
	if t == nil {
		return Stats{}
	}
	return t.stats
}

// enter is claim for the methods that compute.
func (t *Tape[V]) enter(ctx context.Context) error {
	if ctx == nil {
		return errNilContext
	}
	return t.claim()
}

// claim begins a method. leave ends it.
func (t *Tape[V]) claim() error {
	if t == nil || t.o.Bytes == nil {
		return fmt.Errorf("tape: the Tape was not made by New: %w", snug.ErrConfig)
	}
	if t.busy.Swap(true) {
		return fmt.Errorf("tape: another method of the Tape is running: %w", snug.ErrConfig)
	}
	if t.closed {
		t.leave()
		return fmt.Errorf("tape: the Tape is closed: %w", snug.ErrConfig)
	}
	return nil
}

func (t *Tape[V]) leave() { t.busy.Store(false) }

// check reports whether y can be used.
func (t *Tape[V]) check(y *Value[V]) error {
	switch {
	case y == nil:
		return fmt.Errorf("tape: a value is nil: %w", snug.ErrConfig)
	case y.tape != t:
		return fmt.Errorf("tape: value %q is of another Tape: %w", y.name, snug.ErrConfig)
	case y.freed:
		return fmt.Errorf("tape: value %q is freed: %w", y.name, snug.ErrConfig)
	}
	return nil
}

// checkAlone reports whether nothing but y itself uses its memory.
func (y *Value[V]) checkAlone(done string) error {
	switch {
	case y.s.users > 1:
		return fmt.Errorf("tape: value %q cannot be %s: %d more that share its memory are not freed: %w", y.name, done, y.s.users-1, snug.ErrConfig)
	case y.s.locks > 0:
		return fmt.Errorf("tape: value %q cannot be %s: it is in use, between Get and done: %w", y.name, done, snug.ErrConfig)
	}
	return nil
}

// checkTake reports whether y's memory is the Tape's to hand over.
func (y *Value[V]) checkTake() error {
	switch {
	case y.view != nil:
		return fmt.Errorf("tape: value %q cannot be taken: it is an alias: %w", y.name, snug.ErrConfig)
	case y.s.run == nil:
		return fmt.Errorf("tape: value %q cannot be taken: it is an input: %w", y.name, snug.ErrConfig)
	case y.s.needed > 0 && !y.s.replaceable():
		return fmt.Errorf("tape: value %q cannot be taken: others may be recomputed from it, and %s: %w", y.name, y.s.lasting(), snug.ErrConfig)
	}
	return y.checkAlone("taken")
}

// checkOverwrite reports whether y's memory is the Tape's to overwrite.
func (y *Value[V]) checkOverwrite(operands []*Value[V]) error {
	for _, x := range operands {
		if x.s == y.s {
			return fmt.Errorf("tape: value %q cannot be overwritten: the operand %q shares its memory: %w", y.name, x.name, snug.ErrConfig)
		}
	}
	if !y.s.replaceable() {
		return fmt.Errorf("tape: value %q cannot be overwritten: %s: %w", y.name, y.s.lasting(), snug.ErrConfig)
	}
	return y.checkAlone("overwritten")
}

// lasting returns why s is not replaceable.
func (s *storage[V]) lasting() string {
	switch {
	case s.run == nil:
		return "it is an input"
	case s.decision == MustSave:
		return "the policy must save it"
	}
	return "one of its operands is banished"
}
