package mpi

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/accum"
	"github.com/snug-ml/snug/internal/device"
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

	mu      sync.Mutex // of a call
	calls   chan call
	results chan error
	err     error // the first one, which stays
	closed  bool

	aborted atomic.Bool
	exited  chan struct{} // closed when the engine has ended
}

var (
	_ accum.Reducer      = (*World)(nil)
	_ accum.Broadcaster  = (*World)(nil)
	_ accum.AllToAller   = (*World)(nil)
	_ accum.SendReceiver = (*World)(nil)
)

// call is what an engine does.
type call struct {
	ranks.Call
	x      []float64
	v, dst snug.View
}

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
	w := &World{calls: make(chan call), results: make(chan error), exited: make(chan struct{})}
	go w.serve(o)
	if err := <-w.results; err != nil {
		return nil, fmt.Errorf("mpi: %w", err)
	}
	return w, nil
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
	w.rank, w.size, w.name = e.rank, e.size, e.lib.path
	w.results <- nil
	beat := time.NewTicker(time.Second)
	defer beat.Stop()
	for {
		select {
		case c := <-w.calls:
			err := e.do(&c)
			w.results <- err
			if c.Op == ranks.Close && err == nil {
				return
			}
		case <-beat.C:
			e.live()
		}
	}
}

// Rank returns the number of this rank, from 0.
func (w *World) Rank() int { return w.rank }

// Size returns the number of ranks.
func (w *World) Size() int { return w.size }

// Library returns the file of the library.
func (w *World) Library() string { return w.name }

// run makes a call.
func (w *World) run(c call) error {
	if w == nil || w.calls == nil {
		return fmt.Errorf("mpi: %s: the World is not from Open: %w", c.Op, snug.ErrConfig)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed && c.Op == ranks.Close {
		return nil
	}
	if w.closed {
		return fmt.Errorf("mpi: %s: the World is closed: %w", c.Op, snug.ErrConfig)
	}
	if w.err != nil {
		return w.err
	}
	w.calls <- c
	if err := <-w.results; err != nil {
		w.err = fmt.Errorf("mpi: rank %d: %w", w.rank, err)
	}
	w.closed = w.err == nil && c.Op == ranks.Close
	return w.err
}

// Close leaves the job, which it can when all ranks do: it waits for them. A second call does nothing. After an error,
// which says that the ranks do not agree, call Abort. The process must not end before without an error status.
func (w *World) Close() error {
	if w == nil {
		return nil
	}
	return w.run(call{Call: ranks.Call{Op: ranks.Close}})
}

// Abort writes the rank and err to the standard error output, in one line, ends the processes of all ranks, and does
// not return. Any goroutine may call it, during other calls too.
func (w *World) Abort(err error) {
	if !w.aborted.Swap(true) {
		if err == nil {
			err = errors.New("aborted")
		}
		line := strings.Join(strings.FieldsFunc(err.Error(), func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
		fmt.Fprintf(os.Stderr, "rank %d of %d: %s\n", w.rank, w.size, line)
	}
	select {
	case <-w.exited: // nil and open for a World that is not from Open
	case <-time.After(5 * time.Second): // in which the engine ends the job
	}
	os.Exit(1)
}

// Sum implements [accum.Reducer].
func (w *World) Sum(x []float64) error {
	return w.run(call{Call: ranks.Call{Op: ranks.Sum, Len: int64(len(x))}, x: x})
}

// AllReduce implements [accum.Reducer].
func (w *World) AllReduce(v snug.View) error {
	return w.run(call{Call: ranks.Vector(ranks.AllReduce, v), v: v})
}

// ReduceScatter implements [accum.Reducer].
func (w *World) ReduceScatter(v snug.View) error {
	return w.run(call{Call: ranks.Vector(ranks.ReduceScatter, v), v: v})
}

// AllGather implements [accum.Reducer].
func (w *World) AllGather(v snug.View) error {
	return w.run(call{Call: ranks.Vector(ranks.AllGather, v), v: v})
}

// Broadcast implements [accum.Broadcaster].
func (w *World) Broadcast(root int, v snug.View) error {
	c := call{Call: ranks.Vector(ranks.Broadcast, v), v: v}
	c.Peer = int64(root)
	return w.run(c)
}

// AllToAll implements [accum.AllToAller].
func (w *World) AllToAll(dst, src snug.View) error {
	return w.run(call{Call: ranks.Pair(ranks.AllToAll, dst, src), v: src, dst: dst})
}

// SendReceive implements [accum.SendReceiver].
func (w *World) SendReceive(dst snug.View, from int, src snug.View, to int) error {
	c := call{Call: ranks.Pair(ranks.SendReceive, dst, src), v: src, dst: dst}
	c.From, c.Peer = int64(from), int64(to)
	return w.run(c)
}

// hostBytes returns the bytes of a view that Go can address, or nil.
func hostBytes(v snug.View) []byte {
	if !v.Device().IsCPU() {
		return nil
	}
	return device.Mem(&v).Bytes()
}
