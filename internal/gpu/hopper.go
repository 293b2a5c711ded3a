package gpu

import (
	"errors"
	"fmt"
	"os"

	"github.com/snug-ml/snug/internal/driver"
)

// TensorMap is a tensor of 16-bit elements. Kernels for compute capability 9.0 copy boxes of
// it to block memory: 64 columns of Rows rows of one head, 0 outside the tensor.
type TensorMap struct {
	Mem     driver.Mem // starts at a multiple of 16 bytes
	Dims    [4]int     // elements of a row, rows, heads, batches; at least 1 each
	Strides [3]int     // bytes from one row, head and batch to the next: multiples of 16
	Rows    int        // of a box, at most 256
}

// ErrTensorMap says that the driver makes no map of a tensor, such as for its strides; then
// nothing was launched, and other kernels take it.
var ErrTensorMap = errors.New("snug: a tensor that the driver does not map")

// HopperLauncher is a Launcher that knows whether its device runs a module of kernels for
// compute capability 9.0 alone, sm_90a, and launches with tensor maps.
type HopperLauncher interface {
	Launcher
	Hopper(m *Module) bool
}

// Hopper reports whether q runs all kernels of m, which are for compute capability 9.0 alone.
func Hopper(q Launcher, m *Module) bool {
	h, ok := q.(HopperLauncher)
	return ok && h.Hopper(m)
}

// CapabilityLimit returns the compute capability up to which the environment variable
// SNUG_CUDA lets kernels use a device's instructions: 80, 90, or 0 if it says nothing.
func CapabilityLimit() (int, error) {
	switch name := os.Getenv("SNUG_CUDA"); name {
	case "":
		return 0, nil
	case "80":
		return 80, nil
	case "90":
		return 90, nil
	default:
		return 0, fmt.Errorf("SNUG_CUDA is %q, want 80 or 90: %w", name, driver.ErrDevice)
	}
}
