package mpi

import (
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/accum"
	"github.com/snug-ml/snug/internal/ranks"
)

// Options are how long a [World] waits.
type Options struct {
	// Silence is how long the process of another rank may give no sign of life, in a job of several ranks, before the
	// job is ended; 0 means 20 seconds, and less than 5 are refused. The sign comes from a thread of its own, every other
	// second, whatever the rank computes.
	Silence time.Duration
	// Timeout is how long a call waits for the calls of the other ranks before the job is ended; 0 means an hour.
	Timeout time.Duration
}

// World is a rank of a job that a launcher of MPI has started. It has the methods of [accum.Reducer],
// [accum.Broadcaster], [accum.AllToAller] and [accum.SendReceiver], which are safe for concurrent use; but all ranks
// must make the same calls in the same order. The job ends, after a line on the standard error output, when a rank is
// gone. After another error every call is that error.
type World struct {
	rank, size int
	name       string

	calls   ranks.Calls
	jobs    chan ranks.Job
	results chan error

	aborted atomic.Bool
	exited  chan struct{} // closed when the engine has ended
}

var (
	_ accum.Reducer      = (*World)(nil)
	_ accum.Broadcaster  = (*World)(nil)
	_ accum.AllToAller   = (*World)(nil)
	_ accum.SendReceiver = (*World)(nil)
)

// opened is true once MPI has begun in this process, which it can do once.
var opened atomic.Bool

// Open joins the other ranks, and returns when all of them have called it. It finds the library as the package says.
// Errors: [snug.ErrConfig] for a process that no launcher has started (see [Launched]), unless [LibraryVariable] names a
// library, which then has one rank; for a second call, for options, and for a library of another MPI than the
// launcher's; [snug.ErrNotBuilt] without a library; and the library's.
func Open(o Options) (*World, error) {
	if o.Silence == 0 {
		o.Silence = 20 * time.Second
	}
	if o.Timeout == 0 {
		o.Timeout = time.Hour
	}
	if o.Silence < 5*time.Second || o.Timeout < 0 {
		return nil, fmt.Errorf("mpi: Silence is %s, want 5s or more, and Timeout %s, want 0 or more: %w", o.Silence, o.Timeout, snug.ErrConfig)
	}
	if !Launched() && os.Getenv(LibraryVariable) == "" {
		return nil, fmt.Errorf("mpi: no launcher of MPI has started this process: start it as mpiexec -n 4 PROGRAM: %w", snug.ErrConfig)
	}
	if opened.Swap(true) {
		return nil, fmt.Errorf("mpi: Open was called before: a process joins once: %w", snug.ErrConfig)
	}
	w := newWorld()
	go w.serve(o)
	if err := <-w.results; err != nil {
		return nil, fmt.Errorf("mpi: %w", err)
	}
	w.calls.Rank = w.rank
	return w, nil
}

func newWorld() *World {
	w := &World{jobs: make(chan ranks.Job), results: make(chan error), exited: make(chan struct{})}
	w.calls = ranks.Calls{Name: "mpi", Submit: func(j ranks.Job) error {
		w.jobs <- j
		return <-w.results
	}}
	return w
}

// serve makes all calls of the library, on one thread, until Close.
func (w *World) serve(o Options) {
	runtime.LockOSThread() // and not unlocked: the thread ends with the goroutine
	defer close(w.exited)
	e, err := newEngine(w, o)
	if err != nil {
		w.results <- err
		return
	}
	w.rank, w.size, w.name = e.Rank, e.Size, e.lib.path
	w.results <- nil
	beat := time.NewTicker(time.Second)
	defer beat.Stop()
	for {
		select {
		case j := <-w.jobs:
			err := e.do(j)
			w.results <- err
			if j.Op == ranks.Close && err == nil {
				return
			}
		case <-beat.C:
			e.live()
		}
	}
}

// of returns w, or for nil a World that is not from Open.
func (w *World) of() *World {
	if w == nil {
		return &World{}
	}
	return w
}

// Rank returns the number of this rank, from 0.
func (w *World) Rank() int { return w.of().rank }

// Size returns the number of ranks.
func (w *World) Size() int { return w.of().size }

// Library returns the file of the library.
func (w *World) Library() string { return w.of().name }

// run makes a call.
func (w *World) run(j ranks.Job) error {
	if w == nil || w.calls.Submit == nil {
		return ranks.NotOpen("mpi", j.Op)
	}
	return w.calls.Run(j)
}

// Close leaves the job, which it can when all ranks do: it waits for them. A second call does nothing. After an error,
// which says that the ranks do not agree, call Abort. The process must not end before without an error status.
func (w *World) Close() error {
	if w == nil {
		return nil
	}
	j := ranks.Job{Call: ranks.Call{Op: ranks.Close}}
	if w.calls.Submit == nil {
		return w.run(j)
	}
	w.calls.Lock()
	defer w.calls.Unlock()
	if w.calls.Closed {
		return nil
	}
	err := w.calls.Locked(j)
	w.calls.Closed = err == nil
	return err
}

// Abort writes the rank and err to the standard error output, in one line, ends the processes of all ranks, and does
// not return. Any goroutine may call it, during other calls too.
func (w *World) Abort(err error) {
	w = w.of()
	if !w.aborted.Swap(true) {
		ranks.PrintAbort(w.rank, w.size, err)
	}
	select {
	case <-w.exited: // nil and open for a World that is not from Open
	case <-time.After(5 * time.Second): // in which the engine ends the job
	}
	os.Exit(1)
}

// Sum implements [accum.Reducer].
func (w *World) Sum(x []float64) error { return w.run(ranks.SumOf(x)) }

// AllReduce implements [accum.Reducer].
func (w *World) AllReduce(v snug.View) error { return w.run(ranks.ReduceOf(ranks.AllReduce, v)) }

// ReduceScatter implements [accum.Reducer].
func (w *World) ReduceScatter(v snug.View) error {
	return w.run(ranks.ReduceOf(ranks.ReduceScatter, v))
}

// AllGather implements [accum.Reducer].
func (w *World) AllGather(v snug.View) error { return w.run(ranks.ReduceOf(ranks.AllGather, v)) }

// Broadcast implements [accum.Broadcaster].
func (w *World) Broadcast(root int, v snug.View) error { return w.run(ranks.BroadcastOf(root, v)) }

// AllToAll implements [accum.AllToAller].
func (w *World) AllToAll(dst, src snug.View) error { return w.run(ranks.AllToAllOf(dst, src)) }

// SendReceive implements [accum.SendReceiver].
func (w *World) SendReceive(dst snug.View, from int, src snug.View, to int) error {
	return w.run(ranks.SendReceiveOf(dst, from, src, to))
}
