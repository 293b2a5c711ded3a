package cpu

import (
	"runtime"
	"sync"
	"sync/atomic"
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
// that end with the loop; which goroutine gets which item is not determined,
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
		r.helper = r.help
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
	wg     sync.WaitGroup
	helper func()
}

// Run calls the body for items 0 to n-1 and returns when all are done.
func (t *Task[A]) Run(n int, args A) {
	if n <= 0 {
		return
	}
	r := t.pool.Get().(*run[A])
	r.args, r.n = args, int64(n)
	r.next.Store(0)
	for want := min(n, runtime.GOMAXPROCS(0)) - 1; want > 0 && borrow(); want-- {
		r.wg.Add(1)
		go r.helper()
	}
	r.loop()
	r.wg.Wait()
	var zero A
	r.args = zero // keep no caller memory alive
	t.pool.Put(r)
}

func (r *run[A]) help() {
	defer r.wg.Done()
	defer helpers.Add(-1)
	r.loop()
}

func (r *run[A]) loop() {
	for i := r.next.Add(1) - 1; i < r.n; i = r.next.Add(1) - 1 {
		r.task.body(&r.args, int(i))
	}
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

// Chunks returns how many chunks of size elements cover n.
func Chunks(n, size int) int { return (n + size - 1) / size }

// Chunk returns the bounds of chunk i of n elements in chunks of size.
func Chunk(n, size, i int) (lo, hi int) { return i * size, min((i+1)*size, n) }
