// Package device opens snug's views and devices for snug's own packages: the memory
// behind a View, and the queue behind a Device. Package snug keeps both private, so
// that its API does not show drivers.
//
// A View starts with its memory and a Device is its queue. Package snug refuses to
// compile when that changes, and this package reads a View or Device as its first field.
package device

import (
	"fmt"
	"unsafe"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/driver"
)

// Mem returns v's memory, for a [driver.Job] to name as an operand. Binding the memory to
// another address binds v. The memory of a nil View is nil.
func Mem(v *snug.View) *driver.Mem { return (*driver.Mem)(unsafe.Pointer(v)) }

// Each yields the memory of every view, for the operands of a [driver.Job].
func Each(yield func(*driver.Mem), views ...*snug.View) {
	for _, v := range views {
		yield(Mem(v))
	}
}

// As returns v's memory as elements of another type, as many as fit: for a workspace that holds several types.
// The first byte of v lies at a multiple of their size.
func As(v snug.View, dt snug.DType) snug.View {
	size := dt.Size()
	if size == 0 {
		return snug.View{}
	}
	return View(v.Device(), *Mem(&v), dt, Mem(&v).Size/size)
}

// Launch queues j on dev; on the CPU it runs j. The device may keep j until its queue
// reaches it. Errors wrap [snug.ErrDevice], or come from the device's driver.
func Launch(dev *snug.Device, j driver.Job) error { return queue(dev).Launch(j) }

// Queue queues a copy of job on dev.
func Queue[J any, P interface {
	*J
	driver.Job
}](dev *snug.Device, job J) error {
	return Launch(dev, P(&job))
}

// Run computes job on the CPU, which allocates nothing: the job's own Run takes it by value.
// On other devices it queues a copy.
func Run[J interface{ Run() }, P interface {
	*J
	driver.Job
}](dev *snug.Device, job J) error {
	if dev.IsCPU() {
		job.Run()
		return nil
	}
	return Queue[J, P](dev, job)
}

// Hold lets dev hold a job back, for jobs that follow to join it in one launch, until [Release]: for a call that goes over
// many vectors. Results, and the order of all work on dev, are the same as without. On the CPU, and on devices whose
// kernels take no addresses, it does nothing. dev may be nil.
func Hold(dev *snug.Device) {
	if dev != nil {
		queue(dev).Hold()
	}
}

// Release ends a [Hold], and launches the job that was held back.
func Release(dev *snug.Device) error {
	if dev == nil {
		return nil
	}
	return queue(dev).Release()
}

// Joins reports whether jobs on dev can join.
func Joins(dev *snug.Device) bool { return queue(dev).Joins() }

// Lend returns n elements of dev's memory, of any contents, until [Return], for what one call needs there. dev is not
// the CPU. Memory of a size that was returned before costs nothing. Errors are those of [snug.Make].
func Lend(dev *snug.Device, dt snug.DType, n int) (snug.View, error) {
	if n == 0 {
		return View(dev, driver.Mem{}, dt, 0), nil
	}
	mem, err := queue(dev).Lend(n * dt.Size())
	if err != nil {
		return snug.View{}, fmt.Errorf("snug: %d %s on %s for a call: %w", n, dt, dev, err)
	}
	return View(dev, mem, dt, n), nil
}

// Return ends a Lend. Queued work may still use the memory. After dev is closed it does nothing.
func Return(v snug.View) error { return queue(v.Device()).Return(*Mem(&v)) }

// Counts returns the calls of dev's queue since it was opened.
func Counts(dev *snug.Device) driver.Counts { return queue(dev).Counts() }

// HasDoubles reports whether kernels on dev, which is not the CPU, compute in float64.
func HasDoubles(dev *snug.Device) bool { return queue(dev).HasDoubles() }

// HasProducts reports whether dev multiplies matrices by its vendor's library. The first call loads the library. Errors
// are those of the device's driver.
func HasProducts(dev *snug.Device) (bool, error) { return queue(dev).HasProducts() }

// Launches returns how many kernels dev has launched since it was opened, 0 if it does not count them.
func Launches(dev *snug.Device) int64 { return queue(dev).Launches() }

// Copier returns dev's driver for copies that run concurrently with the queue of kernels.
// The error wraps [snug.ErrDevice] when dev is closed or has no such copies, like the CPU.
func Copier(dev *snug.Device) (driver.Copier, error) { return queue(dev).Copier() }

// Streamer returns dev's driver, on whose queue other libraries can queue work. The error wraps [snug.ErrDevice] when dev
// is closed or has no such queue, like the CPU.
func Streamer(dev *snug.Device) (driver.Streamer, error) { return queue(dev).Streamer() }

// View returns n elements at mem, which dev can reach. With the memory of a vector on another queue of the same hardware,
// work on the View goes to dev's queue.
func View(dev *snug.Device, mem driver.Mem, dt snug.DType, n int) snug.View {
	v := view{mem, n, dt, dev}
	return *(*snug.View)(unsafe.Pointer(&v))
}

// view has the layout of a View. Package snug refuses to compile when that changes.
type view struct {
	mem   driver.Mem
	n     int
	dtype snug.DType
	dev   *snug.Device
}

var _ = [1]struct{}{}[unsafe.Sizeof(view{})-unsafe.Sizeof(snug.View{})]

func queue(dev *snug.Device) *driver.Queue { return (*driver.Queue)(unsafe.Pointer(dev)) }
