package snug

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/snug-ml/snug/internal/driver"
)

// Device is one memory and one ordered queue of work. Work on a device other
// than the CPU is asynchronous: a call may return before its kernel has run,
// kernels run in the order of the calls, and functions that return a host
// value wait. A Device is safe for use by many goroutines.
type Device struct {
	name   string
	drv    driver.Driver // nil for the CPU
	closed atomic.Bool
}

var cpu = &Device{name: "cpu"}

// CPU returns the device of plain Go memory. Its work is done when a call
// returns. It cannot be closed.
func CPU() *Device { return cpu }

// Open opens a device by name: "cpu", or a kind and a number such as "cuda:0"
// ("cuda" alone is number 0). The error wraps [ErrNotBuilt] when the kind is
// not part of the build or its driver library is missing, and [ErrDevice] when
// there is no device of that number.
func Open(name string) (*Device, error) {
	kind, num, numbered := strings.Cut(name, ":")
	index := 0
	if numbered {
		var err error
		if index, err = strconv.Atoi(num); err != nil || index < 0 {
			return nil, fmt.Errorf("snug: device %q: want a kind and a number such as cuda:0: %w", name, ErrConfig)
		}
	}
	if kind == "cpu" {
		if index != 0 {
			return nil, fmt.Errorf("snug: device %q: there is one CPU device, cpu: %w", name, ErrDevice)
		}
		return cpu, nil
	}
	if kind == "" {
		return nil, fmt.Errorf("snug: device %q: want a kind and a number such as cuda:0: %w", name, ErrConfig)
	}
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
	d, err := b.Open(index)
	if err != nil {
		return nil, fmt.Errorf("snug: device %q: %w", name, err)
	}
	return &Device{name: fmt.Sprintf("%s:%d", kind, index), drv: d}, nil
}

// Devices returns the names of all devices that Open can open, the CPU first.
// The error joins the reasons of backends that are built in but cannot be
// used; the names are valid all the same.
func Devices() ([]string, error) {
	names := []string{cpu.name}
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

// Name returns the name that Open takes, such as "cpu" or "cuda:0".
func (d *Device) Name() string { return d.name }

// String returns the name.
func (d *Device) String() string { return d.name }

// IsCPU reports whether d is the CPU.
func (d *Device) IsCPU() bool { return d.drv == nil }

// Sync waits until all work queued on d is done and returns the first error
// of that work.
func (d *Device) Sync() error {
	if d.IsCPU() {
		return nil
	}
	if err := d.check(); err != nil {
		return err
	}
	return d.drv.Sync()
}

// Memory returns the free and total bytes of the device's memory; both are 0
// for the CPU, whose memory is the process's own.
func (d *Device) Memory() (free, total int64, err error) {
	if d.IsCPU() {
		return 0, 0, nil
	}
	if err := d.check(); err != nil {
		return 0, 0, err
	}
	return d.drv.Memory()
}

// Close waits for the queue and frees all memory of the device. Arrays on it
// are invalid afterwards: using one gives [ErrDevice]. Closing twice, or
// closing the CPU, does nothing.
func (d *Device) Close() error {
	if d.IsCPU() || d.closed.Swap(true) {
		return nil
	}
	return d.drv.Close()
}

// Launch queues a kernel. It is for snug's own packages.
func (d *Device) Launch(j driver.Job) error {
	if d.IsCPU() {
		j.Run()
		return nil
	}
	if err := d.check(); err != nil {
		return err
	}
	return d.drv.Launch(j)
}

func (d *Device) check() error {
	if d.closed.Load() {
		return fmt.Errorf("snug: device %s is closed: %w", d.name, ErrDevice)
	}
	return nil
}
