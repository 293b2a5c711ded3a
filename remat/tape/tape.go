package tape

import (
	"context"
	"fmt"
	"math"
	"sync/atomic"

	"github.com/snug-ml/snug"
)

// Options says how a [Tape] handles values of type V. Bytes is required.
type Options[V any] struct {
	// Bytes returns the size of a value. Release frees one; it is called
	// exactly once for every value that an operation made and the Tape did not
	// hand over. nil leaves values to the garbage collector.
	Bytes   func(V) int64
	Release func(V)

	// Budget is the most bytes to hold at one time; 0 stands for no limit.
	Budget int64
	// Heuristic chooses the values to evict when the budget is reached.
	Heuristic Heuristic
	// Policy decides which values are kept, recomputed and offloaded; nil is [SaveAll].
	Policy Policy
	// Offloader is where the values go that the policy offloads. Without such
	// values it may be nil.
	Offloader Offloader[V]
	// MaxRecompute limits the work of recomputations, as a multiple of the work
	// of first computations. 0 stands for 100, +Inf for no limit.
	MaxRecompute float64
}

// Offloader keeps copies of values outside of the memory that the budget
// counts. A key stands for one value of one Tape; every key that Store accepted
// is discarded once, by [Tape.Close] at the latest.
type Offloader[V any] interface {
	// Store keeps a copy of v. It borrows v.
	Store(ctx context.Context, key int, v V) error
	// Load returns a value equal to the one stored. The Tape owns it. The copy
	// stays.
	Load(ctx context.Context, key int) (V, error)
	// Discard forgets the copy.
	Discard(key int)
}

// Tape runs the operations of a graph, one after the other, in an order that
// nobody planned, and keeps their results under a budget of bytes: it evicts
// what [Heuristic] chooses and computes it again when it is needed, as Dynamic
// Tensor Rematerialization does (Kirisame et al., ICLR 2021). An operation learns from its context whether it runs
// again, see [github.com/snug-ml/snug/remat.FirstPass]. Values may have
// any number of consumers. Whatever the budget, the values are the same, to the
// bit, if the operations are deterministic.
//
// An operation is a function of the values it is given. It keeps none of them,
// changes none, and its result shares no memory with them; [Tape.Alias] and
// [Tape.Overwrite] are for values that do. It may be called any number of times.
// One that fails, by an error or a panic, leaves nothing of its result behind.
// What it captures, such as parameters, is not counted and must not change as
// long as it may be computed again.
//
// # Memory
//
// Inputs and all results that are in memory count as held, an alias as nothing.
// Before a computation, values are evicted until what is held, the size of the
// result and the operation's Extra bytes are within the budget. The size is what
// [Op] declares or, in a recomputation, what it was the last time. An
// operation that declares none exceeds the budget by its result the first time,
// until others have been evicted for it. Never evicted are inputs, operands of
// running computations, values between [Tape.Get] and its done, values that the
// policy must save, and values that [Tape.Banish] keeps. A computation that does not
// fit next to these fails with a [*BudgetError], before anything has been evicted
// for it.
//
// A policy's MustSave makes a value independent of what it was computed from, which
// goes when nothing else needs it. PreferRecompute makes a value 16 times as
// likely to be evicted.
// MustRecompute drops it when the first operation or Get that used it is over,
// all that this recomputes included, and again after each later one: two
// operations that use it compute it twice, and a chain of such values takes O(n²)
// computations. Offload moves a value out by the next call of a method after its
// first use, or earlier if it is to be evicted, and drops it again after every
// later one. What waits to be dropped is evicted before anything else.
//
// # Use
//
// A Tape is not safe for concurrent use, and operations do not call it: a method
// that is called during another fails. [Tape.Close] it in any case. A method
// that fails, or is left by a panic, leaves the values of before in the Tape, in
// memory or to be recomputed, and none of its own; it can be called again.
//
// Errors are the errors of operations, the Offloader, the policy and the context, with
// the name of the operation; a [*BudgetError] or a [*ThrashError], which wrap
// [snug.ErrNoMemory]; or they wrap [snug.ErrConfig] when an argument is not valid,
// a value is freed or of another Tape, or the Tape is closed or in use, and then
// nothing has been done.
//
// Where more than 65,536 evicted values, each computed from the one before, lead to one
// that is needed, the error wraps [snug.ErrNoMemory]: keep one of them now and then, by
// the policy or a larger budget.
//
// It takes about 400 bytes for every value that is not freed or that such a
// value may be recomputed from.
type Tape[V any] struct {
	o      Options[V]
	budget int64
	busy   atomic.Bool
	closed bool

	ids     int
	tick    int           // computations and loads so far
	live    []*storage[V] // held
	depth   int           // of computations for others
	spent   []*storage[V] // to be dropped after them
	pending []*storage[V] // to be offloaded by the next call
	copies  map[int]bool  // keys that the Offloader has
	stats   Stats

	mark  int           // of the latest walk
	stack []*storage[V] // of a walk
}

