package snug

import (
	"fmt"
	"reflect"
	"unsafe"

	"github.com/snug-ml/snug/internal/driver"
)

// Vector is the operand type of snug's functions: a host slice, also of a type that a program
// names, such as type Weights []float32, an array on a device, or a View of either. A []T, for a type
// parameter T, is none: where the element type is chosen at run time, allocate Views with
// [MakeView].
type Vector interface {
	~[]float32 | ~[]Float16 | ~[]BFloat16 |
		Array[float32] | Array[Float16] | Array[BFloat16] | View
}

// Vector32 is a Vector of float32. A View given as one must hold F32.
type Vector32 interface {
	~[]float32 | Array[float32] | View
}

// Vector8 is a vector of bytes: quantized codes, or bit masks. A View given as one must
// hold U8.
type Vector8 interface {
	~[]uint8 | Array[uint8] | View
}

// View is a vector whose element type is known at run time only: a range of
// memory, its element type and its device. It refers to the memory of its
// vector and is valid as long as that memory. The zero View is empty.
type View struct {
	mem   driver.Mem // first, which package device relies on
	n     int
	dtype DType
	dev   *Device
}

// Package device reads and writes these fields.
var (
	_ = [1]struct{}{}[unsafe.Offsetof(View{}.mem)]
	_ = [1]struct{}{}[unsafe.Offsetof(View{}.n)-unsafe.Sizeof(driver.Mem{})]
	_ = [1]struct{}{}[unsafe.Offsetof(View{}.dtype)-unsafe.Sizeof(driver.Mem{})-unsafe.Sizeof(int(0))]
)

// ViewOf returns v with its element type erased. It allocates nothing.
func ViewOf[V Vector](v V) View {
	switch v := any(v).(type) {
	case []float32:
		return SliceView(v)
	case []Float16:
		return SliceView(v)
	case []BFloat16:
		return SliceView(v)
	case Array[float32]:
		return v.View()
	case Array[Float16]:
		return v.View()
	case Array[BFloat16]:
		return v.View()
	case View:
		return v
	}
	return namedSlice(reflect.TypeFor[V]().Elem(), unsafe.Pointer(&v))
}

// ViewOf8 is [ViewOf] for a vector of bytes.
func ViewOf8[V Vector8](v V) View {
	switch v := any(v).(type) {
	case Array[uint8]:
		return v.View()
	case View:
		return v
	}
	return SliceView(*(*[]uint8)(unsafe.Pointer(&v))) // every other Vector8, whatever its name
}

var (
	float32Type = reflect.TypeFor[float32]()
	float16Type = reflect.TypeFor[Float16]()
)

// namedSlice returns a View of a slice of a type that the program names, at slice, whose
// elements are one of the three types of a Vector.
func namedSlice(elem reflect.Type, slice unsafe.Pointer) View {
	switch elem {
	case float32Type:
		return SliceView(*(*[]float32)(slice))
	case float16Type:
		return SliceView(*(*[]Float16)(slice))
	}
	return SliceView(*(*[]BFloat16)(slice))
}

// SliceView returns a View of a host slice of any element type.
func SliceView[T Element](s []T) View {
	var zero T
	return View{
		mem:   driver.Mem{Host: unsafe.Pointer(unsafe.SliceData(s)), Size: len(s) * int(unsafe.Sizeof(zero))},
		n:     len(s),
		dtype: DTypeOf[T](),
		dev:   cpu,
	}
}

// DType returns the element type.
func (v View) DType() DType { return v.dtype }

// Len returns the number of elements.
func (v View) Len() int { return v.n }

// Bytes returns the size in bytes.
func (v View) Bytes() int { return v.n * v.dtype.Size() }

// Device returns where the elements lie; the CPU for an empty View.
func (v View) Device() *Device {
	if v.dev == nil {
		return cpu
	}
	return v.dev
}

// Slice returns elements lo to hi-1 of v. The error wraps [ErrShape].
func (v View) Slice(lo, hi int) (View, error) {
	if lo < 0 || hi < lo || hi > v.n {
		return View{}, fmt.Errorf("snug: range %d:%d of a vector of %d elements: %w", lo, hi, v.n, ErrShape)
	}
	size := v.dtype.Size()
	v.mem, v.n = v.mem.Slice(lo*size, (hi-lo)*size), hi-lo
	return v, nil
}

// Host returns the elements as a slice, or nil if v does not hold T or Go
// cannot address its memory.
func Host[T Element](v View) []T {
	if v.dtype != DTypeOf[T]() || v.mem.Host == nil {
		return nil
	}
	return unsafe.Slice((*T)(v.mem.Host), v.n)
}

// Float32s returns Host[float32](v).
func (v View) Float32s() []float32 { return Host[float32](v) }

// Float16s returns Host[Float16](v).
func (v View) Float16s() []Float16 { return Host[Float16](v) }

// BFloat16s returns Host[BFloat16](v).
func (v View) BFloat16s() []BFloat16 { return Host[BFloat16](v) }

// CommonDevice returns the device on which all views lie. Empty views lie
// anywhere. The error wraps [ErrDevice].
func CommonDevice(views ...View) (*Device, error) {
	var dev *Device
	for i := range views {
		v := &views[i]
		switch {
		case v.n == 0 || v.dev == dev:
		case dev == nil:
			dev = v.dev
		default:
			return nil, fmt.Errorf("snug: operands on %s and on %s: %w", dev.queue.Name, v.Device().Name(), ErrDevice)
		}
	}
	if dev == nil {
		return cpu, nil
	}
	return dev, dev.check()
}
