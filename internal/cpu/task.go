package cpu

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// helpers counts the goroutines that all running tasks have borrowed beyond
// their callers, so that nested and concurrent tasks together never use more
// than GOMAXPROCS goroutines for each caller.
var helpers atomic.Int32

// Task is a parallel loop whose body is known when the program starts. Run
// allocates nothing once the pool is warm, since the arguments are copied into
// a pooled holder instead of a closure.
//
// The items of a loop are claimed in order by the caller and by goroutines
// that end soon after the loop; which goroutine gets which item is not determined,
// so an item must not depend on another. Results then do not depend on
// GOMAXPROCS.
type Task[A any] struct {
	body func(args *A, item int)
	pool sync.Pool
}

// NewTask returns a loop over body.
func NewTask[A any](body func(args *A, item int)) *Task[A] {
	t := &Task[A]{body: body}
	t.pool.New = func() any {
		r := &run[A]{task: t}
		r.left.Lock()
		r.inside.Store(closed)
		r.job = r.help
		r.helper = func() { serve(r.job) }
		return r
	}
	return t
}

// run is one execution of a task.
type run[A any] struct {
	task   *Task[A]
	args   A
	n      int64
	next   atomic.Int64
	job    func() bool
	helper func()
	begin  time.Time // of a loop with helpers
	cores  cores

	inside atomic.Int64 // helpers at work; closed is added when no other may begin
	left   sync.Mutex   // locked, until the last of them has left after that
	asleep atomic.Bool  // the caller waits for left

	failed  atomic.Bool // a helper has set failure, which the caller reads when all have left
	failure Failure
}

// Run calls the body for items 0 to n-1 and returns when all are done.
//
// If a body panics, the others finish their current items, no further item begins, and Run
// panics once in the goroutine of its caller with the same value, also if several bodies
// panic. When nobody recovers it, the program ends
// with the stack of the body's goroutine in its report. If a body calls
// [runtime.Goexit], as testing's FailNow does, Run does so too.
func (t *Task[A]) Run(n int, args A) {
	if n <= 0 {
		return
	}
	r := t.pool.Get().(*run[A])
	r.args, r.n = args, int64(n)
	r.next.Store(0)
	defer r.end()
	want := min(n, runtime.GOMAXPROCS(0)) - 1
	if want > 0 {
		r.begin = time.Now()
		r.cores.reset()
		r.cores.claim()
		r.inside.Store(0)
		want = r.recruit(want)
	}
	for r.one() {
		want = r.recruit(want)
	}
	r.close()
	if r.failed.Load() {
		r.failure.Raise()
	}
}

// recruit borrows up to want helpers for the items that are left, and returns how many more there should be. The caller
// asks again after each item: a helper that wakes too late for a short loop is in use until then, and a long loop that
// follows at once would have none.
func (r *run[A]) recruit(want int) int {
	for want > 0 && r.next.Load() < r.n && borrow() {
		summon(r.job, r.helper)
		want--
	}
	return want
}

// end waits until no helper is left, also while a panic of the caller's own items
// unwinds, and gives r back.
func (r *run[A]) end() {
	r.stop()
	r.close()
	var zero A
	r.args, r.failure = zero, Failure{} // keep no caller memory alive
	r.failed.Store(false)
	r.task.pool.Put(r)
}

// closed makes inside negative, however many helpers there are.
const closed = -1 << 32

// close lets no further helper begin, and waits for those at work, first with its core busy. A helper that
// wakes late finds a closed door, or a later loop that it can help as well.
func (r *run[A]) close() {
	if r.inside.Load() < 0 || r.inside.Add(closed) == closed {
		return
	}
	for begin := time.Now(); r.inside.Load() != closed; {
		if time.Since(begin) > linger {
			r.asleep.Store(true)
			break
		}
	}
	r.left.Lock()
	r.asleep.Store(false)
}

// enter reports whether a helper may take items.
func (r *run[A]) enter() bool {
	for {
		n := r.inside.Load()
		if n < 0 {
			return false
		}
		if r.inside.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// leave ends the work of a helper. It reports whether it did not wake the caller, who then continues on
// this core.
func (r *run[A]) leave() (others bool) {
	asleep := r.asleep.Load()
	if r.inside.Add(-1) != closed {
		return true
	}
	r.left.Unlock()
	return !asleep
}

// stop lets no further item begin.
func (r *run[A]) stop() { r.next.Store(r.n) }

// help is what a helper does in a loop. It reports whether nobody wants its core now.
func (r *run[A]) help() (free bool) {
	if !r.enter() {
		helpers.Add(-1)
		return true
	}
	done, alone := false, false
	defer func() { free = r.leave() && alone }()
	defer helpers.Add(-1)
	defer r.keep(&done)
	if alone = r.cores.claim(); alone {
		r.loop()
	} else {
		alone = r.loopAside()
	}
	done = true
	return
}

// keep is deferred by a helper. Unless the loop is done, it ends the loop of all and
// keeps the first failure for the caller.
func (r *run[A]) keep(done *bool) {
	if *done {
		return
	}
	f := failureOf(recover())
	r.stop()
	if r.failed.CompareAndSwap(false, true) {
		r.failure = f
	}
}

// worthMoving is how long a loop runs before a helper that shares its core with another goroutine of the loop
// moves, which takes about 40 µs: a loop that has taken longer will likely be worth it.
const worthMoving = 100 * time.Microsecond

// loopAside is loop for a helper that shares its core, until it is worth moving. It reports whether it moved.
func (r *run[A]) loopAside() bool {
	for time.Since(r.begin) < worthMoving {
		if !r.one() {
			return false
		}
	}
	r.cores.move()
	r.loop()
	return true
}

func (r *run[A]) loop() {
	for r.one() {
	}
}

// one does the next item, if there is one.
func (r *run[A]) one() bool {
	i := r.next.Add(1) - 1
	if i < r.n {
		r.task.body(&r.args, int(i))
	}
	return i < r.n
}

// borrow takes one helper if fewer than GOMAXPROCS-1 are in use.
func borrow() bool {
	for limit := int32(runtime.GOMAXPROCS(0) - 1); ; {
		n := helpers.Load()
		if n >= limit {
			return false
		}
		if helpers.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// Chunks returns how many chunks of size elements, at least 1, cover n, 0 for n below 1.
func Chunks(n, size int) int {
	if n <= 0 {
		return 0
	}
	return (n-1)/size + 1 // n+size-1 may overflow
}

// Chunk returns the bounds of chunk i of n elements in chunks of size, for i below
// Chunks(n, size).
func Chunk(n, size, i int) (lo, hi int) {
	lo = i * size
	return lo, lo + min(size, n-lo)
}
