//go:build cuda || hip

package cuda

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"unsafe"

	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/gpu"
)

// kernels are the loaded modules and their functions.
type kernels struct {
	mu        sync.RWMutex
	modules   map[*gpu.Module]*module
	functions map[kernel]uintptr
	whole     map[*gpu.Module]bool // whether all entries of a module that stands in for another load
}

// module is a module of kernels on the device. mu is held while it is loaded.
type module struct {
	mu     sync.Mutex
	handle uintptr         // of machine code; 0 until it is loaded
	parts  map[int]uintptr // of PTX, by their numbers
	code   []byte          // of HIP, which reads it until the module is unloaded
}

type kernel struct {
	module *gpu.Module
	name   string
}

// Launch queues a job: the launches of its Grids.
func (d *Device) Launch(j driver.Job) error { return gpu.Run(j, d) }

// HasDoubles implements [driver.Doubler].
func (d *Device) HasDoubles() bool { return true }

// TakesAddresses implements [driver.Addresser].
func (d *Device) TakesAddresses() bool { return true }

// Launches implements [driver.LaunchCounter].
func (d *Device) Launches() int64 { return d.launches.Load() }

// LaunchGrid queues one grid. It allocates nothing once its function is known.
// Operands of size 0 are null pointers for the kernel.
func (d *Device) LaunchGrid(l *gpu.Launch) error {
	if err := checkGrid(l, d.api.vendor.gridThreads); err != nil {
		return fmt.Errorf("%v: %s: %w", d, l.Func, err)
	}
	if err := d.enter(); err != nil {
		return err
	}
	defer d.leave()
	function, err := d.function(l)
	if err != nil {
		return err
	}
	f, err := d.frame()
	if err != nil {
		return err
	}
	defer d.putFrame(f)
	if err := d.encodeMaps(f, l.Maps); err != nil {
		return fmt.Errorf("%s: %w", l.Func, err)
	}
	f.pack(l)
	params, extra := unsafe.Pointer(nil), unsafe.Pointer(&f.extra)
	if len(l.Maps) > 0 {
		params, extra = unsafe.Pointer(&f.params), nil
	}
	r := d.api.launchKernel(function, uint32(l.Blocks[0]), uint32(l.Blocks[1]), uint32(l.Blocks[2]),
		uint32(l.Threads), 1, 1, uint32(l.Shared), d.queue, params, extra)
	if r == success {
		d.launches.Add(1)
		return nil
	}
	return fmt.Errorf("%s of %v blocks of %d threads: %w", l.Func, l.Blocks, l.Threads, d.fail("cuLaunchKernel", r))
}

// maxArgs is the most bytes of arguments that all drivers take.
const maxArgs = 4096

// checkGrid checks what the driver would refuse or, worse, not see.
func checkGrid(l *gpu.Launch, gridThreads uint64) error {
	limits := [3]int{1<<31 - 1, 1<<16 - 1, 1<<16 - 1}
	for i, n := range l.Blocks {
		if n < 1 || n > limits[i] {
			return fmt.Errorf("grid of %v blocks: want 1 to %v: %w", l.Blocks, limits, driver.ErrDevice)
		}
	}
	if l.Threads < 32 || l.Threads > 1024 || l.Threads%32 != 0 {
		return fmt.Errorf("blocks of %d threads: want a multiple of 32 up to 1024: %w", l.Threads, driver.ErrDevice)
	}
	if n := uint64(l.Blocks[0]) * uint64(l.Threads); gridThreads > 0 && n > gridThreads {
		return fmt.Errorf("a grid of %d threads: want at most %d: %w", n, gridThreads, driver.ErrDevice)
	}
	if n := mapBytes*len(l.Maps) + 8*len(l.Operands) + len(l.Params); n > maxArgs {
		return fmt.Errorf("%d bytes of arguments: want at most %d: %w", n, maxArgs, driver.ErrDevice)
	}
	if n := len(l.Maps) + len(l.Operands) + 1; len(l.Maps) > 0 && n > maxParams {
		return fmt.Errorf("%d arguments with tensor maps: want at most %d: %w", n, maxParams, driver.ErrDevice)
	}
	for i := range l.Operands {
		if m := &l.Operands[i]; m.Size > 0 && m.Addr == 0 {
			return fmt.Errorf("operand %d of %d bytes has no address on the device: %w", i, m.Size, driver.ErrDevice)
		}
	}
	return nil
}

