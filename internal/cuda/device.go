//go:build cuda || hip

package cuda

import (
	"fmt"
	"iter"
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/gpu"
)

// Device is one GPU: a driver.Copier and a gpu.MatMuler. Its methods may be
// called from many goroutines.
//
// Beside what Alloc and AllocPinned return it holds pinned host memory, 142 KiB
// for every 32 launches that are being queued at a time and 8 MiB from the first
// CopyIn on, and the workspace of MatMul on the device.
type Device struct {
	api        *api
	loadLt     iter.Seq[*ltAPI]
	index      int
	handle     int32 // CUdevice
	ctx        uintptr
	model      string // "compute capability 8.6", "gfx1100"
	capability int    // 86 is compute capability 8.6; 0 of AMD
	processors int    // multiprocessors
	pools      bool
	hopper     bool

	// life is read-locked by every call and locked by Close.
	life      sync.RWMutex
	closed    bool
	lost      atomic.Pointer[LostError]
	capturing atomic.Bool

	queue   uintptr // the stream of kernels
	foreign bool    // queue is the caller's
	in, out uintptr // the streams of StartCopyIn and StartCopyOut, so that both ways of the bus are in use at a time
	pool    uintptr // 0 without memory pools

	mu       sync.Mutex      // guards the fields below
	live     map[uintptr]int // sizes of what is allocated
	kept     kept            // freed memory, without memory pools
	pinned   map[uintptr]int // sizes
	uncaught []block         // frees that wait for the end of a capture
	events   []uintptr       // not in use
	made     []uintptr       // all events
	frames   []*frame        // not in use
	blocks   []unsafe.Pointer
	graphs   map[*Graph]bool

	staging  staging
	kernels  kernels
	blas     blas
	launches atomic.Int64
}

var (
	_ driver.Copier     = (*Device)(nil)
	_ gpu.MatMulChecker = (*Device)(nil)

	_ driver.Addresser     = (*Device)(nil)
	_ driver.Multiplier    = (*Device)(nil)
	_ driver.Doubler       = (*Device)(nil)
	_ driver.LaunchCounter = (*Device)(nil)
	_ gpu.HopperLauncher   = (*Device)(nil)
	_ gpu.ParallelLauncher = (*Device)(nil)
)

func newDevice(a *api, loadLt iter.Seq[*ltAPI], index int) *Device {
	return &Device{
		api: a, loadLt: loadLt, index: index,
		live: map[uintptr]int{}, pinned: map[uintptr]int{}, graphs: map[*Graph]bool{},
		kernels: kernels{modules: map[*gpu.Module]*module{}, functions: map[kernel]uintptr{}, whole: map[*gpu.Module]bool{}},
	}
}

// String returns "cuda:0".
func (d *Device) String() string { return fmt.Sprintf("%s:%d", d.api.vendor.kind, d.index) }

// start makes the streams and the memory pool.
func (d *Device) start(stream *uintptr) error {
	if err := d.enter(); err != nil {
		return err
	}
	defer d.leave()
	if stream != nil {
		if err := d.adopt(*stream); err != nil {
			return err
		}
	} else if err := d.check("cuStreamCreate", d.api.streamCreate(&d.queue, streamNonBlocking)); err != nil {
		return err
	}
	for _, s := range []*uintptr{&d.in, &d.out} {
		if err := d.check("cuStreamCreate", d.api.streamCreate(s, streamNonBlocking)); err != nil {
			return err
		}
	}
	if err := d.addFrames(); err != nil {
		return err
	}
	return d.makePool()
}

// adopt makes a stream of the caller the queue.
func (d *Device) adopt(stream uintptr) error {
	var ctx uintptr
	if err := d.check("cuStreamGetCtx", d.api.streamCtx(stream, &ctx)); err != nil {
		return err
	}
	if ctx != d.ctx {
		return fmt.Errorf("%v: the stream belongs to another context; the device's primary context is needed: %w", d, driver.ErrDevice)
	}
	d.queue, d.foreign = stream, true
	return nil
}

