package tape

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/saturate"
	"github.com/snug-ml/snug/remat/internal/pass"
)

// maxDepth limits the computations that wait for another one, some 1000 bytes of stack
// each.
// maxTime limits costs, so that sums of them are finite.
const maxTime = 1e200

const maxDepth = 1 << 16

// storage is the memory of a value and its aliases, and how to compute it.
type storage[V any] struct {
	id         int // in the order of creation
	op         Op
	decision   Decision
	run        func(context.Context, []V) (V, V, error) // nil for an input
	overwrites bool                                     // the result is in the memory of the first operand
	twin       *storage[V]                              // of the other result of run, if it has two
	second     bool                                     // s is the second one
	operands   []*Value[V]                              // nil if it is never computed (again)

	children []*storage[V] // computed from it; those without operands no longer count
	needed   int           // children that count
	users    int           // Values that are not freed
	locks    int           // running computations and Gets that use it
	eager    bool          // freed while locked: to be evicted
	spent    bool          // in Tape.spent, and not used since
	over     *storage[V]   // the one that overwrites it and may do so again

	v     V
	held  bool
	index int   // in Tape.live, if held
	bytes int64 // as measured last, or declared

	stored   bool    // the Offloader has a copy
	computed bool    // at least once
	cost     float64 // of the latest computation
	last     int     // tick of the latest use

	set     *evictedSet // that it is in, if evicted
	setCost float64     // what it added there
	mark    int         // of the latest walk that came here
}

// idle reports that nobody can need s again.
func (s *storage[V]) idle() bool { return s.users == 0 && s.needed == 0 && s.locks == 0 }

// replaceable reports whether s can be had again once it has gone. Inputs cannot,
// nor what the policy must save or what was computed from a banished value.
func (s *storage[V]) replaceable() bool { return s.operands != nil || s.stored }

// evictable reports whether s is in memory and may go.
func (s *storage[V]) evictable() bool { return s.held && s.locks == 0 && s.replaceable() }

// evicted reports whether s is computed again when it is needed next.
func (s *storage[V]) evicted() bool { return s.computed && !s.held && s.operands != nil }

// consumers returns the storages computed from s.
func (s *storage[V]) consumers() []*storage[V] {
	var all []*storage[V]
	for _, c := range s.children {
		if c.operands != nil {
			all = append(all, c)
		}
	}
	return all
}

func (t *Tape[V]) newStorage(op Op) *storage[V] {
	t.ids++
	return &storage[V]{id: t.ids, op: op, bytes: op.Bytes}
}

// operation returns the storage of an operation after its checks.
func (t *Tape[V]) operation(op Op, run func(context.Context, []V) (V, V, error), operands []*Value[V]) (*storage[V], error) {
	if op.Bytes < 0 || op.Extra < 0 || op.Bytes > math.MaxInt64-op.Extra {
		return nil, fmt.Errorf("tape: operation %q: a result of %d bytes and %d extra: want 0 or more, and a total that fits in 63 bits: %w", op.Name, op.Bytes, op.Extra, snug.ErrConfig)
	}
	if !(op.Cost >= 0 && op.Cost <= maxTime) {
		return nil, fmt.Errorf("tape: operation %q: cost %v: want a number from 0 to %g: %w", op.Name, op.Cost, maxTime, snug.ErrConfig)
	}
	for _, y := range operands {
		if err := t.check(y); err != nil {
			return nil, err
		}
	}
	decision, err := t.o.Policy.Decide(op)
	if err != nil {
		return nil, err
	}
	if decision == Offload && t.o.Offloader == nil {
		return nil, fmt.Errorf("tape: operation %q: the policy offloads it: want an Offloader: %w", op.Name, snug.ErrConfig)
	}
	s := t.newStorage(op)
	s.decision, s.run, s.operands = decision, run, append([]*Value[V]{}, operands...)
	return s, nil
}

// add makes s known and returns its first Value.
func (t *Tape[V]) add(s *storage[V], view func(V) V) *Value[V] {
	if s.decision == MustSave {
		s.operands = nil
	}
	for _, p := range distinct(s.operands) {
		p.children = append(p.children, s)
		p.needed++
	}
	if s.overwrites && s.operands != nil {
		s.operands[0].s.over = s
	}
	s.users = 1
	t.stats.Values++
	name := s.op.Name
	if s.op.Value != "" {
		name = s.op.Value
	}
	return &Value[V]{tape: t, s: s, name: name, view: view}
}

// first computes s, and its twin, and adds s.
func (t *Tape[V]) first(ctx context.Context, s *storage[V], view func(V) V) (y *Value[V], err error) {
	if err := t.flush(ctx); err != nil {
		return nil, err
	}
	defer func() {
		if y == nil { // a panic after the computation
			forAll([]*storage[V]{s, s.twin}, func(s *storage[V]) {
				if s != nil && s.held {
					s.operands = nil
					t.release(t.forget(s))
				}
			})
		}
	}()
	if err := t.compute(ctx, s); err != nil {
		return nil, err
	}
	return t.add(s, view), nil
}

// acquire returns the value of y and locks it.
func (t *Tape[V]) acquire(ctx context.Context, y *Value[V]) (V, error) {
	return t.lock(ctx, y.s, y.view)
}

// lock brings s into memory and keeps it there until unlock.
func (t *Tape[V]) lock(ctx context.Context, s *storage[V], view func(V) V) (v V, err error) {
	complete := false
	s.locks++ // first, so that s is not forgotten while it is computed
	defer func() {
		if !complete {
			t.unlock(s)
		}
	}()
	if err := t.materialize(ctx, s); err != nil {
		return v, err
	}
	v = s.v
	if view != nil {
		v = view(v)
	}
	s.last = t.tick
	s.spent = false
	complete = true
	return v, nil
}

