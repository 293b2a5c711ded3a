package snug

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unsafe"

	"github.com/snug-ml/snug/internal/driver"
)

// Device is one memory and one ordered queue of work. Work on a device other than the CPU
// is asynchronous: a call may return before its kernel has run. Kernels run in the order of
// the calls, and functions that return a host value wait. A Device is safe for concurrent
// use. Methods of a nil Device, or of one that neither [CPU] nor [Open] returned, give
// [ErrDevice].
type Device struct{ queue driver.Queue }

// Package device, for snug's other packages, reads a Device as its queue.
var _ = [1]struct{}{}[unsafe.Sizeof(Device{})-unsafe.Sizeof(driver.Queue{})]

var cpu = &Device{driver.Queue{Name: "cpu", CPU: true}}

// CPU returns the device of plain Go memory. Its work is done when a call
// returns. It cannot be closed.
func CPU() *Device { return cpu }

// Open opens a device by name: "cpu", or a kind and a number such as "cuda:0"
// ("cuda" alone is number 0). The error wraps [ErrNotBuilt] when the kind is
// not part of the build or its driver library is missing, and [ErrDevice] when
// there is no device of that number.
func Open(name string) (*Device, error) {
	kind, index, err := parseName(name)
	if err != nil {
		return nil, err
	}
	if kind == "cpu" {
		if index != 0 {
			return nil, fmt.Errorf("snug: device %q: there is one CPU device, cpu: %w", name, ErrDevice)
		}
		return cpu, nil
	}
	return open(name, kind, index, driver.Backend.Open)
}

// OpenOn is [Open] with a queue that the caller owns. On a CUDA device the queue is a
// stream, a CUstream or cudaStream_t of the device's primary context, which the CUDA
// runtime uses, or 0 for the default stream. The work of snug and of the caller then runs
// in one order. Close does not destroy the stream, which must live until Close returns.
// Errors: the errors of Open, and [ErrDevice] for a kind of device without such queues,
// such as the CPU.
func OpenOn(name string, stream uintptr) (*Device, error) {
	kind, index, err := parseName(name)
	if err != nil {
		return nil, err
	}
	none := fmt.Errorf("%s devices take no queue of the caller: %w", kind, ErrDevice)
	if kind == "cpu" {
		return nil, fmt.Errorf("snug: device %q: %w", name, none)
	}
	d, err := open(name, kind, index, func(b driver.Backend, index int) (driver.Driver, error) {
		if s, ok := b.(driver.StreamBackend); ok {
			return s.OpenOn(index, stream)
		}
		return nil, none
	})
	if err != nil {
		return nil, err
	}
	d.queue.Foreign = true
	return d, nil
}

// parseName splits "cuda:0" or "cuda".
func parseName(name string) (kind string, index int, err error) {
	kind, num, numbered := strings.Cut(name, ":")
	if numbered {
		index, err = strconv.Atoi(num)
	}
	if kind == "" || err != nil || index < 0 {
		return "", 0, fmt.Errorf("snug: device %q: want a kind and a number such as cuda:0: %w", name, ErrConfig)
	}
	return kind, index, nil
}

// open opens device number index of a kind other than the CPU.
func open(name, kind string, index int, how func(driver.Backend, int) (driver.Driver, error)) (*Device, error) {
	b, err := driver.Lookup(kind)
	if err != nil {
		return nil, fmt.Errorf("snug: device %q: %w", name, err)
	}
	n, err := b.Count()
	if err != nil {
		return nil, fmt.Errorf("snug: device %q: %w", name, err)
	}
	if index >= n {
		return nil, fmt.Errorf("snug: device %q: there are %d %s devices: %w", name, n, kind, ErrDevice)
	}
	d, err := how(b, index)
	if err != nil {
		return nil, fmt.Errorf("snug: device %q: %w", name, err)
	}
	return &Device{driver.Queue{Name: fmt.Sprintf("%s:%d", kind, index), Driver: d}}, nil
}

// Devices returns the names of all devices that Open can open, the CPU first.
// The error joins the reasons of backends that are built in but cannot be
// used; the names are valid all the same.
func Devices() ([]string, error) {
	names := []string{cpu.queue.Name}
	var errs []error
	for _, kind := range driver.Kinds() {
		b, err := driver.Lookup(kind)
		if err != nil {
			continue
		}
		n, err := b.Count()
		if err != nil {
			errs = append(errs, fmt.Errorf("snug: %s: %w", kind, err))
			continue
		}
		for i := range n {
			names = append(names, fmt.Sprintf("%s:%d", kind, i))
		}
	}
	return names, errors.Join(errs...)
}

// Name returns the name that Open takes, such as "cpu" or "cuda:0", and "none" for a nil
// Device.
func (d *Device) Name() string {
	if d == nil || d.queue.Name == "" {
		return "none"
	}
	return d.queue.Name
}

// String returns the name.
func (d *Device) String() string { return d.Name() }

// IsCPU reports whether d is the CPU.
func (d *Device) IsCPU() bool { return d == cpu }

// Sync waits until all work queued on d is done and returns the first error
// of that work.
func (d *Device) Sync() error {
	if d.IsCPU() {
		return nil
	}
	if err := d.check(); err != nil {
		return err
	}
	return d.queue.Sync()
}

// Memory returns the free and total bytes of the device's memory; both are 0
// for the CPU, whose memory is the process's own. Up to 8 MiB that calls have
// used, and that the device keeps for the next ones, count as free.
func (d *Device) Memory() (free, total int64, err error) {
	if d.IsCPU() {
		return 0, 0, nil
	}
	if err := d.check(); err != nil {
		return 0, 0, err
	}
	return d.queue.Memory()
}

// Close waits for the queue and frees all memory of the device. Arrays on it
// are invalid afterwards: using one gives [ErrDevice]. Closing twice, or
// closing the CPU, does nothing.
func (d *Device) Close() error {
	if err := d.inside().Exists(); err != nil || d == cpu || d.queue.Closed.Swap(true) {
		return err
	}
	return d.queue.Close()
}

func (d *Device) check() error { return d.inside().Check() }

// inside returns the queue of d, nil for a nil Device.
func (d *Device) inside() *driver.Queue {
	if d == nil {
		return nil
	}
	return &d.queue
}
