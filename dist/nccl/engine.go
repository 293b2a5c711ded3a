package nccl

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/ranks"
)

// staged is the bytes of a stage: the parts that have arrived and wait to be added, the sums of bfloat16, and a vector that
// does not lie on the device. All ranks have the same.
const staged = 32 << 20

// engine makes the calls of a World, and is their transport. One goroutine makes the calls; abort, Awaited, mark and turn
// are for any.
type engine struct {
	ranks.Engine
	lib *library

	home   *snug.Device    // of the vectors
	side   *snug.Device    // the same device with the queue of communication
	stream driver.Streamer // of side
	queue  driver.Streamer // of home
	marks  marks

	comm   uintptr
	inside atomic.Bool // the goroutine of the calls is in the library
	stop   atomic.Bool // the communicator is to be aborted
	gone   atomic.Bool // it is being aborted
	mu     sync.Mutex  // of its end
	ended  bool        // it was aborted or destroyed
	async  *result     // that C writes

	notes driver.Mem // on the device: the calls of all ranks
	wide  driver.Mem // on the device: sums of bfloat16, in float32
}

// newEngine opens the queue of communication.
func newEngine(o *Options, lib *library) (*engine, error) {
	home, err := device.Streamer(o.Device)
	if err != nil {
		return nil, err
	}
	e := &engine{lib: lib, home: o.Device, queue: home, async: new(result)}
	e.Rank, e.Size, e.Staged = o.Rank, o.Size, staged
	e.Start(e)
	if e.side, err = snug.Open(o.Device.Name()); err != nil {
		return nil, err
	}
	if e.stream, err = device.Streamer(e.side); err == nil {
		e.notes, err = e.stream.Alloc(e.Size * ranks.CallBytes)
	}
	if err == nil {
		err = e.loadKernels()
	}
	if err != nil {
		return nil, errors.Join(err, e.release())
	}
	return e, nil
}

// join makes the communicator, which waits for the other ranks.
func (e *engine) join(id uniqueID) error {
	if _, err := e.stream.Enter(); err != nil {
		return err
	}
	defer e.stream.Leave()
	comm, call := new(uintptr), "ncclCommInitRank"
	var r result
	if e.lib.initScalable != nil {
		const defaults = 0
		call = "ncclCommInitRankScalable"
		r = e.lib.initScalable(comm, int32(e.Size), int32(e.Rank), 1, &id, defaults)
	} else {
		r = e.lib.initRank(comm, int32(e.Size), id, int32(e.Rank))
	}
	e.comm = *comm
	return e.check(call, r)
}

// Failed implements [ranks.Transport]: the communicator is aborted, so that the other ranks do not wait.
func (e *engine) Failed(op ranks.Op, err error) error {
	e.giveUp()
	return fmt.Errorf("%s: %w", op, err)
}

// giveUp aborts the communicator and waits until nothing moves any more, because the caller may free the vectors of a call
// that has failed. It does not wait longer than the grace for a library or a device that does not end.
func (e *engine) giveUp() {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		e.abort()
		for began := time.Now(); time.Since(began) < grace; time.Sleep(100 * time.Microsecond) {
			if idle, err := e.stream.Idle(); idle || err != nil {
				return
			}
		}
	}()
	select {
	case <-ended:
	case <-time.After(grace):
	}
}

// enter begins calls of the library, and returns the stream for what they queue.
func (e *engine) enter() (stream uintptr, err error) {
	e.inside.Store(true)
	err = errAborted
	if !e.stop.Load() {
		stream, err = e.stream.Enter()
	}
	if err != nil {
		e.inside.Store(false)
	}
	return stream, err
}

func (e *engine) leave() {
	e.stream.Leave()
	e.inside.Store(false)
}

var errAborted = errors.New("the communicator was aborted")

// Wait implements [ranks.Transport]: it waits until all that was queued is done. It sleeps meanwhile.
func (e *engine) Wait() error {
	return ranks.Await(200, func(polls int) (bool, error) {
		if e.stop.Load() {
			return false, errAborted
		}
		idle, err := e.stream.Idle()
		if err == nil && !idle && polls%64 == 63 {
			err = e.asynchronous()
		}
		if err == nil && idle && e.stop.Load() { // by the abort, perhaps
			err = errAborted
		}
		return idle, err
	}, nil)
}

// asynchronous returns the communicator's asynchronous error, for example that a rank is gone.
func (e *engine) asynchronous() error {
	r, err := e.state()
	if err == nil && r != inProgress {
		err = e.lib.check("asynchronous error", r)
	}
	return err
}

func (e *engine) state() (result, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ended {
		return success, errAborted
	}
	*e.async = success
	r := e.lib.asyncError(e.comm, e.async)
	return *e.async, e.lib.check("ncclCommGetAsyncError", r)
}

// check returns the error of a function of the library. For a communicator that does not block it waits for the result.
func (e *engine) check(call string, r result) error {
	for r == inProgress {
		if e.stop.Load() {
			return errAborted
		}
		time.Sleep(20 * time.Microsecond)
		var err error
		if r, err = e.state(); err != nil {
			return err
		}
	}
	return e.lib.check(call, r)
}

// abort ends the communicator and what it does. Any goroutine may call it. It lets a call of the library end that is under
// way, but not one that takes longer than a second: that one waits for other ranks, and ends with the communicator.
func (e *engine) abort() {
	e.stop.Store(true)
	for ms := 0; e.inside.Load() && ms < 1000; ms++ {
		time.Sleep(time.Millisecond)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ended || e.comm == 0 {
		return
	}
	e.ended = true
	if _, err := e.stream.Enter(); err != nil {
		return // with the device
	}
	defer e.stream.Leave()
	e.gone.Store(true)
	_ = e.lib.abort(e.comm) // the error that led here is the one to return
}

// finish destroys the communicator, unless it was aborted, and frees all memory.
func (e *engine) finish() error {
	return errors.Join(e.destroy(), e.release())
}

func (e *engine) destroy() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ended || e.comm == 0 {
		return nil
	}
	e.ended = true
	if _, err := e.stream.Enter(); err != nil {
		return err
	}
	defer e.stream.Leave()
	r := e.lib.destroy(e.comm)
	if r == inProgress {
		r = success
	}
	return e.lib.check("ncclCommDestroy", r)
}

// release closes the queue of communication and so frees its memory.
func (e *engine) release() error {
	if e == nil || e.side == nil {
		return nil
	}
	return e.side.Close()
}
