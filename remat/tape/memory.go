package tape

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/saturate"
)

// size returns the size of a value of s.
func (t *Tape[V]) size(s *storage[V], v V) (int64, error) {
	bytes := t.o.Bytes(v)
	if bytes < 0 || bytes > math.MaxInt64-t.stats.Held {
		return 0, fmt.Errorf("tape: value of %q has %d bytes: want 0 or more, and a total that fits in 63 bits: %w", s.op.Name, bytes, snug.ErrConfig)
	}
	return bytes, nil
}

// evictFor evicts until need more bytes fit.
func (t *Tape[V]) evictFor(ctx context.Context, s *storage[V], need int64) error {
	for need > t.budget-t.stats.Held {
		victim, kept := t.victim()
		if smallest := saturate.Add(kept, need); smallest > t.budget || victim == nil {
			return &BudgetError{Operation: s.op.Name, Budget: t.budget, Minimum: smallest}
		}
		if err := t.evict(ctx, victim); err != nil {
			return err
		}
	}
	return nil
}

// attach makes v the value of s, which it owns from now on, also if it does not
// fit. extra is the transient bytes of the computation.
func (t *Tape[V]) attach(ctx context.Context, s *storage[V], v V, extra int64) error {
	defer func() {
		if !s.held {
			t.release(v)
		}
	}()
	bytes, err := t.size(s, v)
	if err != nil {
		return err
	}
	t.stats.Peak = max(t.stats.Peak, saturate.Add(t.stats.Held+bytes, extra))
	if err := t.evictFor(ctx, s, saturate.Add(bytes, extra)); err != nil { // which it takes when it is computed again
		return err
	}
	t.hold(s, v, bytes)
	return nil
}

// attachBoth makes v the value of s and other the value of its twin. In a recomputation it keeps other only if that was
// evicted and fits.
func (t *Tape[V]) attachBoth(ctx context.Context, s *storage[V], v, other V) error {
	owned := []V{other, v}
	defer func() { forAll(owned, t.release) }()
	twin := s.twin
	bytes, err := t.size(twin, other)
	if err != nil {
		return err
	}
	owned = owned[:1]
	if err := t.attach(ctx, s, v, saturate.Add(s.op.Extra, bytes)); err != nil {
		return err
	}
	wanted := !twin.held && !twin.stored && twin.users > 0 && twin.decision != MustRecompute
	switch {
	case !twin.computed:
		owned = nil
		s.locks++ // so that it is not evicted for its twin
		defer func() { s.locks-- }()
		return t.attach(ctx, twin, other, 0)
	case wanted && bytes <= t.budget-t.stats.Held:
		owned = nil
		t.hold(twin, other, bytes)
	}
	return nil
}

// hold puts s into the account.
func (t *Tape[V]) hold(s *storage[V], v V, bytes int64) {
	t.leaveSet(s)
	s.v, s.held, s.bytes = v, true, bytes
	s.eager = false
	s.last = t.tick
	s.index = len(t.live)
	t.live = append(t.live, s)
	t.stats.Held += bytes
	t.stats.Peak = max(t.stats.Peak, t.stats.Held)
}

// forget takes s out of the account and returns its value.
func (t *Tape[V]) forget(s *storage[V]) V {
	end := len(t.live) - 1
	moved := t.live[end]
	t.live[s.index], moved.index = moved, s.index
	t.live[end] = nil
	t.live = t.live[:end]
	t.stats.Held -= s.bytes
	var v, none V
	v, s.v = s.v, none
	s.held, s.spent = false, false
	t.joinSet(s)
	return v
}

func (t *Tape[V]) release(v V) {
	if t.o.Release != nil {
		t.o.Release(v)
	}
}

// drop releases the value of s, which can be had again.
func (t *Tape[V]) drop(s *storage[V]) { t.release(t.forget(s)) }

// evict drops s or, if the policy says so, offloads it.
func (t *Tape[V]) evict(ctx context.Context, s *storage[V]) error {
	if s.decision == Offload && !s.stored && s.users > 0 {
		return t.offload(ctx, s)
	}
	t.stats.Evicted++
	t.drop(s)
	return nil
}

// offload stores the value of s and drops it.
func (t *Tape[V]) offload(ctx context.Context, s *storage[V]) error {
	if err := t.o.Offloader.Store(ctx, s.id, s.v); err != nil {
		return fmt.Errorf("tape: storing the result of operation %q: %w", s.op.Name, err)
	}
	s.stored = true
	t.copies[s.id] = true
	t.stats.Stored++
	idle := t.unlink(s)
	defer t.collect(idle)
	t.drop(s)
	return nil
}

// flush offloads what waits for it.
func (t *Tape[V]) flush(ctx context.Context) error {
	for len(t.pending) > 0 {
		last := len(t.pending) - 1
		s := t.pending[last]
		if s.evictable() && s.users > 0 && !s.stored {
			if err := ctx.Err(); err != nil {
				return fmt.Errorf("tape: before storing the result of operation %q: %w", s.op.Name, err)
			}
			if err := t.offload(ctx, s); err != nil {
				return err
			}
		}
		t.pending = t.pending[:last]
	}
	return nil
}

// free takes a use of y's memory away.
func (t *Tape[V]) free(y *Value[V]) {
	y.freed = true
	s := y.s
	s.users--
	switch {
	case s.users > 0:
	case s.idle():
		t.collect([]*storage[V]{s})
	case s.locks > 0:
		s.eager = true
	case s.evictable():
		t.drop(s)
	}
}

// unlink makes s independent of its operands, because it is never computed
// again, and returns the operands that nobody needs then.
func (t *Tape[V]) unlink(s *storage[V]) (idle []*storage[V]) {
	operands := s.operands
	s.operands = nil
	if s.overwrites && operands != nil {
		operands[0].s.over = nil
	}
	for _, p := range distinct(operands) {
		p.needed--
		if len(p.children) > 8+2*p.needed {
			p.children = p.consumers()
		}
		if p.idle() {
			idle = append(idle, p)
		}
	}
	return idle
}

// collect forgets what nobody needs, and what only that needed.
func (t *Tape[V]) collect(idle []*storage[V]) {
	var gone []*storage[V]
	for len(idle) > 0 {
		s := idle[len(idle)-1]
		idle = append(idle[:len(idle)-1], t.unlink(s)...)
		gone = append(gone, s)
		t.leaveSet(s)
		t.stats.Values--
	}
	forAll(gone, t.dispose)
}

// dispose releases the value of s, unless it is the caller's, and its copy.
func (t *Tape[V]) dispose(s *storage[V]) {
	defer func() {
		if t.copies[s.id] {
			t.discard(s.id)
		}
	}()
	if !s.held {
		return
	}
	if v := t.forget(s); s.run != nil {
		t.release(v)
	}
}

// discard forgets a copy that the Offloader has.
func (t *Tape[V]) discard(key int) {
	delete(t.copies, key)
	t.o.Offloader.Discard(key)
}

// distinct returns the storages of values, each once.
func distinct[V any](values []*Value[V]) []*storage[V] {
	var all []*storage[V]
	for _, y := range values {
		if !slices.Contains(all, y.s) {
			all = append(all, y.s)
		}
	}
	return all
}

// forAll calls do with every element, also after a panic in one of the calls.
func forAll[T any](list []T, do func(T)) {
	next := 0
	defer func() {
		if next < len(list) {
			forAll(list[next:], do)
		}
	}()
	for next < len(list) {
		next++
		do(list[next-1])
	}
}
