package nccl

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/ranks"
)

// staged is the bytes of a stage: the parts that have arrived and wait to be added, the sums of bfloat16, and a vector that
// does not lie on the device. All ranks have the same.
const staged = 32 << 20

// engine is what serves a World. One goroutine makes the calls; abort, awaited, mark and turn are for any.
type engine struct {
	lib        *library
	rank, size int
	staged     int // bytes; tests have fewer

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
	moves  atomic.Bool // the ranks have agreed, and data moves

	own    ranks.Call
	wanted []ranks.Call // of all ranks
	notes  driver.Mem   // on the device: their calls
	stage  [3]driver.Mem
	list   []transfer
	sums   []float64
}

// newEngine opens the queue of communication.
func newEngine(o *Options, lib *library) (*engine, error) {
	home, err := device.Streamer(o.Device)
	if err != nil {
		return nil, err
	}
	e := &engine{lib: lib, rank: o.Rank, size: o.Size, staged: staged, home: o.Device, queue: home, async: new(result)}
	e.wanted = make([]ranks.Call, e.size)
	if e.side, err = snug.Open(o.Device.Name()); err != nil {
		return nil, err
	}
	if e.stream, err = device.Streamer(e.side); err == nil {
		e.notes, err = e.stream.Alloc(e.size * callBytes)
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
		r = e.lib.initScalable(comm, int32(e.size), int32(e.rank), 1, &id, defaults)
	} else {
		r = e.lib.initRank(comm, int32(e.size), id, int32(e.rank))
	}
	e.comm = *comm
	return e.check(call, r)
}

// do makes a call: the ranks compare what they want, and then data moves. After any error but a mismatch of the calls the
// communicator is aborted, so that the other ranks do not wait.
func (e *engine) do(c *call) error {
	e.moves.Store(false)
	err := e.tell(c.Call)
	if err == nil {
		if err := ranks.Check(e.wanted); err != nil {
			return err
		}
		e.moves.Store(true)
		err = e.move(c)
	}
	if err != nil {
		e.giveUp()
		return fmt.Errorf("%s: %w", c.Op, err)
	}
	return nil
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

func (e *engine) move(c *call) error {
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
	return nil // Close
}

// awaited says what a call waits for. Any goroutine may ask.
func (e *engine) awaited() string {
	if e.moves.Load() {
		return "data"
	}
	return "calls"
}

const callBytes = int(unsafe.Sizeof(ranks.Call{}))

// tell tells this rank's call to all others, and waits for theirs.
func (e *engine) tell(c ranks.Call) error {
	e.own, e.wanted[e.rank] = c, c
	if e.size == 1 {
		return nil
	}
	if err := e.stream.CopyIn(e.notes.Slice(e.rank*callBytes, callBytes), bytesOf(&e.own, 1)); err != nil {
		return err
	}
	if err := e.gather(e.notes, callBytes); err != nil {
		return err
	}
	if err := e.wait(); err != nil {
		return err
	}
	return e.stream.CopyOut(bytesOf(unsafe.SliceData(e.wanted), e.size), e.notes)
}

// bytesOf returns the memory of n values.
func bytesOf[T any](p *T, n int) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(p)), n*int(unsafe.Sizeof(*p)))
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

// gather queues the exchange of n bytes that each rank has in its place of m.
func (e *engine) gather(m driver.Mem, n int) error {
	stream, err := e.enter()
	if err != nil {
		return err
	}
	defer e.leave()
	own := m.Slice(e.rank*n, n)
	return e.check("ncclAllGather", e.lib.allGather(own.Addr, m.Addr, uint64(n), asBytes, e.comm, stream))
}

var errAborted = errors.New("the communicator was aborted")

// wait waits until all that was queued is done. It sleeps meanwhile, up to 100 µs at a time.
func (e *engine) wait() error {
	var began time.Time
	for polls := 0; ; polls++ {
		if e.stop.Load() {
			return errAborted
		}
		idle, err := e.stream.Idle()
		if err == nil && !idle && polls%64 == 63 {
			err = e.failed()
		}
		switch {
		case err != nil:
			return err
		case idle && e.stop.Load(): // by the abort, perhaps
			return errAborted
		case idle:
			return nil
		}
		if polls < 200 {
			if polls%16 == 15 {
				runtime.Gosched()
			}
			continue
		}
		if began.IsZero() {
			began = time.Now()
		}
		time.Sleep(min(100*time.Microsecond, 5*time.Microsecond+time.Since(began)/50))
	}
}

// failed returns the communicator's asynchronous error, for example that a rank is gone.
func (e *engine) failed() error {
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

// The stages.
const (
	stageParts  = iota // parts that have arrived
	stageSums          // of bfloat16, in float32
	stageVector        // a vector that does not lie on the device
)

// stageFor returns a stage of a number of bytes, always the same, which is allocated when it is first used.
func (e *engine) stageFor(which, size int) (driver.Mem, error) {
	var err error
	if e.stage[which].Size == 0 {
		e.stage[which], err = e.stream.Alloc(size)
	}
	return e.stage[which], err
}
