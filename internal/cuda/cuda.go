//go:build cuda || hip

// Package cuda is snug's thin driver for GPUs of NVIDIA, the kind "cuda", and of
// AMD, the kind "hip", whose HIP has CUDA's functions under other names. It opens the
// vendor's library at run time, without cgo and without a toolkit, and runs the
// launches of package gpu. Names and comments are CUDA's; vendor has what differs.
//
// A device's primary context is shared with the program's other code on it, such
// as the CUDA runtime. It is current on the calling thread during a call only.
//
// Libraries come from the system's folders and the toolkit's. On Windows NVIDIA's driver,
// nvcuda.dll, is in System32, and cuBLASLt is in System32 or in bin\x64 or bin under
// %CUDA_PATH%. On Linux the dynamic loader finds them by name; cuBLASLt may also be in lib64
// under $CUDA_HOME or in /usr/local/cuda/lib64, libraries of HIP in lib under $ROCM_PATH or
// in /opt/rocm/lib. A variable that is not an absolute path is ignored.
//
// Layers: api.go holds the driver's functions by their C signatures, bind.go
// fills them from the library, everything above calls only these fields.
package cuda

import (
	"bytes"
	"fmt"
	"iter"
	"strings"
	"sync"

	"github.com/snug-ml/snug/internal/driver"
)

const (
	minDriver     = 12000 // cuDriverGetVersion of the first driver with all of api
	minDriverName = "525"
	minCapability = 80 // of the oldest card for which the images hold code
)

// backend opens the devices of a vendor.
type backend struct {
	vendor *vendor
	load   func() (*api, error)
	loadLt iter.Seq[*ltAPI]
}

func newBackend(v *vendor, load func() (*api, error), loadLt iter.Seq[*ltAPI]) *backend {
	return &backend{
		vendor: v,
		load:   sync.OnceValues(func() (*api, error) { return start(v, load) }),
		loadLt: loadLt,
	}
}

// start initializes the driver and checks that it has what snug needs.
func start(v *vendor, load func() (*api, error)) (*api, error) {
	a, err := load()
	if err != nil {
		return nil, err
	}
	a.vendor, a.captures = v, &sync.RWMutex{}
	if a.driverVersion == nil || a.init == nil {
		return nil, fmt.Errorf("the %s driver lacks %s: %w", v.title, strings.Join(a.missing, ", "), driver.ErrNotBuilt)
	}
	var version int32
	if r := a.driverVersion(&version); r != success {
		return nil, fmt.Errorf("%v: %w", v.failed("cuDriverGetVersion", r), driver.ErrNotBuilt)
	}
	if text := v.old(version); text != "" {
		return nil, fmt.Errorf("%s: %w", text, driver.ErrNotBuilt)
	}
	if len(a.missing) > 0 {
		return nil, fmt.Errorf("the %s driver lacks %s: %w", v.title, strings.Join(a.missing, ", "), driver.ErrNotBuilt)
	}
	switch r := a.init(0); r {
	case success:
		return a, nil
	case errNoDevice:
		return nil, fmt.Errorf("no %s GPU found: %v%s: %w", v.maker, v.failed("cuInit", r), v.absent(), driver.ErrNotBuilt)
	default:
		return nil, fmt.Errorf("the %s driver does not start: %v: %w", v.title, v.failed("cuInit", r), driver.ErrNotBuilt)
	}
}

// Count returns the number of GPUs. The error wraps ErrNotBuilt when
// there is no driver, an old one, or no GPU.
func (b *backend) Count() (int, error) {
	a, err := b.load()
	if err != nil {
		return 0, err
	}
	var n int32
	if r := a.deviceCount(&n); r != success {
		return 0, b.vendor.failed("cuDeviceGetCount", r)
	}
	if n == 0 {
		return 0, fmt.Errorf("no %s GPU found%s: %w", b.vendor.maker, b.vendor.absent(), driver.ErrNotBuilt)
	}
	return int(n), nil
}

// Open opens device number index with a queue of its own.
func (b *backend) Open(index int) (driver.Driver, error) { return b.open(index, nil) }

// OpenOn opens device number index with a CUDA stream of the caller as its
// queue, so that snug's work and the caller's run in one order. The stream, a
// CUstream or cudaStream_t, belongs to the device's primary context, which is
// the CUDA runtime's, and lives until after Close, which does not destroy it. 0
// is the legacy default stream, on which Capture fails.
func (b *backend) OpenOn(index int, stream uintptr) (driver.Driver, error) {
	if stream == streamPerThread {
		return nil, fmt.Errorf("%s:%d: the default stream of a thread cannot be a queue, since goroutines change threads: %w", b.vendor.kind, index, driver.ErrDevice)
	}
	return b.open(index, &stream)
}

func (b *backend) open(index int, stream *uintptr) (driver.Driver, error) {
	n, err := b.Count()
	if err != nil {
		return nil, err
	}
	if index < 0 || index >= n {
		return nil, fmt.Errorf("%s:%d: there are %d %s devices: %w", b.vendor.kind, index, n, b.vendor.title, driver.ErrDevice)
	}
	a, err := b.load()
	if err != nil {
		return nil, err
	}
	d := newDevice(a, b.loadLt, index)
	if err := d.find(); err != nil {
		return nil, err
	}
	if r := a.primaryRetain(&d.ctx, d.handle); r != success { // not lost: another process may have it
		return nil, fmt.Errorf("%v cannot be used now: %w", d, a.vendor.failed("cuDevicePrimaryCtxRetain", r))
	}
	if err := d.start(stream); err != nil {
		return nil, first(err, d.Close())
	}
	return d, nil
}

// find looks up the device and what it is.
func (d *Device) find() error {
	if err := d.check("cuDeviceGet", d.api.deviceGet(&d.handle, int32(d.index))); err != nil {
		return err
	}
	return d.api.vendor.find(d)
}

// name returns the name of the device, such as "NVIDIA H100 80GB HBM3".
func (d *Device) name() (string, error) {
	name := make([]byte, 256)
	if err := d.check("cuDeviceGetName", d.api.deviceName(&name[0], int32(len(name)), d.handle)); err != nil {
		return "", err
	}
	name, _, _ = bytes.Cut(name, []byte{0})
	return string(name), nil
}