// enter begins a call: until leave the device stays open and its context is
// current on the goroutine's thread.
func (d *Device) enter() error {
	d.life.RLock()
	err := d.usable()
	if err == nil {
		err = d.push()
	}
	if err != nil {
		d.life.RUnlock()
	}
	return err
}

func (d *Device) leave() {
	d.pop()
	d.life.RUnlock()
}

// push makes the context current on this thread, to which the goroutine stays
// bound until pop.
func (d *Device) push() error {
	runtime.LockOSThread()
	r := d.api.ctxPush(d.ctx)
	if r == success {
		return nil
	}
	runtime.UnlockOSThread()
	return d.fail("cuCtxPushCurrent", r)
}

// pop brings back the thread's context from before push. Its result can only
// repeat an error of queued work, which the next call returns.
func (d *Device) pop() {
	d.api.ctxPop()
	runtime.UnlockOSThread()
}

func (d *Device) usable() error {
	if d.closed {
		return fmt.Errorf("%v is closed: %w", d, driver.ErrDevice)
	}
	if lost := d.lost.Load(); lost != nil {
		return lost
	}
	return nil
}

// Sync waits until the queue is empty. It returns the first error of queued
// work; AMD's driver has none, for a kernel that fails there ends the process.
func (d *Device) Sync() error {
	if err := d.enter(); err != nil {
		return err
	}
	defer d.leave()
	if err := d.notCapturing("Sync"); err != nil {
		return err
	}
	return d.sync()
}

func (d *Device) sync() error {
	if err := d.check("cuStreamSynchronize", d.api.streamSync(d.queue)); err != nil {
		return err
	}
	return d.trim(d.kept.limit)
}

// Close waits for the queue, frees everything that was allocated on the device,
// and lets go of the primary context. Closing twice does nothing. It returns
// the error of queued work, and frees all the same.
func (d *Device) Close() error {
	d.life.Lock()
	defer d.life.Unlock()
	if d.closed {
		return nil
	}
	err := d.lostError()
	if perr := d.push(); perr == nil {
		err = first(err, d.freeAll())
		d.pop()
	} else {
		err = first(err, perr)
	}
	d.closed = true
	return first(err, d.check("cuDevicePrimaryCtxRelease", d.api.primaryRelease(d.handle)))
}

func (d *Device) lostError() error {
	if lost := d.lost.Load(); lost != nil {
		return lost
	}
	return nil
}

// freeAll waits for the streams and destroys what the device made. It returns
// the first error: after a lost device every call fails.
func (d *Device) freeAll() error {
	var err error
	do := func(call string, r Result) { err = first(err, d.check(call, r)) }
	if d.capturing.Load() {
		err = d.dropCapture()
	}
	do("cuStreamSynchronize", d.api.streamSync(d.queue))
	for _, s := range []uintptr{d.in, d.out} {
		if s != 0 {
			do("cuStreamSynchronize", d.api.streamSync(s))
		}
	}
	for g := range d.graphs {
		g.mu.Lock()
		err = first(err, g.destroy())
		g.mu.Unlock()
	}
	err = first(err, d.blas.close(d))
	err = first(err, d.freeMemory())
	for _, e := range d.made { // before the streams: HIP looks at an event's stream
		do("cuEventDestroy", d.api.eventDestroy(e))
	}
	for _, m := range d.kernels.modules {
		if m.handle != 0 {
			do("cuModuleUnload", d.api.moduleUnload(m.handle))
		}
		for _, part := range m.parts {
			do("cuModuleUnload", d.api.moduleUnload(part))
		}
	}
	for _, s := range []uintptr{d.in, d.out} {
		if s != 0 {
			do("cuStreamDestroy", d.api.streamDestroy(s))
		}
	}
	if d.queue != 0 && !d.foreign {
		do("cuStreamDestroy", d.api.streamDestroy(d.queue))
	}
	return err
}
