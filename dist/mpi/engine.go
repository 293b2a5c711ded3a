package mpi

import (
	"fmt"
	"runtime"
	"time"
	"unsafe"

	"github.com/snug-ml/snug"
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

// engine is what serves a World. Its methods run on the thread of MPI.
type engine struct {
	w          *World
	lib        *library
	rank, size int
	o          Options

	comm uintptr   // of calls
	open *requests // of the call

	wanted []ranks.Call // of all ranks; wanted[rank] is this one's
	own    ranks.Call

	stage    [3][]byte // see stageFor
	sum, add []float32
	sums     []float64
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
	if e.rank, e.size, err = lib.place(); err != nil {
		return nil, err
	}
	if started := launchedSize(); started > 0 && started != e.size {
		return nil, fmt.Errorf("the launcher has started %d ranks, and for %s there are %d: it is of another MPI: %w", started, lib.path, e.size, snug.ErrConfig)
	}
	e.wanted = make([]ranks.Call, e.size)
	if e.comm, err = lib.communicator(); err != nil {
		return nil, err
	}
	return e, e.startPulse()
}

// do makes a call: the ranks compare what they want, and then data moves.
func (e *engine) do(c *call) error {
	defer e.pinned.Unpin()
	if err := e.agree(c.Call); err != nil {
		return err
	}
	switch c.Op {
	case ranks.Sum:
		return e.sumAll(c.x)
	case ranks.AllReduce:
		return e.reduce(c.v, true, true)
	case ranks.ReduceScatter:
		return e.reduce(c.v, true, false)
	case ranks.AllGather:
		return e.reduce(c.v, false, true)
	case ranks.Broadcast:
		return e.broadcast(c.v, int(c.Peer))
	case ranks.AllToAll:
		return e.allToAll(c.dst, c.v)
	case ranks.SendReceive:
		return e.sendReceive(c.dst, int(c.From), c.v, int(c.Peer))
	}
	return e.leave()
}

// agree waits for the calls of all ranks and compares them.
func (e *engine) agree(c ranks.Call) error {
	e.own = c
	if err := e.lib.gather(e.open, e.comm, bytesOf(&e.own, 1), bytesOf(unsafe.SliceData(e.wanted), e.size)); err != nil {
		return err
	}
	if err := e.wait(true); err != nil {
		return err
	}
	return ranks.Check(e.wanted)
}

// bytesOf returns the memory of n values.
func bytesOf[T any](p *T, n int) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(p)), n*int(unsafe.Sizeof(*p)))
}

// wait waits until the open requests have ended. With patience, it lets other goroutines and processes compute: ranks
// may come late. Without, all ranks are there and data moves only while MPI is called.
func (e *engine) wait(patience bool) error {
	var began time.Time
	for polls := 0; ; polls++ {
		if done, err := e.lib.done(e.open); done || err != nil {
			return err
		}
		if e.w.aborted.Load() {
			e.lib.end()
		}
		spins := 2000
		if patience {
			spins = 50
		}
		if polls < spins {
			if polls%16 == 15 {
				runtime.Gosched()
			}
			continue
		}
		now := time.Now()
		if began.IsZero() {
			began = now
		}
		e.live()
		if waited := now.Sub(began); waited > e.o.Timeout {
			e.fail(fmt.Errorf("other ranks made no call for %s", e.o.Timeout))
		}
		time.Sleep(min(100*time.Microsecond, 5*time.Microsecond+now.Sub(began)/50))
	}
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

// sumAll replaces x by the sums over all ranks.
func (e *engine) sumAll(x []float64) error {
	if len(x) == 0 {
		return nil
	}
	n := len(x) * e.size
	if cap(e.sums) < n {
		e.sums = make([]float64, n)
	}
	all := e.sums[:n]
	e.pinned.Pin(unsafe.SliceData(x))
	if err := e.lib.gather(e.open, e.comm, bytesOf(unsafe.SliceData(x), len(x)), bytesOf(unsafe.SliceData(all), n)); err != nil {
		return err
	}
	if err := e.wait(false); err != nil {
		return err
	}
	for i := range x {
		sum := 0.0
		for rank := range e.size {
			sum += all[rank*len(x)+i]
		}
		x[i] = sum
	}
	return nil
}

// leave ends MPI, after all ranks have said so.
func (e *engine) leave() error {
	if err := e.stopPulse(); err != nil {
		return err
	}
	return e.lib.stop()
}

// others yields the other ranks, beginning with the next, so that not all ranks send to the same.
func (e *engine) others(yield func(peer int) bool) {
	for i := 1; i < e.size; i++ {
		if !yield((e.rank + i) % e.size) {
			return
		}
	}
}

// stageVector is the stage of a vector on a device; 0 and 1 are those of what arrives.
const stageVector = 2

// stageFor returns a stage, which is allocated when it is first used.
func (e *engine) stageFor(which int) []byte {
	if e.stage[which] == nil {
		e.stage[which] = make([]byte, staged+16*e.size) // whole elements of every rank's share
	}
	return e.stage[which]
}
