//go:build cuda

// Package cuda is snug's thin driver for NVIDIA GPUs. It opens the CUDA driver
// at run time, without cgo and without a toolkit, and runs the launches of
// package gpu. It registers itself as the kind "cuda".
//
// A device's primary context is shared with the program's other CUDA code, such
// as its CUDA runtime. It is current on the calling thread during a call only.
//
// Libraries come from the system's folders and the toolkit's. On Windows the driver,
// nvcuda.dll, is in System32, and cuBLASLt is in System32 or in bin\x64 or bin under
// %CUDA_PATH%. On Linux the dynamic loader finds them by name; cuBLASLt may also be in lib64
// under $CUDA_HOME or in /usr/local/cuda/lib64. A variable that is not an absolute path is
// ignored.
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
	"github.com/snug-ml/snug/internal/gpu"
)

const (
	minDriver     = 12000 // cuDriverGetVersion of the first driver with all of api
	minDriverName = "525"
	minCapability = 80 // of the oldest card for which the images hold code
)

func init() { driver.Register("cuda", newBackend(loadDriver, loadLt)) }

// backend opens CUDA devices.
type backend struct {
	load   func() (*api, error)
	loadLt iter.Seq[*ltAPI]
}

func newBackend(load func() (*api, error), loadLt iter.Seq[*ltAPI]) *backend {
	return &backend{
		load:   sync.OnceValues(func() (*api, error) { return start(load) }),
		loadLt: loadLt,
	}
}

// start initializes the driver and checks that it has what snug needs.
func start(load func() (*api, error)) (*api, error) {
	a, err := load()
	if err != nil {
		return nil, err
	}
	if a.driverVersion == nil || a.init == nil {
		return nil, fmt.Errorf("the CUDA driver lacks %s: %w", strings.Join(a.missing, ", "), driver.ErrNotBuilt)
	}
	var version int32
	if r := a.driverVersion(&version); r != success {
		return nil, fmt.Errorf("%v: %w", &Error{"cuDriverGetVersion", r}, driver.ErrNotBuilt)
	}
	if version < minDriver {
		return nil, fmt.Errorf("the CUDA driver is for CUDA %d.%d, snug needs CUDA %d.%d, which is NVIDIA driver %s or later: %w",
			version/1000, version%1000/10, minDriver/1000, minDriver%1000/10, minDriverName, driver.ErrNotBuilt)
	}
	if len(a.missing) > 0 {
		return nil, fmt.Errorf("the CUDA driver lacks %s: %w", strings.Join(a.missing, ", "), driver.ErrNotBuilt)
	}
	switch r := a.init(0); r {
	case success:
		return a, nil
	case errNoDevice:
		return nil, fmt.Errorf("no NVIDIA GPU found: %v: %w", &Error{"cuInit", r}, driver.ErrNotBuilt)
	default:
		return nil, fmt.Errorf("the CUDA driver does not start: %v: %w", &Error{"cuInit", r}, driver.ErrNotBuilt)
	}
}

// Count returns the number of NVIDIA GPUs. The error wraps ErrNotBuilt when
// there is no driver, an old one, or no GPU.
func (b *backend) Count() (int, error) {
	a, err := b.load()
	if err != nil {
		return 0, err
	}
	var n int32
	if r := a.deviceCount(&n); r != success {
		return 0, &Error{"cuDeviceGetCount", r}
	}
	if n == 0 {
		return 0, fmt.Errorf("no NVIDIA GPU found: %w", driver.ErrNotBuilt)
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
		return nil, fmt.Errorf("cuda:%d: the default stream of a thread cannot be a queue, since goroutines change threads: %w", index, driver.ErrDevice)
	}
	return b.open(index, &stream)
}

func (b *backend) open(index int, stream *uintptr) (driver.Driver, error) {
	n, err := b.Count()
	if err != nil {
		return nil, err
	}
	if index < 0 || index >= n {
		return nil, fmt.Errorf("cuda:%d: there are %d CUDA devices: %w", index, n, driver.ErrDevice)
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
		return nil, fmt.Errorf("cuda:%d cannot be used now: %w", index, &Error{"cuDevicePrimaryCtxRetain", r})
	}
	if err := d.start(stream); err != nil {
		return nil, first(err, d.Close())
	}
	return d, nil
}

// find looks up the device and refuses one for which the images have no code.
func (d *Device) find() error {
	if err := d.check("cuDeviceGet", d.api.deviceGet(&d.handle, int32(d.index))); err != nil {
		return err
	}
	var major, minor, pools int32
	for _, q := range []struct {
		attribute int32
		value     *int32
	}{{attributeMajor, &major}, {attributeMinor, &minor}, {attributePools, &pools}} {
		if err := d.check("cuDeviceGetAttribute", d.api.deviceAttribute(q.value, q.attribute, d.handle)); err != nil {
			return err
		}
	}
	d.capability, d.pools = int(10*major+minor), pools != 0
	limit, err := gpu.CapabilityLimit()
	if err != nil {
		return err
	}
	d.hopper = d.capability == 90 && limit != 80 && d.api.encodeMap != nil
	if d.capability >= minCapability {
		return nil
	}
	name := make([]byte, 256)
	if err := d.check("cuDeviceGetName", d.api.deviceName(&name[0], int32(len(name)), d.handle)); err != nil {
		return err
	}
	name, _, _ = bytes.Cut(name, []byte{0})
	return fmt.Errorf("cuda:%d, %s, has compute capability %d.%d; snug's kernels need %d.%d or later: %w",
		d.index, name, major, minor, minCapability/10, minCapability%10, driver.ErrNotBuilt)
}
