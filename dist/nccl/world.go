package nccl

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/accum"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/ranks"
)

// Options say which rank a [World] is, and how it finds the others.
type Options struct {
	// Device is the device of this rank, such as "cuda:0" or what snug.OpenOn gives. It stays open until Close. Each rank
	// has a device and a process of its own.
	Device *snug.Device
	// Rank is the number of this rank, from 0, and Size the number of ranks. A Size of 0 means those of Exchange, when
	// that is an accum.Reducer, as a World of dist/mpi is.
	Rank, Size int
	// Exchange sends the unique id of rank 0 to the others. It is not used after Open.
	Exchange accum.Broadcaster
	// File is where rank 0 writes the unique id, when Exchange is nil: a path that all ranks see. Rank 0 replaces the file
	// as a whole, and removes it when all ranks have joined, if it can. Runs at the same time have files of their own: of
	// one that is replaced before all ranks have read it, the others wait for Timeout.
	File string
	// Run is the name of this run, which the file holds. It must differ from start to start: take a job's number and the
	// number of its attempt, for example. A file of another run, or one that was written more than Timeout ago, is not
	// taken.
	Run string
	// Timeout is how long Open waits for the other ranks, and how long a call waits for their calls and data, before the
	// communicator is aborted; 0 means an hour. It includes the work that was queued on the device before.
	Timeout time.Duration
	// Library is the file of the library. Empty means [LibraryVariable], or else the first that the system finds.
	Library string
}

// World is a rank. It has the methods of [accum.Reducer], [accum.Broadcaster], [accum.AllToAller] and
// [accum.SendReceiver], which are safe for concurrent use; but all ranks must make the same calls in the same order. A call
// returns when its result is in memory. After an error every call is that error. It is an [accum.Overlapper] too, whose
// methods concern this rank alone.
//
// Errors wrap [snug.ErrConfig], [snug.ErrShape] or [snug.ErrDType] when the ranks do not agree, and [snug.ErrDevice] when
// the library or the device fails; these say the library's text. The error of a call that has waited for
// Options.Timeout wraps [context.DeadlineExceeded].
type World struct {
	rank, size int
	timeout    time.Duration
	name       string
	engine     *engine
	exit       func(code int)

	calls   ranks.Calls
	jobs    chan ranks.Job
	results chan error
	exited  chan struct{} // closed when the goroutine that makes the calls has ended
	timer   *time.Timer
}

var (
	_ accum.Reducer      = (*World)(nil)
	_ accum.Broadcaster  = (*World)(nil)
	_ accum.AllToAller   = (*World)(nil)
	_ accum.SendReceiver = (*World)(nil)
	_ accum.Overlapper   = (*World)(nil)
)

// Open joins the other ranks, and returns when all of them have called it. Errors: [snug.ErrNotBuilt] without the build
// tag cuda, without a library, and for one before 2.7; [snug.ErrConfig] for options; [snug.ErrDevice] for a device that has
// no stream, such as the CPU, and for what the library refuses, such as two ranks on one device; and
// [context.DeadlineExceeded] when the others do not come. A program ends then: the library may still wait in a thread.
func Open(o Options) (*World, error) {
	if err := built(); err != nil {
		return nil, fmt.Errorf("nccl: %w", err)
	}
	return open(o, openLibrary)
}

// open is Open with a way to open the library.
func open(o Options, load func(name, kind string) (*library, error)) (*World, error) {
	if err := o.complete(); err != nil {
		return nil, fmt.Errorf("nccl: %w", err)
	}
	w, err := o.join(load)
	if err != nil {
		return nil, fmt.Errorf("nccl: rank %d: %w", o.Rank, err)
	}
	return w, nil
}

// complete checks the options and sets what follows from others.
func (o *Options) complete() error {
	if o.Timeout == 0 {
		o.Timeout = time.Hour
	}
	hosts, known := o.Exchange.(accum.Reducer)
	if known && o.Size == 0 {
		o.Rank, o.Size = hosts.Rank(), hosts.Size()
	}
	switch {
	case known && (o.Rank != hosts.Rank() || o.Size != hosts.Size()):
		return fmt.Errorf("rank %d of %d, but of the Exchange this is rank %d of %d: %w", o.Rank, o.Size, hosts.Rank(), hosts.Size(), snug.ErrConfig)
	case o.Timeout < 0:
		return fmt.Errorf("a Timeout of %s, want 0 or more: %w", o.Timeout, snug.ErrConfig)
	case o.Size < 1 || o.Rank < 0 || o.Rank >= o.Size:
		return fmt.Errorf("rank %d of %d, want a rank from 0 to Size-1: %w", o.Rank, o.Size, snug.ErrConfig)
	case o.Size > 1 && (o.Exchange == nil) == (o.File == ""):
		return fmt.Errorf("%d ranks need either an Exchange or a File for the unique id: %w", o.Size, snug.ErrConfig)
	case o.Size > 1 && o.File != "" && o.Run == "":
		return fmt.Errorf("a File needs the name of the Run, which tells it from files of other runs: %w", snug.ErrConfig)
	}
	return nil
}

