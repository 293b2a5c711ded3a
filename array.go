package snug

import (
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"unsafe"

	"github.com/snug-ml/snug/internal/driver"
)

// Array is a vector of T in a device's memory. Copying the value copies the
// handle, not the elements. The zero Array is empty.
type Array[T Element] struct {
	buf *buffer
	off int // elements from the start of buf
	n   int
}

// buffer is the memory that arrays share.
type buffer struct {
	dev     *Device
	mem     driver.Mem
	foreign bool // wrapped, not ours to free
	closed  atomic.Bool
}

// Make allocates n zeroed elements on dev. It costs n·sizeof(T) bytes there.
// Errors: [ErrShape] for a negative or overflowing length, [ErrDevice], and
// [ErrNoMemory] when a device is full, or for a length on the CPU that Go cannot
// address. When the system refuses memory on the CPU, the process ends, as it does with
// make.
func Make[T Element](dev *Device, n int) (Array[T], error) {
	size := int(unsafe.Sizeof(*new(T)))
	if n < 0 || n > math.MaxInt/size {
		return Array[T]{}, fmt.Errorf("snug: make an array of %d elements: %w", n, ErrShape)
	}
	if err := dev.check(); err != nil {
		return Array[T]{}, err
	}
	if n == 0 {
		return Array[T]{buf: &buffer{dev: dev}}, nil
	}
	if dev.IsCPU() {
		s, err := makeSlice[T](n)
		if err != nil {
			return Array[T]{}, err
		}
		return Array[T]{buf: &buffer{dev: dev, mem: SliceView(s).mem}, n: n}, nil
	}
	mem, err := dev.queue.Alloc(n * size)
	if err != nil {
		return Array[T]{}, fmt.Errorf("snug: make an array of %d %s on %s: %w", n, DTypeOf[T](), dev.queue.Name, err)
	}
	return Array[T]{buf: &buffer{dev: dev, mem: mem}, n: n}, nil
}

// Large vectors begin a page of memory after an address that Go gives. Otherwise vectors of 256 MiB, which
// Go puts one after another, would lie a multiple of 256 MiB apart: of lines with such a distance the first-level
// cache of AMD's processors keeps one only, and loops over such vectors took 1.2 to 1.7 times as long on a Zen 4.
const (
	large = 16 << 20 // bytes
	lead  = 1 << 12
)

// makeSlice is make with an error for a length that Go cannot address.
func makeSlice[T Element](n int) (s []T, err error) {
	defer func() {
		if recover() != nil {
			err = fmt.Errorf("snug: make an array of %d %s on the cpu: %w", n, DTypeOf[T](), ErrNoMemory)
		}
	}()
	size := int(unsafe.Sizeof(*new(T)))
	if n < large/size {
		return make([]T, n), nil
	}
	skip := lead / size
	return make([]T, skip+n)[skip:], nil
}

// Wrap makes an Array of n elements at an address in dev's memory that another
// library owns: a CUDA device pointer, or, where memory is not named by addresses,
// a handle, such as the id of an MTLBuffer. Close does not free it. The caller
// keeps the memory alive until then. On the CPU use a slice, or [FromSlice].
//
// Errors: [ErrShape] for a negative or overflowing length, or one beyond the handle's
// buffer, [ErrConfig] for an address that is 0, not a multiple of sizeof(T) or too close
// to the end of the address space, [ErrDevice].
func Wrap[T Element](dev *Device, addr uintptr, n int) (Array[T], error) {
	size := int(unsafe.Sizeof(*new(T)))
	if n < 0 || n > math.MaxInt/size {
		return Array[T]{}, fmt.Errorf("snug: wrap an array of %d elements: %w", n, ErrShape)
	}
	if dev.IsCPU() {
		return Array[T]{}, fmt.Errorf("snug: wrap on the cpu: use FromSlice: %w", ErrDevice)
	}
	if err := dev.check(); err != nil {
		return Array[T]{}, err
	}
	if w, ok := dev.queue.Driver.(driver.Wrapper); ok {
		return wrapHandle[T](dev, w, addr, n)
	}
	mem := driver.Mem{Addr: addr, Size: n * size}
	if addr == 0 || addr%uintptr(size) != 0 || addr > math.MaxUint-uintptr(mem.Size) {
		return Array[T]{}, fmt.Errorf("snug: wrap %d bytes at the address %#x: want a non-zero multiple of %d, and an end that is an address: %w", mem.Size, addr, size, ErrConfig)
	}
	return Array[T]{buf: &buffer{dev: dev, mem: mem, foreign: true}, n: n}, nil
}