// function returns the entry point of a launch, which it loads at first use.
func (d *Device) function(l *gpu.Launch) (uintptr, error) {
	k := &d.kernels
	k.mu.RLock()
	f, ok := k.functions[kernel{l.Module, l.Func}]
	k.mu.RUnlock()
	if ok {
		return f, nil
	}
	return d.load(l)
}

// load finds an entry point and remembers it. All its launches use the same block
// memory. load requests the amount above the size that every device grants.
func (d *Device) load(l *gpu.Launch) (uintptr, error) {
	k := &d.kernels
	k.mu.Lock()
	m := k.modules[l.Module]
	if m == nil {
		m = &module{}
		k.modules[l.Module] = m
	}
	k.mu.Unlock()

	// Not under the lock of kernels: the driver may compile for long, and others launch.
	m.mu.Lock()
	defer m.mu.Unlock()
	handle, err := d.loadModule(m, l)
	if err != nil {
		return 0, err
	}
	var f uintptr
	if err := d.check("cuModuleGetFunction", d.api.moduleFunction(&f, handle, l.Func)); err != nil {
		return 0, fmt.Errorf("%v: the image of %s has no kernel %s: %w", d, l.Module.Name, l.Func, err)
	}
	if l.Shared > 0 {
		if err := d.check("cuFuncSetAttribute", d.api.functionSet(f, functionShared, int32(l.Shared))); err != nil {
			return 0, fmt.Errorf("%v: %d bytes of block memory for %s: %w", d, l.Shared, l.Func, err)
		}
	}
	k.mu.Lock()
	k.functions[kernel{l.Module, l.Func}] = f
	k.mu.Unlock()
	return f, nil
}

// loadModule returns what has the kernel of a launch: the code for the device or, if the driver does
// not take that, a part of the PTX.
func (d *Device) loadModule(m *module, l *gpu.Launch) (uintptr, error) {
	if m.handle != 0 {
		return m.handle, nil
	}
	if m.parts != nil {
		return d.loadPart(m, l)
	}
	v := d.api.vendor
	image := v.image(l.Module)
	if len(image) == 0 {
		return 0, fmt.Errorf("%v: %s has no %s image in this build: %w", d, l.Module.Name, v.title, driver.ErrNotBuilt)
	}
	code, err := v.unpack(d, image)
	if err != nil {
		return 0, fmt.Errorf("%v: the image of %s: %w", d, l.Module.Name, err)
	}
	if code.PTX {
		return d.loadPart(m, l)
	}
	if code.AMD != "" {
		m.code = code.Data
	}
	if m.handle, err = d.loadCode(l.Module, code); err == nil || !d.refused(err) || code.AMD != "" {
		return m.handle, err
	}
	slog.Warn("snug: cuda: the driver does not take machine code", "code", code, "error", err)
	handle, second := d.loadPart(m, l)
	if second != nil {
		return 0, err
	}
	return handle, nil
}

// loadPart returns the part of a module's PTX that has the kernel of a launch.
func (d *Device) loadPart(m *module, l *gpu.Launch) (uintptr, error) {
	code, part, err := gpu.UnpackPTX(l.Module.Image, d.capability, l.Func)
	if err != nil {
		return 0, fmt.Errorf("%v: the image of %s: %w", d, l.Module.Name, err)
	}
	if handle, ok := m.parts[part]; ok {
		return handle, nil
	}
	slog.Info("snug: cuda: the driver compiles kernels, which may take a minute, and keeps them for later runs",
		"module", l.Module.Name, "kernel", l.Func, "capability", d.capability)
	handle, err := d.loadCode(l.Module, code)
	if err != nil {
		return 0, err
	}
	if m.parts == nil {
		m.parts = map[int]uintptr{}
	}
	m.parts[part] = handle
	return handle, nil
}

