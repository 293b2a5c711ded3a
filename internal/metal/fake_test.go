//go:build metal

package metal

import (
	"fmt"
	"sync"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// fake is a Metal in Go: it counts references, runs committed command buffers
// on a goroutine for each queue, and notes every misuse as a fault.
type fake struct {
	mu      sync.Mutex
	changed sync.Cond // a status, an event, or paused
	next    object
	things  map[object]*thing
	pools   int
	pooled  []object // autoreleased; they go when no pool is open
	faults  []string
	paused  bool   // queues start nothing
	fails   int    // code of the error of the next command buffer to run; 0 for none
	victim  object // the queue whose command buffer fails; 0 for any
	limit   int    // bytes of memory
	used    int
	kernels map[string]fakeKernel
	sources []string // of libraries
	spoken  []compileOptions
	system  string // the release of macOS
	commits int
	dev     object

	blockTime  float64   // seconds of a block of threads
	productMAC float64   // seconds of a multiplication
	patience   float64   // seconds after which the system kills a command buffer; 0 for never
	times      []float64 // of the command buffers that ran
	unmeasured bool      // the system does not tell times
	pieces     []fakePiece

	old      bool // the system has no gpuAddress
	discrete bool // memory is not unified
	family   int
	width    int // lanes
}

// fakeKernel runs a grid of so many threads.
type fakeKernel func(operands [][]byte, params []byte, threads int)

// thing is any object; a kind uses some of the fields.
type thing struct {
	kind string
	refs int
	name string

	data    []byte // a buffer's
	private bool
	addr    uintptr

	queue    object // a command buffer's
	encoder  object // open
	commands []func() bool
	uses     []object
	status   int
	code     int

	list []object // a queue's committed command buffers
	busy bool

	value uint64 // an event's

	owner    object // an encoder's command buffer
	pipeline object
	bound    map[int]fakeRange
	params   []byte
	piece    []byte
	seconds  float64 // a command buffer's

	product product
	matrix  fakeMatrix
}

// fakePiece is a launch, of a grid of so many blocks or of a part of it.
type fakePiece struct {
	piece
	extent [3]int
}

type fakeRange struct {
	buf object
	off int
}

type fakeMatrix struct {
	fakeRange
	rows, columns, rowBytes int
	dataType                uint32
}

func newFake() *fake {
	f := &fake{things: map[object]*thing{}, next: 100, limit: 1 << 20, family: familyApple7, width: simdWidth, system: "14.5", kernels: map[string]fakeKernel{}}
	f.changed.L = &f.mu
	f.dev = f.make(&thing{kind: "device", name: "Fake GPU"})
	f.bytewise()
	return f
}

// make enters an object with one reference.
func (f *fake) make(t *thing) object {
	f.next++
	t.refs = 1
	f.things[f.next] = t
	return f.next
}

// pool makes an autoreleased object.
func (f *fake) pool(t *thing) object {
	o := f.make(t)
	if f.pools == 0 {
		f.fault("%s autoreleased outside of a pool", t.kind)
	}
	f.pooled = append(f.pooled, o)
	return o
}

func (f *fake) fault(format string, args ...any) {
	f.faults = append(f.faults, fmt.Sprintf(format, args...))
}

// get returns a live object of a kind.
func (f *fake) get(o object, kind string) *thing {
	t := f.things[o]
	if t == nil || t.kind != kind {
		f.fault("message to %d, want a live %s, have %v", o, kind, t)
		return &thing{bound: map[int]fakeRange{}}
	}
	return t
}

func (f *fake) drop(o object) {
	t := f.things[o]
	if t == nil {
		f.fault("release of dead object %d", o)
		return
	}
	if t.refs--; t.refs > 0 {
		return
	}
	if t.encoder != 0 || t.kind == "encoder" && f.things[t.owner] != nil && f.things[t.owner].encoder == o {
		f.fault("%s destroyed while encoding", t.kind)
	}
	delete(f.things, o)
	f.used -= len(t.data)
	f.unuse(t)
}

func (f *fake) unuse(t *thing) {
	uses := t.uses
	t.uses = nil
	for _, o := range uses {
		f.drop(o)
	}
}

// keep makes a command buffer retain an object until it is done.
func (f *fake) keep(cb *thing, o object) {
	f.things[o].refs++
	cb.uses = append(cb.uses, o)
}

// run executes a queue's command buffers in order.
func (f *fake) run(q *thing) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for len(q.list) > 0 {
		for f.paused {
			f.changed.Wait()
		}
		o := q.list[0]
		q.list = q.list[1:]
		cb := f.things[o]
		cb.status = statusCompleted
		if cb.code != 0 {
			cb.status = statusError
		}
		if f.fails != 0 && (f.victim == 0 || f.victim == cb.queue) {
			cb.code, cb.status, f.fails = f.fails, statusError, 0
		}
		f.times = append(f.times, cb.seconds)
		if f.patience > 0 && cb.seconds > f.patience {
			cb.code, cb.status = killedWork, statusError
		}
		for _, command := range cb.commands {
			if cb.code == 0 {
				for !command() {
					f.changed.Wait()
				}
			}
		}
		f.unuse(cb)
		f.drop(o)
		f.changed.Broadcast()
	}
	q.busy = false
}

func (f *fake) pause(paused bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.paused = paused
	f.changed.Broadcast()
}

func (f *fake) count(kind string) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, t := range f.things {
		if t.kind == kind {
			n++
		}
	}
	return n
}

// open returns a device on f that is closed, and checked for leaks and misuse,
// at the end of the test.
func (f *fake) open(t *testing.T) *device {
	t.Helper()
	drv, err := f.backend().Open(0)
	require.NoError(t, err)
	d := drv.(*device)
	t.Cleanup(func() {
		f.pause(false)
		_ = d.Close()
		f.check(t)
	})
	return d
}

// check fails the test for leaks and faults. The device belongs to the system.
func (f *fake) check(t *testing.T) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	require.Empty(t, f.faults)
	require.Zero(t, f.pools)
	require.Empty(t, f.pooled)
	for o, x := range f.things {
		if o == f.dev {
			require.Equal(t, 1, x.refs, "references of the device")
			continue
		}
		t.Errorf("leak: %s, %d references", x.kind, x.refs)
	}
}

func (f *fake) backend() backend { return backend{func() (*api, error) { return f.api(), nil }} }

// foreign makes a buffer that the caller of the device owns.
func (f *fake) foreign(n int) object {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.make(f.newBuffer(n, false))
}

func (f *fake) newBuffer(n int, private bool) *thing {
	b := &thing{kind: "buffer", data: make([]byte, n), private: private}
	for i := range b.data {
		b.data[i] = 0xa5
	}
	f.used += n
	b.addr = 1<<40 + uintptr(f.next)<<24
	return b
}

func (f *fake) contents(o object) unsafe.Pointer {
	if b := f.get(o, "buffer"); !b.private {
		return unsafe.Pointer(unsafe.SliceData(b.data))
	}
	return nil
}
