package mpi

import (
	"fmt"
	"runtime"
	"time"
	"unsafe"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/half"
	"github.com/snug-ml/snug/internal/ranks"
)

const (
	tagData   = 1 // of parts before sums, and of what moves as it is
	tagResult = 2 // of sums
	tagBeat   = 3 // of signs of life
)

// staged is the bytes of each of the two stages through which parts arrive while others are added, and of a third for a
// vector on a device. All ranks have the same. Tests have less.
var staged = 4 << 20

// engine makes the calls of a World, and is their transport. Its methods run on the thread of MPI.
type engine struct {
	ranks.Engine
	w   *World
	lib *library
	o   Options

	comm     uintptr   // of calls
	open     *requests // of the call
	sum, add []float32
	parts    []snug.View // that are added
	pinned   runtime.Pinner

	pulse pulse
}

func newEngine(w *World, o Options) (*engine, error) {
	lib, err := openLibrary()
	if err != nil {
		return nil, err
	}
	e := &engine{w: w, lib: lib, o: o, open: &requests{}, sum: make([]float32, half.Chunk), add: make([]float32, half.Chunk)}
	if err := lib.start(); err != nil {
		return nil, fmt.Errorf("%s: %w", lib.path, err)
	}
	if e.Rank, e.Size, err = lib.place(); err != nil {
		return nil, err
	}
	if started := launchedSize(); started > 0 && started != e.Size {
		return nil, fmt.Errorf("the launcher has started %d ranks, and for %s there are %d: it is of another MPI: %w", started, lib.path, e.Size, snug.ErrConfig)
	}
	e.Staged, e.Ahead = staged, true
	e.Start(e)
	if e.comm, err = lib.communicator(); err != nil {
		return nil, err
	}
	return e, e.startPulse()
}

// do makes a call.
func (e *engine) do(j ranks.Job) error {
	defer e.pinned.Unpin()
	return e.Do(j)
}

// Take implements [ranks.Transport]: MPI reads and writes the vectors while Go's code runs.
func (e *engine) Take(j *ranks.Job) error {
	if len(j.X) > 0 {
		e.pinned.Pin(unsafe.SliceData(j.X))
	}
	for _, v := range [...]*snug.View{&j.V, &j.Dst} {
		if b := device.Mem(v).Bytes(); len(b) > 0 && v.Device().IsCPU() {
			e.pinned.Pin(unsafe.SliceData(b))
		}
	}
	return nil
}

// Direct implements [ranks.Transport].
func (e *engine) Direct(v snug.View) bool { return v.Device().IsCPU() }

// Alloc implements [ranks.Transport].
func (e *engine) Alloc(size int) (driver.Mem, error) {
	v := snug.SliceView(make([]byte, size))
	return *device.Mem(&v), nil
}

// View implements [ranks.Transport].
func (e *engine) View(m driver.Mem, dt snug.DType, n int) snug.View {
	return device.View(snug.CPU(), m, dt, n)
}

// Gather implements [ranks.Transport].
func (e *engine) Gather(own, all []byte, calls bool) error {
	if err := e.lib.gather(e.open, e.comm, own, all); err != nil {
		return err
	}
	return e.wait(calls)
}

// Move implements [ranks.Transport].
func (e *engine) Move(list []ranks.Transfer, what ranks.Moved) error {
	tag := tagData
	if what == ranks.Results {
		tag = tagResult
	}
	for _, sends := range []bool{false, true} { // what arrives has a place
		for _, t := range list {
			if t.Sends != sends || t.Mem.Size == 0 {
				continue
			}
			begin := e.lib.receive
			if sends {
				begin = e.lib.send
			}
			if err := begin(e.open, e.comm, t.Mem.Bytes(), t.Peer, tag); err != nil {
				return err
			}
		}
	}
	return nil
}

// Spread implements [ranks.Transport].
func (e *engine) Spread(m driver.Mem, root int) error {
	return e.lib.broadcast(e.open, e.comm, m.Bytes(), root)
}

// Settle implements [ranks.Transport].
func (e *engine) Settle() error { return e.wait(false) }

// Wait implements [ranks.Transport].
func (e *engine) Wait() error { return e.wait(false) }

// Failed implements [ranks.Transport].
func (e *engine) Failed(_ ranks.Op, err error) error { return err }

// Add implements [ranks.Transport].
func (e *engine) Add(r *ranks.Reduction) error {
	e.parts = e.parts[:0]
	for rank := range e.Size {
		e.parts = append(e.parts, r.Part(rank))
	}
	out := e.parts[e.Rank]
	for lo := 0; lo < out.Len(); lo += half.Chunk {
		hi := min(lo+half.Chunk, out.Len())
		sum, add := e.sum[:hi-lo], e.add[:hi-lo]
		half.Load(sum, e.parts[0], lo)
		for _, part := range e.parts[1:] {
			half.Load(add, part, lo)
			for i, a := range add {
				sum[i] += a
			}
		}
		half.Store(out, lo, sum)
	}
	return nil
}

// Leave implements [ranks.Transport]: it ends MPI, after all ranks have said so.
func (e *engine) Leave() error {
	if err := e.stopPulse(); err != nil {
		return err
	}
	return e.lib.stop()
}

// wait waits until the open requests have ended. With patience, it lets other goroutines and processes compute: ranks
// may come late. Without, all ranks are there and data moves only while MPI is called.
func (e *engine) wait(patience bool) error {
	inARow := 2000
	if patience {
		inARow = 50
	}
	return ranks.Await(inARow, func(int) (bool, error) {
		done, err := e.lib.done(e.open)
		if !done && err == nil && e.w.aborted.Load() {
			e.lib.end()
		}
		return done, err
	}, func(waited time.Duration) {
		e.live()
		if waited > e.o.Timeout {
			e.fail(fmt.Errorf("other ranks made no call for %s", e.o.Timeout))
		}
	})
}

// fail ends the job.
func (e *engine) fail(err error) {
	go e.w.Abort(err) // which ends the process after a while, should the library not return
	for !e.w.aborted.Load() {
		time.Sleep(time.Millisecond)
	}
	time.Sleep(10 * time.Millisecond) // in which the line is written
	e.lib.end()
}
