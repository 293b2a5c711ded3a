//go:build metal

package metal

import (
	"cmp"
	"fmt"
	"log/slog"
	"runtime"
	"sync"

	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/gpu"
)

// device is an open GPU. mu guards all of it but the fields that never change.
type device struct {
	api      *api
	dev      object
	unified  bool
	language language // that kernels are compiled as
	empty    object   // a buffer to bind for an operand of no bytes

	mu       sync.Mutex
	closed   bool
	lost     error // of queued work, for good
	failed   error // of queued work, until someone asks
	buffers  table
	work     stream // kernels and copies in the order of the calls
	copies   stream // copies that run concurrently
	kernels  kernels
	products map[product]object
	copying  cost // of a byte
	multiply cost // of a multiplication of a product
	launches int64
}

var (
	_ driver.Copier = (*device)(nil)
	_ gpu.MatMuler  = (*device)(nil)

	_ driver.LaunchCounter = (*device)(nil)
	_ gpu.ParallelLauncher = (*device)(nil)
)

// newDevice makes a driver of dev, which it takes over.
func newDevice(a *api, dev object) (*device, error) {
	defer a.scope()()
	d := &device{
		api: a, dev: dev,
		unified:  a.unified(dev),
		language: languageOf(a.systemVersion()),
		kernels:  kernels{libraries: map[*gpu.Module]library{}, pipelines: map[kernelName]*pipeline{}},
		products: map[product]object{},
		copying:  cost{secondsPerByte},
		multiply: cost{secondsPerMAC},
	}
	d.work, d.copies = newStream(a, dev), newStream(a, dev)
	d.empty = a.newBuffer(dev, emptyBytes, storageShared)
	if !d.work.opened() || !d.copies.opened() || d.empty == 0 {
		d.releaseAll()
		return nil, fmt.Errorf("metal: the GPU gives no command queue, event or buffer: %w", driver.ErrDevice)
	}
	d.logLanguage()
	return d, nil
}

// logLanguage says as what kernels are compiled, since products depend on it.
func (d *device) logLanguage() {
	attributes := []any{"gpu", d.api.deviceName(d.dev), "macOS", d.api.systemVersion(), "language", d.language.String()}
	if d.language < language31 {
		slog.Warn("snug: metal: products of bfloat16 run without the matrix units before macOS 14", attributes...)
		return
	}
	slog.Info("snug: metal: the system compiles kernels at first use", attributes...)
}

// multiprocessors stands for the number of cores of every GPU, which Metal does not give: results are the same on all. An
// M1 has 7 or 8, an M1 Max 24 or 32, an M3 Ultra up to 80.
const multiprocessors = 32

// Multiprocessors implements [gpu.ParallelLauncher].
func (d *device) Multiprocessors() int { return multiprocessors }

// scope opens an autorelease pool, which belongs to a thread, and returns what
// closes it.
func (a *api) scope() (end func()) {
	runtime.LockOSThread()
	pool := a.pushPool()
	return func() {
		a.popPool(pool)
		runtime.UnlockOSThread()
	}
}

// enter locks the device and opens an autorelease pool; leave undoes both. It
// returns the error of a device that cannot be used and of work queued before.
func (d *device) enter() (pool uintptr, err error) {
	d.mu.Lock()
	if err := d.takeError(); err != nil {
		d.mu.Unlock()
		return 0, err
	}
	runtime.LockOSThread()
	return d.api.pushPool(), nil
}

func (d *device) leave(pool uintptr) {
	d.api.popPool(pool)
	runtime.UnlockOSThread()
	d.mu.Unlock()
}

// takeError returns why the device cannot be used, or else the error of queued
// work that nobody has seen.
func (d *device) takeError() error {
	switch {
	case d.closed:
		return fmt.Errorf("metal: the device is closed: %w", driver.ErrDevice)
	case d.lost != nil:
		return d.lost
	}
	err := d.failed
	d.failed = nil
	return err
}

// Launch queues the launches of j.
func (d *device) Launch(j driver.Job) error { return gpu.Run(j, d) }

// Sync waits until the queue is empty.
func (d *device) Sync() error {
	pool, err := d.enter()
	if err != nil {
		return err
	}
	d.commit(&d.work)
	last := d.work.committed
	d.leave(pool)
	return d.await(&d.work, last)
}

// Memory returns the bytes that the GPU can use without paging, total, and how many of
// them this process has not taken, free.
func (d *device) Memory() (free, total int64, err error) {
	pool, err := d.enter()
	if err != nil {
		return 0, 0, err
	}
	defer d.leave(pool)
	free, total = d.memory()
	return free, total, nil
}

func (d *device) memory() (free, total int64) {
	total = int64(d.api.workingSet(d.dev))
	return max(0, total-int64(d.api.allocated(d.dev))), total
}

// Close waits for both queues and releases everything. It returns the error of
// queued work that nobody has seen. Closing twice does nothing.
func (d *device) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil
	}
	defer d.api.scope()()
	for _, s := range []*stream{&d.work, &d.copies} {
		d.commit(s)
		d.drain(s)
	}
	d.closed = true
	d.releaseAll()
	return cmp.Or(d.lost, d.failed)
}

// releaseAll releases what the device owns.
func (d *device) releaseAll() {
	for _, b := range d.buffers {
		d.api.release(b.object)
	}
	d.buffers = nil
	d.kernels.release(d.api)
	for _, p := range d.products {
		d.api.release(p)
	}
	for _, o := range []object{d.empty, d.work.queue, d.work.event, d.copies.queue, d.copies.event, d.dev} {
		if o != 0 {
			d.api.release(o)
		}
	}
}
