//go:build hip

package cuda

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"slices"
	"strings"
	"unsafe"

	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/gpu"
)

// hipDriverGetVersion gives major·hipMajor + minor·100,000 + a patch. ROCm 6.0 is the first with
// hipGetDevicePropertiesR0600.
const (
	hipMajor = 10_000_000
	minHIP   = 6 * hipMajor
)

// amd is the vendor of the kind "hip".
var amd = vendor{
	kind: "hip", title: "HIP", maker: "AMD",
	calls: hipCalls, names: hipResults,
	lost: []Result{4, 53, 214, errIllegalAddress, 702, 710}, // not 709 and 719: a stale handle, a block too large
	old: func(version int32) string {
		if version >= minHIP {
			return ""
		}
		return fmt.Sprintf("the HIP driver is of ROCm %d.%d, snug needs ROCm 6.0 or later", version/hipMajor, version/100_000%100)
	},
	find:   (*Device).findArchitecture,
	image:  func(m *gpu.Module) []byte { return m.AMD },
	unpack: func(d *Device, image []byte) (gpu.Code, error) { return gpu.UnpackAMD(image, d.model) },

	absent: func() string { return noKFD(openKFD()) },

	blasMemory: 64 << 20, // it takes 2.5 MiB at least, and loads code

	launchEnd:   3,              // HIP_LAUNCH_PARAM_END
	gridThreads: math.MaxUint32, // hipModuleLaunchKernel counts them in 32 bits
}

// noKFD says that the user may not open the file by which programs reach AMD's devices, if the
// error of trying says so.
func noKFD(err error) string {
	if !errors.Is(err, fs.ErrPermission) {
		return ""
	}
	return fmt.Sprintf("; %v: members of the groups render and video may", err)
}

// openKFD tries to open that file.
func openKFD() error {
	f, err := os.OpenFile("/dev/kfd", os.O_RDWR, 0)
	if err == nil {
		f.Close()
	}
	return err
}

// hipProperties is hipDeviceProp_tR0600, of 1472 bytes, with room for longer ones.
type hipProperties struct {
	_            [1160]byte
	architecture [256]byte // gcnArchName: "gfx90a:sramecc+:xnack-"
	_            [2680]byte
}

const hipProcessors = 63 // hipDeviceAttributeMultiprocessorCount

// findArchitecture looks up the multiprocessors, and the architecture without the features after a colon: a code object
// that names none runs with any.
func (d *Device) findArchitecture() error {
	p := new(hipProperties)
	if err := d.check("hipGetDevicePropertiesR0600", d.api.properties(unsafe.Pointer(p), d.handle)); err != nil {
		return err
	}
	name, _, _ := bytes.Cut(p.architecture[:], []byte{0})
	name, _, _ = bytes.Cut(name, []byte{':'})
	d.model = string(name)
	var processors int32
	if err := d.attribute(&processors, hipProcessors); err != nil {
		return err
	}
	d.processors = int(processors)
	if !slices.Contains(gpu.AMDArchs, d.model) {
		name, err := d.name()
		if err != nil {
			return err
		}
		return fmt.Errorf("%v, %s, is %s; snug's kernels are for %s: %w", d, name, d.model, strings.Join(gpu.AMDArchs, ", "), driver.ErrNotBuilt)
	}
	return nil
}

// hipBlasLt is the library of products.
var hipBlasLt = ltVendor{
	title: "hipBLASLt", prefix: "hipblasLt",
	compute: 2,                    // HIPBLAS_COMPUTE_32F
	plain:   111, transposed: 112, // HIPBLAS_OP_N, HIPBLAS_OP_T
	descTransA: 0, descTransB: 1, // HIPBLASLT_MATMUL_DESC_TRANSA and the next
	align:  16,
	status: 4,
	names: map[ltStatus]string{
		0:  "HIPBLAS_STATUS_SUCCESS",
		1:  "HIPBLAS_STATUS_NOT_INITIALIZED",
		2:  "HIPBLAS_STATUS_ALLOC_FAILED",
		3:  "HIPBLAS_STATUS_INVALID_VALUE",
		4:  "HIPBLAS_STATUS_MAPPING_ERROR",
		5:  "HIPBLAS_STATUS_EXECUTION_FAILED",
		6:  "HIPBLAS_STATUS_INTERNAL_ERROR",
		7:  "HIPBLAS_STATUS_NOT_SUPPORTED",
		8:  "HIPBLAS_STATUS_ARCH_MISMATCH",
		9:  "HIPBLAS_STATUS_HANDLE_IS_NULLPTR",
		10: "HIPBLAS_STATUS_INVALID_ENUM",
		11: "HIPBLAS_STATUS_UNKNOWN",
	},
	noMemory: 2, invalid: 3, unusable: []ltStatus{1, 5, 7, 8},
}
