//go:build cuda || hip || metal || emu

package conv

import (
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/gpu"
)

var kernels = gpu.Module{Name: "conv"}

// threads is the number of threads in a thread block.
const threads = 256

// launch queues a kernel with so many thread blocks. params and operands have the order of the kernel's parameters.
func launch[P any](q gpu.Launcher, name string, blocks [3]int, params P, operands ...*snug.View) error {
	mems := make([]driver.Mem, len(operands))
	for i, v := range operands {
		mems[i] = *device.Mem(v)
	}
	return kernels.Launch(q, name, blocks, threads, gpu.Params(&params), mems...)
}

func nameOf(names *gpu.Floats, v *snug.View) string { return names.Of(uint8(v.DType())) }

func flag(b bool) uint32 {
	if b {
		return 1
	}
	return 0
}

// Kernels count elements in 32 bits. most leaves room for the step of a thread past the end of a vector.
const most = 1<<32 - 1<<24

// fits returns an error that wraps [snug.ErrNotBuilt] if a count exceeds most.
func fits(counts ...int) error {
	for _, n := range counts {
		if int64(n) > most {
			return fmt.Errorf("%d elements in one vector, and kernels of conv count %d: split the batch: %w", n, int64(most), driver.ErrNotBuilt)
		}
	}
	return nil
}
