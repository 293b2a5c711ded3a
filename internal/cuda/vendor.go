//go:build cuda || hip

package cuda

import (
	"fmt"
	"strconv"

	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/gpu"
)

// vendor is what differs between the maker of CUDA and the maker of HIP, whose functions have the
// same parameters under other names. Their results have the same numbers.
type vendor struct {
	kind  string            // "cuda"
	title string            // "CUDA"
	maker string            // "NVIDIA"
	calls map[string]string // names of functions, by those of CUDA; nil says that they are the same
	names map[Result]string // of results
	lost  []Result          // after which the driver refuses all work of the process on the device

	// old says which version the driver has and which is needed, or nothing if it is new enough.
	old func(version int32) string
	// find looks up what the device is, and refuses one for which the images have no code.
	find func(d *Device) error
	// image returns what a module has for the vendor, unpack the code of it for a device.
	image  func(m *gpu.Module) []byte
	unpack func(d *Device, image []byte) (gpu.Code, error)

	// absent says why there may be no device, or nothing.
	absent func() string

	units bool // the images have the kernels on matrix units

	// The library of products ends the process if it starts while a stream of the process captures,
	// or with less device memory than this. 0 says that it does neither.
	blasMemory int

	launchEnd   uintptr // ends the list "extra" of a launch
	gridThreads uint64  // maximum number of threads in the first dimension of a grid; 0 for no limit
}

// call returns the vendor's name of a function of CUDA.
func (v *vendor) call(name string) string {
	if own, ok := v.calls[name]; ok {
		return own
	}
	return name
}

// result returns the name and the number, "CUDA_ERROR_OUT_OF_MEMORY (2)".
func (v *vendor) result(r Result) string {
	name, ok := v.names[r]
	if !ok {
		name = v.title + " result"
	}
	return name + " (" + strconv.Itoa(int(r)) + ")"
}

// failed returns the error of a call, by its name in CUDA.
func (v *vendor) failed(call string, r Result) *Error { return &Error{v.call(call), r, v} }

// nvidia is the vendor of the kind "cuda".
var nvidia = vendor{
	kind: "cuda", title: "CUDA", maker: "NVIDIA",
	names: resultNames,
	lost:  []Result{4, 46, 214, 220, 226, errIllegalAddress, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 810, 911},
	old: func(version int32) string {
		if version >= minDriver {
			return ""
		}
		return fmt.Sprintf("the CUDA driver is for CUDA %d.%d, snug needs CUDA %d.%d, which is NVIDIA driver %s or later",
			version/1000, version%1000/10, minDriver/1000, minDriver%1000/10, minDriverName)
	},
	find:   (*Device).findCapability,
	image:  func(m *gpu.Module) []byte { return m.Image },
	unpack: func(d *Device, image []byte) (gpu.Code, error) { return gpu.Unpack(image, d.capability) },
	absent: func() string { return "" },
	units:  true,
}

// HasUnits implements [gpu.UnitsLauncher].
func (d *Device) HasUnits() bool { return d.api.vendor.units }

// Multiprocessors implements [gpu.ParallelLauncher].
func (d *Device) Multiprocessors() int { return d.processors }

// attribute looks up an attribute of the device.
func (d *Device) attribute(value *int32, attribute int32) error {
	return d.check("cuDeviceGetAttribute", d.api.deviceAttribute(value, attribute, d.handle))
}

// findCapability looks up the compute capability and the multiprocessors.
func (d *Device) findCapability() error {
	var major, minor, pools, processors int32
	for _, q := range []struct {
		attribute int32
		value     *int32
	}{{attributeMajor, &major}, {attributeMinor, &minor}, {attributePools, &pools}, {attributeProcessors, &processors}} {
		if err := d.attribute(q.value, q.attribute); err != nil {
			return err
		}
	}
	d.capability, d.pools, d.processors = int(10*major+minor), pools != 0, int(processors)
	d.model = fmt.Sprintf("compute capability %d.%d", major, minor)
	limit, err := gpu.CapabilityLimit()
	if err != nil {
		return err
	}
	d.hopper = d.capability == 90 && limit != 80 && d.api.encodeMap != nil
	if d.capability >= minCapability {
		return nil
	}
	name, err := d.name()
	if err != nil {
		return err
	}
	return fmt.Errorf("%v, %s, has compute capability %d.%d; snug's kernels need %d.%d or later: %w",
		d, name, major, minor, minCapability/10, minCapability%10, driver.ErrNotBuilt)
}