// wrapHandle wraps the first n elements of a buffer.
func wrapHandle[T Element](dev *Device, w driver.Wrapper, handle uintptr, n int) (Array[T], error) {
	mem, err := w.WrapBuffer(handle)
	if err != nil {
		return Array[T]{}, fmt.Errorf("snug: wrap an array on %s: %w", dev, err)
	}
	if size := n * DTypeOf[T]().Size(); mem.Size < size {
		err := fmt.Errorf("snug: wrap %d elements, %d bytes, of a buffer of %d on %s: %w", n, size, mem.Size, dev, ErrShape)
		return Array[T]{}, errors.Join(err, w.Free(mem))
	}
	return Array[T]{buf: &buffer{dev: dev, mem: mem}, n: n}, nil
}

// FromSlice makes a CPU Array that shares the memory of s.
func FromSlice[T Element](s []T) Array[T] {
	return Array[T]{buf: &buffer{dev: cpu, mem: SliceView(s).mem}, n: len(s)}
}

// Len returns the number of elements.
func (a Array[T]) Len() int { return a.n }

// Device returns the device of a; the CPU for the zero Array.
func (a Array[T]) Device() *Device {
	if a.buf == nil {
		return cpu
	}
	return a.buf.dev
}

// View returns a with its element type erased. The View of a closed array is
// empty.
func (a Array[T]) View() View {
	v := View{dtype: DTypeOf[T](), dev: a.Device()}
	if a.buf == nil || a.buf.closed.Load() {
		return v
	}
	size := v.dtype.Size()
	v.mem, v.n = a.buf.mem.Slice(a.off*size, a.n*size), a.n
	return v
}

// Addr returns the device's address of the first element, 0 on the CPU.
func (a Array[T]) Addr() uintptr { return a.View().mem.Addr }

// Host returns the elements as a slice where Go can address the memory (the
// CPU, unified memory), nil elsewhere. On a device other than the CPU call
// [Device.Sync] before reading.
func (a Array[T]) Host() []T { return Host[T](a.View()) }

// Slice returns elements lo to hi-1, sharing memory with a. The error wraps
// [ErrShape].
func (a Array[T]) Slice(lo, hi int) (Array[T], error) {
	if lo < 0 || hi < lo || hi > a.n {
		return Array[T]{}, fmt.Errorf("snug: range %d:%d of an array of %d elements: %w", lo, hi, a.n, ErrShape)
	}
	a.off, a.n = a.off+lo, hi-lo
	return a, nil
}

// CopyIn copies src into the first len(src) elements of a. src may be reused
// when it returns. The error wraps [ErrShape] when src is longer than a.
func (a Array[T]) CopyIn(src []T) error {
	return a.transfer(len(src), "in", func(v View) error {
		if h := Host[T](v); a.buf.dev.IsCPU() {
			copy(h, src)
			return nil
		}
		return a.buf.dev.queue.CopyIn(v.mem, SliceView(src).mem.Bytes())
	})
}

// CopyOut copies the first len(dst) elements of a into dst, after all work
// queued on the device. The error wraps [ErrShape] when dst is longer than a.
func (a Array[T]) CopyOut(dst []T) error {
	return a.transfer(len(dst), "out", func(v View) error {
		if h := Host[T](v); a.buf.dev.IsCPU() {
			copy(dst, h)
			return nil
		}
		return a.buf.dev.queue.CopyOut(SliceView(dst).mem.Bytes(), v.mem)
	})
}

func (a Array[T]) transfer(n int, way string, do func(View) error) error {
	if n > a.n {
		return fmt.Errorf("snug: copy %d elements %s of an array of %d: %w", n, way, a.n, ErrShape)
	}
	if n == 0 {
		return nil
	}
	if err := a.buf.usable(); err != nil {
		return err
	}
	v, err := a.View().Slice(0, n)
	if err != nil {
		return err
	}
	return do(v)
}

// Close frees the memory of the whole allocation, also when a is a part of it.
// Closing twice does nothing. Memory of a device is freed by Close or by
// [Device.Close], never by the garbage collector.
func (a Array[T]) Close() error {
	if a.buf == nil || a.buf.closed.Swap(true) {
		return nil
	}
	mem := a.buf.mem
	a.buf.mem = driver.Mem{}
	if a.buf.dev.IsCPU() || a.buf.foreign || mem.Size == 0 || a.buf.dev.queue.Closed.Load() {
		return nil
	}
	return a.buf.dev.queue.Free(mem)
}

func (b *buffer) usable() error {
	if b.closed.Load() {
		return fmt.Errorf("snug: the array is closed: %w", ErrDevice)
	}
	return b.dev.check()
}