// Stats is what a [Tape] has done so far. Sizes are in bytes, costs in the
// unit of [Op], seconds if they are measured.
type Stats struct {
	Held   int64 // bytes now
	Peak   int64 // most bytes at one time, with the Extra of operations
	Values int   // in memory or not, inputs included, aliases not

	Computed   int     // first computations
	Work       float64 // cost of first computations
	Recomputed int     // further computations
	ExtraWork  float64 // cost of further computations
	Evicted    int     // values dropped under the budget or because they must be recomputed
	Stored     int     // values that the Offloader stored
	Loaded     int     // values that the Offloader loaded
}

// New returns an empty Tape. The error wraps [snug.ErrConfig] when an option
// is out of its range.
func New[V any](o Options[V]) (*Tape[V], error) {
	switch {
	case o.Bytes == nil:
		return nil, fmt.Errorf("tape: want the function Bytes: %w", snug.ErrConfig)
	case o.Budget < 0:
		return nil, fmt.Errorf("tape: budget of %d bytes, want 0 or more: %w", o.Budget, snug.ErrConfig)
	case o.Heuristic >= heuristics:
		return nil, fmt.Errorf("tape: heuristic %d: there is no such heuristic: %w", o.Heuristic, snug.ErrConfig)
	case !(o.MaxRecompute >= 0):
		return nil, fmt.Errorf("tape: MaxRecompute of %v, want 0 or more: %w", o.MaxRecompute, snug.ErrConfig)
	}
	if o.MaxRecompute == 0 {
		o.MaxRecompute = 100
	}
	t := &Tape[V]{o: o, budget: o.Budget, copies: map[int]bool{}}
	if t.budget == 0 {
		t.budget = math.MaxInt64
	}
	return t, nil
}

// Value is a value of a [Tape]: an input, a result or an alias of one. It stands
// for the value whether that is in memory or not.
type Value[V any] struct {
	tape  *Tape[V]
	s     *storage[V]
	name  string
	view  func(V) V // from the value of s; nil for all of it
	freed bool      // by the caller
}

// Input adds a value that the caller owns and the Tape only borrows, until it is
// banished, until it and all that may be recomputed from it is freed, or until
// the Tape is closed. It is never evicted. Other values may be evicted
// for it.
func (t *Tape[V]) Input(ctx context.Context, name string, v V) (*Value[V], error) {
	if err := t.enter(ctx); err != nil {
		return nil, err
	}
	defer t.leave()
	s := t.newStorage(Op{Name: name})
	bytes, err := t.size(s, v)
	if err != nil {
		return nil, err
	}
	if err := t.flush(ctx); err != nil {
		return nil, err
	}
	if err := t.evictFor(ctx, s, bytes); err != nil {
		return nil, err
	}
	t.hold(s, v, bytes)
	return t.add(s, nil), nil
}

// Do runs an operation on the operands and adds its result. run borrows the
// operands' values, in the order of operands, and the slice, for one call.
func (t *Tape[V]) Do(ctx context.Context, op Op, run func(ctx context.Context, in []V) (V, error), operands ...*Value[V]) (*Value[V], error) {
	if err := t.enter(ctx); err != nil {
		return nil, err
	}
	defer t.leave()
	if run == nil {
		return nil, fmt.Errorf("tape: operation %q: the function is nil: %w", op.Name, snug.ErrConfig)
	}
	s, err := t.operation(op, func(ctx context.Context, in []V) (v, none V, err error) {
		v, err = run(ctx, in)
		return v, none, err
	}, operands)
	if err != nil {
		return nil, err
	}
	return t.first(ctx, s, nil)
}

// DoSave runs an operation with two results: an output and a saved set, which only the backward operation needs. They are
// two values: the Tape may drop the saved set and keep the output. The policy decides on each by its own Op, of which
// saved has the name, the class and the bytes; Extra and Cost are those of op. Nothing uses a saved set before the backward
// operation, so MustRecompute drops it at once, and the next call of a method offloads it. run computes both again when one
// is needed; the other one is kept if it was evicted and there is room, and released otherwise.
func (t *Tape[V]) DoSave(ctx context.Context, op, saved Op, run func(ctx context.Context, in []V) (y, s V, err error), operands ...*Value[V]) (y, s *Value[V], err error) {
	if err := t.enter(ctx); err != nil {
		return nil, nil, err
	}
	defer t.leave()
	if run == nil {
		return nil, nil, fmt.Errorf("tape: operation %q: the function is nil: %w", op.Name, snug.ErrConfig)
	}
	output, err := t.operation(op, run, operands)
	if err != nil {
		return nil, nil, err
	}
	saved.Extra, saved.Cost = op.Extra, op.Cost
	set, err := t.operation(saved, run, operands)
	if err != nil {
		return nil, nil, err
	}
	output.twin, set.twin, set.second = set, output, true
	if y, err = t.first(ctx, output, nil); err != nil {
		return nil, nil, err
	}
	s = t.add(set, nil)
	complete := false
	defer func() {
		if !complete { // a panic
			forAll([]*Value[V]{y, s}, t.free)
		}
	}()
	set.locks++
	t.unlock(set) // as after a use: if it is to go, it goes now
	complete = true
	return y, s, nil
}