// join opens the library, exchanges the unique id and makes the communicator.
func (o *Options) join(load func(name, kind string) (*library, error)) (*World, error) {
	kind, _, _ := strings.Cut(o.Device.Name(), ":")
	var lib *library
	var e *engine
	_, err := device.Streamer(o.Device)
	if err == nil {
		lib, err = load(o.Library, kind)
	}
	if err == nil {
		e, err = newEngine(o, lib)
	}
	id, err := o.exchange(lib, err)
	if err != nil {
		return nil, errors.Join(err, e.release())
	}
	w := &World{
		rank: o.Rank, size: o.Size, timeout: o.Timeout, name: lib.path + ", NCCL " + lib.version(), engine: e, exit: os.Exit,
		jobs: make(chan ranks.Job), results: make(chan error, 1), exited: make(chan struct{}), timer: time.NewTimer(o.Timeout),
	}
	w.calls = ranks.Calls{Name: "nccl", Rank: o.Rank, Submit: w.submit}
	go w.serve(id)
	select {
	case err = <-w.results:
	case <-w.timer.C:
		return nil, late(fmt.Sprintf("waited %s for the other ranks to join", o.Timeout))
	}
	w.timer.Stop()
	if err != nil {
		return nil, errors.Join(err, e.release())
	}
	o.forget(&id)
	return w, nil
}

// late returns the error of what has taken too long.
func late(what string) error { return fmt.Errorf("%s: %w", what, context.DeadlineExceeded) }

// serve makes the communicator and all calls of it, until Close.
func (w *World) serve(id uniqueID) {
	runtime.LockOSThread() // and not unlocked: the thread, which may have an open group, ends with the goroutine
	defer close(w.exited)
	err := w.engine.join(id)
	w.results <- err
	if err != nil {
		return
	}
	for j := range w.jobs {
		w.results <- w.engine.Do(j)
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

// Library returns the file of the library and its version.
func (w *World) Library() string { return w.of().name }

// run makes a call.
func (w *World) run(j ranks.Job) error {
	if w == nil || w.calls.Submit == nil {
		return ranks.NotOpen("nccl", j.Op)
	}
	return w.calls.Run(j)
}

// submit has the engine make a call, and waits for it.
func (w *World) submit(j ranks.Job) (err error) {
	w.timer.Reset(w.timeout)
	defer w.timer.Stop()
	w.jobs <- j
	select {
	case err = <-w.results:
	case <-w.timer.C:
		err = w.expire(j.Op)
	}
	return err
}

// grace is how long an aborted call may take to return.
const grace = 5 * time.Second

// expire aborts the communicator, because a call takes too long, and returns its error.
func (w *World) expire(op ranks.Op) error {
	err := late(fmt.Sprintf("%s: waited %s for the %s of the other ranks", op, w.timeout, w.engine.Awaited()))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		w.engine.abort()
		<-w.results
	}()
	select {
	case <-ended:
	case <-time.After(grace): // the library does not return
	}
	return err
}

// Close leaves the others, which it can when all ranks do: it waits for them. After an error, or when there is one, it
// aborts the communicator, frees the memory and returns the error. A second call does nothing.
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
	w.calls.Closed = true // before another goroutine calls: the other ranks make no call after this one
	close(w.jobs)
	patience := w.timeout
	if err != nil {
		patience = grace
	}
	ended := make(chan error, 1)
	go func() {
		if err != nil {
			w.engine.abort()
		}
		<-w.exited
		ended <- w.engine.finish()
	}()
	select {
	case last := <-ended:
		if err == nil && last != nil {
			return fmt.Errorf("nccl: rank %d: Close: %w", w.rank, last)
		}
		return err
	case <-time.After(patience): // the library does not return, and may use the memory
		if err == nil {
			return late(fmt.Sprintf("nccl: rank %d: Close: waited %s for the library", w.rank, patience))
		}
		return err
	}
}

// Abort writes the rank and err to the standard error output, in one line, aborts the communicator, ends this process, and
// does not return. Any goroutine may call it, during other calls too. The other ranks get an error, at the latest after
// their Options.Timeout; a launcher that ends all processes when one fails is faster.
func (w *World) Abort(err error) {
	w = w.of()
	ranks.PrintAbort(w.rank, w.size, err)
	if w.engine != nil {
		done := make(chan struct{})
		go func() {
			defer close(done)
			w.engine.abort()
		}()
		select {
		case <-done:
		case <-time.After(grace):
		}
	}
	if w.exit != nil {
		w.exit(1)
	}
	os.Exit(1)
}

// Sum implements [accum.Reducer]. x passes through memory of the device.
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
