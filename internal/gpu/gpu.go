// Package gpu is what the GPU backends share: how a job describes its launches,
// and the modules of kernels that primitives embed. It knows neither CUDA nor
// Metal; internal/cuda, internal/metal and internal/emu run its launches.
package gpu

import (
	"fmt"
	"io/fs"
	"unsafe"

	"github.com/snug-ml/snug/internal/driver"
)

// Module is the kernels of one package in the forms that the build has. The
// files cuda.go, hip.go and metal.go of a package fill it in before any device is
// opened.
type Module struct {
	Name   string // of the package: "quant8"
	Image  []byte // CUDA code, as Unpack reads it, with the build tag cuda
	AMD    []byte // code of AMD's architectures, as UnpackAMD reads it, with the build tag hip
	Source fs.FS  // NAME.cu, NAME.metal and what they include, with the build tags metal and emu

	// Entries are the kernels of a module that stands in for another on some devices. A device
	// uses all of them or none.
	Entries []Entry
}

// Entry is an entry point and the Shared of its launches.
type Entry struct {
	Name   string
	Shared int
}

// Launch is one grid of threads. A kernel takes its tensor maps, its operands as
// pointers, in order, and then one struct of parameters.
type Launch struct {
	Module   *Module
	Func     string // the entry point: "quant8_quantize_f32"
	Blocks   [3]int // at least 1 each
	Threads  int    // of a block, a multiple of 32 and at most 1024
	Maps     []TensorMap
	Operands []driver.Mem
	Params   []byte // the struct as C lays it out
	Shared   int    // bytes of block memory in addition to the declared ones
}

// Launch queues a kernel that has neither tensor maps nor more memory of a block than it declares. Without blocks there is
// nothing to do.
func (m *Module) Launch(q Launcher, name string, blocks [3]int, threads int, params []byte, operands ...driver.Mem) error {
	if min(blocks[0], blocks[1], blocks[2]) == 0 {
		return nil
	}
	return q.LaunchGrid(&Launch{Module: m, Func: name, Blocks: blocks, Threads: threads, Operands: operands, Params: params})
}

// Launcher queues launches and copies in order. Every [driver.Driver] of a GPU
// is one. It keeps nothing of l after it returns.
type Launcher interface {
	LaunchGrid(l *Launch) error
	// Copy copies src.Size bytes on the device.
	Copy(dst, src driver.Mem) error
}

// Job is a driver.Job that GPUs can run.
type Job interface {
	driver.Job
	// Grids queues the launches that do what Run does. Operands have the
	// addresses that the device bound to them. It stops at the first error.
	Grids(q Launcher) error
}

// Run queues the launches of j on q.
func Run(j driver.Job, q Launcher) error {
	job, ok := j.(Job)
	if !ok {
		return fmt.Errorf("kernel %s has no form for this device: %w", j.Kernel(), driver.ErrNotBuilt)
	}
	if err := job.Grids(q); err != nil {
		return fmt.Errorf("kernel %s: %w", j.Kernel(), err)
	}
	return nil
}

// Params returns the bytes of a struct of parameters. Its fields are of 4 or 8
// bytes and at multiples of their size, so that Go and C agree on the layout;
// its size is a multiple of its largest field. It is valid as long as p.
func Params[P any](p *P) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(p)), unsafe.Sizeof(*p))
}

// CeilDiv returns n/d rounded up.
func CeilDiv(n, d int) int { return (n + d - 1) / d }

// Floats are the entry points of a kernel for f32, f16 and bf16.
type Floats [3]string

// ForFloats returns the names that FOR_FLOATS gives in kernel text:
// prefix_f32, prefix_f16 and prefix_bf16.
func ForFloats(prefix string) Floats {
	return Floats{prefix + "_f32", prefix + "_f16", prefix + "_bf16"}
}

// Of returns the entry point for element type number dtype of package snug,
// which counts from 1 in this order.
func (f *Floats) Of(dtype uint8) string { return f[dtype-1] }

// Folder returns the folder kernels of an embedded file system.
func Folder(files fs.FS) fs.FS {
	sub, err := fs.Sub(files, "kernels")
	if err != nil {
		panic(err) // the name is valid
	}
	return sub
}

// MaxGrid bounds the blocks of a launch whose threads step through their
// elements: enough to fill any device.
const MaxGrid = 1 << 14

// Grid returns the blocks for n elements with per of them for each block at a
// time, at least one.
func Grid(n, per int) [3]int {
	return [3]int{min(max(1, CeilDiv(n, per)), MaxGrid), 1, 1}
}

// Aligned returns 1 if all addresses are multiples of 16 bytes, so that a kernel
// can move that much at a time, else 0.
func Aligned(addrs ...uintptr) uint32 {
	for _, a := range addrs {
		if a%16 != 0 {
			return 0
		}
	}
	return 1
}