// refused reports whether an error says that the driver cannot use a code, and the device works on.
func (d *Device) refused(err error) bool {
	var e *Error
	if !errors.As(err, &e) || d.lost.Load() != nil {
		return false
	}
	switch e.Result {
	case errInvalidImage, errNoBinary, errPTXVersion:
		return true
	}
	return false
}

// loadCode loads one code of a module's image.
func (d *Device) loadCode(m *gpu.Module, code gpu.Code) (uintptr, error) {
	var handle uintptr
	r := d.api.moduleLoad(&handle, unsafe.SliceData(code.Data)) // NVIDIA's driver keeps a copy
	switch r {
	case success:
		return handle, nil
	case errNoBinary, errPTXVersion, errNoJITCompiler, errJITDisabled:
		return 0, fmt.Errorf("%v: the driver does not take %v in the image of %s for %s: a newer driver is needed: %w",
			d, code, m.Name, d.model, d.fail("cuModuleLoadData", r))
	default:
		return 0, fmt.Errorf("%v: %v in the image of %s: %w", d, code, m.Name, d.fail("cuModuleLoadData", r))
	}
}

// frame is what the driver reads of one call through pointers. It lies in
// pinned memory of the driver, not in Go's: its fields point at one another, and
// Go must not move what C reaches through a pointer.
type frame struct {
	args  [maxArgs]byte // at a multiple of 64 bytes, as tensor maps must be
	size  uintptr       // of the arguments
	extra [5]uintptr    // the parameter "extra" of cuLaunchKernel
	scale [2]float32    // alpha and beta of cublasLtMatmul
	shape mapShape

	// params is the parameter "kernelParams" of cuLaunchKernel, for launches with tensor
	// maps: the compiler puts these at multiples of 64 bytes of a bank, which is not so of
	// where arguments begin, and only then does the driver know how far in they are.
	params [maxParams]uintptr
	_      [48]byte // to a multiple of 64
}

// maxParams is the most tensor maps, operands and structs of a launch with tensor maps.
const maxParams = 32

// pack writes the arguments as the kernel's parameters lie in C: the tensor maps, which
// are there, the operands' addresses, then the struct, whose offset is a multiple of 8,
// enough for any.
func (f *frame) pack(l *gpu.Launch) {
	n := 0
	for i := range l.Maps {
		f.params[i] = uintptr(unsafe.Pointer(&f.args[n]))
		n += mapBytes
	}
	for i := range l.Operands {
		addr := l.Operands[i].Addr
		if l.Operands[i].Size == 0 {
			addr = 0
		}
		binary.LittleEndian.PutUint64(f.args[n:], uint64(addr))
		if len(l.Maps) > 0 {
			f.params[len(l.Maps)+i] = uintptr(unsafe.Pointer(&f.args[n]))
		}
		n += 8
	}
	if len(l.Maps) > 0 {
		f.params[len(l.Maps)+len(l.Operands)] = uintptr(unsafe.Pointer(&f.args[n]))
	}
	n += copy(f.args[n:], l.Params)
	f.size = uintptr(n)
}

// frameBlock is how many frames are allocated together.
const frameBlock = 32

// frame returns a frame that is not in use.
func (d *Device) frame() (*frame, error) {
	for {
		d.mu.Lock()
		if n := len(d.frames); n > 0 {
			f := d.frames[n-1]
			d.frames = d.frames[:n-1]
			d.mu.Unlock()
			return f, nil
		}
		d.mu.Unlock()
		if err := d.addFrames(); err != nil {
			return nil, err
		}
	}
}

func (d *Device) putFrame(f *frame) {
	d.mu.Lock()
	d.frames = append(d.frames, f)
	d.mu.Unlock()
}

// addFrames allocates frames.
func (d *Device) addFrames() error {
	p, err := d.hostBlock(frameBlock * int(unsafe.Sizeof(frame{})))
	if err != nil {
		return err
	}
	for i := range frameBlock {
		f := (*frame)(unsafe.Add(p, i*int(unsafe.Sizeof(frame{}))))
		f.extra = [5]uintptr{
			launchBuffer, uintptr(unsafe.Pointer(&f.args)),
			launchBufferSize, uintptr(unsafe.Pointer(&f.size)),
			d.api.vendor.launchEnd,
		}
		d.putFrame(f)
	}
	return nil
}