// unlock ends a use of s and does what waited for that.
func (t *Tape[V]) unlock(s *storage[V]) {
	s.locks--
	switch {
	case s.locks > 0:
	case s.idle():
		t.collect([]*storage[V]{s})
	case !s.evictable():
	case s.eager || s.stored || s.decision == MustRecompute:
		t.spend(s)
	case s.decision == Offload:
		t.pending = append(t.pending, s)
	}
}

// spend drops s after its use, or when all that is being computed is there,
// because that may use it again.
func (t *Tape[V]) spend(s *storage[V]) {
	if t.depth > 0 {
		s.spent = true
		t.spent = append(t.spent, s)
		return
	}
	if s.decision == MustRecompute {
		t.stats.Evicted++
	}
	t.drop(s)
}

// settle ends a computation and drops what was spent in it.
func (t *Tape[V]) settle() {
	t.depth--
	if t.depth > 0 {
		return
	}
	spent := t.spent
	t.spent = nil
	forAll(spent, func(s *storage[V]) {
		if s.spent && s.evictable() {
			t.spend(s)
		}
	})
}

// materialize brings s into memory.
func (t *Tape[V]) materialize(ctx context.Context, s *storage[V]) error {
	switch {
	case s.held:
		return nil
	case s.stored:
		return t.load(ctx, s)
	}
	return t.compute(ctx, s)
}

// compute brings the operands of s into memory, then s.
func (t *Tape[V]) compute(ctx context.Context, s *storage[V]) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("tape: before operation %q: %w", s.op.Name, err)
	}
	if t.depth >= maxDepth {
		return fmt.Errorf("tape: operation %q: a chain of more than %d evicted values leads to it: %w", s.op.Name, maxDepth, snug.ErrNoMemory)
	}
	t.depth++
	defer t.settle()
	operands := s.operands
	in := make([]V, 0, len(operands))
	defer func() { forAll(operands[:len(in)], func(y *Value[V]) { t.unlock(y.s) }) }()
	for _, y := range operands {
		v, err := t.acquire(ctx, y)
		if err != nil {
			return err
		}
		in = append(in, v)
	}
	need := s.op.Extra
	if !s.overwrites {
		need = saturate.Add(need, s.bytes)
	}
	if s.twin != nil {
		need = saturate.Add(need, s.twin.bytes)
	}
	if err := t.evictFor(ctx, s, need); err != nil {
		return err
	}
	if err := t.checkWork(s); err != nil {
		return err
	}
	v, other, cost, err := t.call(ctx, s, in)
	if err != nil {
		return fmt.Errorf("tape: operation %q: %w", s.op.Name, err)
	}
	if s.twin != nil {
		err = t.attachBoth(ctx, s, v, other)
	} else {
		err = t.attach(ctx, s, v, s.op.Extra)
	}
	if err != nil {
		return err
	}
	if s.computed {
		t.stats.Recomputed++
		t.stats.ExtraWork += cost
	} else {
		t.stats.Computed++
		t.stats.Work += cost
	}
	s.computed, s.cost = true, cost
	if s.twin != nil {
		s.twin.computed, s.twin.cost = true, cost
	}
	return nil
}

// checkWork is the guard against thrashing.
func (t *Tape[V]) checkWork(s *storage[V]) error {
	if extra := t.stats.ExtraWork + s.cost; s.computed && extra > t.o.MaxRecompute*t.stats.Work {
		return &ThrashError{
			Operation: s.op.Name, Budget: t.budget, Work: t.stats.Work, ExtraWork: extra,
			Recomputed: t.stats.Recomputed + 1, Limit: t.o.MaxRecompute,
		}
	}
	return nil
}

// call runs the operation of s on the values of its operands. other is the result of the twin.
func (t *Tape[V]) call(ctx context.Context, s *storage[V], in []V) (v, other V, cost float64, err error) {
	t.tick++
	if s.computed {
		ctx = pass.Again(ctx)
	}
	begin := time.Now()
	if s.overwrites {
		v, err = t.overwrite(ctx, s, in)
	} else {
		v, other, err = s.run(ctx, in)
	}
	if s.second {
		v, other = other, v
	}
	cost = time.Since(begin).Seconds()
	if s.op.Cost > 0 {
		cost = s.op.Cost
	}
	return v, other, cost, err
}

// overwrite runs the operation of s on the memory of its first operand, which
// becomes the memory of s.
func (t *Tape[V]) overwrite(ctx context.Context, s *storage[V], in []V) (dst V, err error) {
	dst = t.forget(s.operands[0].s)
	complete := false
	defer func() {
		if !complete {
			t.release(dst) // which is neither the old value nor the new one
		}
	}()
	if _, _, err = s.run(ctx, in); err == nil {
		complete = true
	}
	return dst, err
}

// load brings s back from the Offloader.
func (t *Tape[V]) load(ctx context.Context, s *storage[V]) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("tape: before loading the result of operation %q: %w", s.op.Name, err)
	}
	if err := t.evictFor(ctx, s, s.bytes); err != nil {
		return err
	}
	v, err := t.o.Offloader.Load(ctx, s.id)
	if err != nil {
		return fmt.Errorf("tape: loading the result of operation %q: %w", s.op.Name, err)
	}
	t.tick++
	if err := t.attach(ctx, s, v, 0); err != nil {
		return err
	}
	t.stats.Loaded++
	return nil
}
