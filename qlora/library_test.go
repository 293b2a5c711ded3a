package qlora

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/driver"
)

func init() { driver.Register("library", libraries{}) }

// libraries opens devices that have a vendor's library: number 0 is an opaque one, where the library is the definition
// of the jobs. Files with build tags add others.
type libraries struct{}

var openers = []func() (*libraryDevice, error){openOpaque}

// opened is the device that was opened last.
var opened *libraryDevice

func (libraries) Count() (int, error) { return len(openers), nil }

func (libraries) Open(index int) (_ driver.Driver, err error) {
	opened, err = openers[index]()
	return opened, err
}

func openOpaque() (*libraryDevice, error) {
	backend, err := driver.Lookup("opaque")
	if err != nil {
		return nil, err
	}
	d, err := backend.Open(0)
	if err != nil {
		return nil, err
	}
	return &libraryDevice{Driver: d, launch: d.Launch}, nil
}

// libraryDevice is a device with a vendor's library.
type libraryDevice struct {
	driver.Driver
	launch    func(driver.Job) error
	kernels   []string // of the jobs so far
	allocs    int
	capturing bool
	err       error // of HasProducts

	products []string // of the library, where kernels do not run in Go
	has      func(product string) (bool, error)
	multiply func(product string) (bool, error)
}

func (d *libraryDevice) HasProducts() (bool, error) { return d.err == nil, d.err }

func (d *libraryDevice) Launch(j driver.Job) error {
	d.kernels = append(d.kernels, j.Kernel())
	return d.launch(j)
}

func (d *libraryDevice) Alloc(size int) (driver.Mem, error) {
	if d.capturing {
		return driver.Mem{}, fmt.Errorf("an allocation in a capture: %w", driver.ErrDevice)
	}
	d.allocs++
	return d.Driver.Alloc(size)
}

// Capture implements [driver.Capturer]. The work runs at once.
func (d *libraryDevice) Capture(step func() error) (driver.Graph, error) {
	d.capturing = true
	defer func() { d.capturing = false }()
	return nil, step()
}

// jobs returns the kernels of the jobs since the last call.
func (d *libraryDevice) jobs() []string {
	k := d.kernels
	d.kernels = nil
	return k
}

// openLibraries calls test with every device that has a library.
func openLibraries(t *testing.T, test func(t *testing.T, dev *snug.Device, d *libraryDevice)) {
	for i := range openers {
		name := fmt.Sprintf("library:%d", i)
		t.Run(name, func(t *testing.T) {
			dev, err := snug.Open(name)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, dev.Close()) })
			test(t, dev, opened)
		})
	}
}