// Overwrite runs an operation that writes its result over y, into the same
// memory, adds the result and frees y. run changes dst,
// the value of y, and borrows the others. y's own value is recomputed where the
// recomputation of another needs it.
//
// The error wraps [snug.ErrConfig] when y has live readers: an alias of it, or a
// value that it is an alias of, that is not freed, is between Get and done, or is
// among the operands; and when y could not be computed again: an input, what the
// policy must save, and what [Tape.Banish] keeps. After a failure of run, y is
// evicted.
func (t *Tape[V]) Overwrite(ctx context.Context, op Op, run func(ctx context.Context, dst V, in []V) error, y *Value[V], operands ...*Value[V]) (*Value[V], error) {
	if err := t.enter(ctx); err != nil {
		return nil, err
	}
	defer t.leave()
	if run == nil {
		return nil, fmt.Errorf("tape: operation %q: the function is nil: %w", op.Name, snug.ErrConfig)
	}
	over := func(ctx context.Context, in []V) (none, nothing V, err error) {
		return none, nothing, run(ctx, in[0], in[1:])
	}
	s, err := t.operation(op, over, append([]*Value[V]{y}, operands...))
	if err != nil {
		return nil, err
	}
	if err := y.checkOverwrite(operands); err != nil {
		return nil, err
	}
	s.overwrites = true
	z, err := t.first(ctx, s, y.view)
	if err == nil {
		t.free(y)
	}
	return z, err
}

// Alias adds a value that shares y's memory, such as a slice of it, a tensor of
// another shape, or one of several results. view returns it, given the value of
// y, without a computation or memory worth counting; it is called for every use.
// The two are evicted and recomputed together. The memory is in use until both
// are freed.
func (t *Tape[V]) Alias(name string, y *Value[V], view func(V) V) (*Value[V], error) {
	if err := t.claim(); err != nil {
		return nil, err
	}
	defer t.leave()
	if view == nil {
		return nil, fmt.Errorf("tape: alias %q: the function is nil: %w", name, snug.ErrConfig)
	}
	if err := t.check(y); err != nil {
		return nil, err
	}
	all := view
	if y.view != nil {
		all = func(v V) V { return view(y.view(v)) }
	}
	y.s.users++
	return &Value[V]{tape: t, s: y.s, name: name, view: all}, nil
}

// Get returns the value of y, which is computed again if it was evicted, and all
// that this needs. It stays in memory until done is called; v is borrowed until
// then. done may be called more than once, and not during another method. It is
// nil if err is not.
func (t *Tape[V]) Get(ctx context.Context, y *Value[V]) (v V, done func(), err error) {
	if err := t.enter(ctx); err != nil {
		return v, nil, err
	}
	defer t.leave()
	if err := t.check(y); err != nil {
		return v, nil, err
	}
	if err := t.flush(ctx); err != nil {
		return v, nil, err
	}
	if v, err = t.acquire(ctx, y); err != nil {
		return v, nil, err
	}
	called := false
	return v, func() {
		if !called && !t.closed {
			called = true
			t.unlock(y.s)
		}
	}, nil
}

// Take returns the value of y as Get does and hands it over: the caller owns it,
// and y is freed. The error wraps [snug.ErrConfig] when y is an input, an alias or
// between Get and done, when it has aliases that are not freed, and when others
// may be recomputed from it but not it itself, by MustSave or [Tape.Banish].
func (t *Tape[V]) Take(ctx context.Context, y *Value[V]) (v V, err error) {
	if err := t.enter(ctx); err != nil {
		return v, err
	}
	defer t.leave()
	if err := t.check(y); err != nil {
		return v, err
	}
	if err := y.checkTake(); err != nil {
		return v, err
	}
	if err := t.flush(ctx); err != nil {
		return v, err
	}
	if v, err = t.acquire(ctx, y); err != nil {
		return v, err
	}
	all, complete := t.forget(y.s), false
	defer func() {
		if !complete {
			t.release(all)
		}
	}()
	y.s.locks--
	t.free(y)
	complete = true
	return v, nil
}
