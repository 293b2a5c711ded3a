package amp

import (
	"errors"
	"unsafe"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
)

// This file is what Master does where the weights or the parameter lie on a device
// other than the CPU.

// reserve makes the memory of p on the device of the masters.
func (m *Master) reserve(p *masterParam) (err error) {
	if m.stored() {
		return nil
	}
	kept := masterForms[m.form].kept
	p.there, p.free, err = snug.MakeView(m.dev, kept, m.form.bytes(p.n)/kept.Size())
	return err
}

// close frees what reserve made.
func (p *masterParam) close() error {
	if p.free == nil {
		return nil
	}
	return p.free()
}

func closeAll(params map[string]*masterParam) error {
	var errs []error
	for _, p := range params {
		errs = append(errs, p.close())
	}
	return errors.Join(errs...)
}

// hostPiece is the most that goes between the host and the device of the masters at
// a time, in float32.
const hostPiece = 1 << 16

// fill calls f with the weights w, from element lo on, in host memory.
func (m *Master) fill(lo int, w snug.View, f func(lo int, w []float32) error) error {
	return m.pieces(w, true, func(at int, v snug.View) error { return f(lo+at, v.Float32s()) })
}

// pieces calls f with v in host memory: with v itself or, on another device, with
// copies of its parts, from element at on, which return there if they are dirty.
func (m *Master) pieces(v snug.View, dirty bool, f func(at int, v snug.View) error) error {
	if v.Device().IsCPU() {
		return f(0, v)
	}
	size := 4 * min(m.chunk, hostPiece) / v.DType().Size()
	for at := 0; at < v.Len(); at += size {
		part, err := v.Slice(at, min(at+size, v.Len()))
		if err != nil {
			return err
		}
		host := m.onHost(part.DType(), part.Len())
		if err := snug.Copy(host, part); err != nil {
			return err
		}
		if err := f(at, host); err != nil {
			return err
		}
		if !dirty {
			continue
		}
		if err := snug.Copy(part, host); err != nil {
			return err
		}
	}
	return nil
}

// onHost returns host memory of n elements, which the next call gives again.
func (m *Master) onHost(dt snug.DType, n int) snug.View {
	if words := cpu.Chunks(n*dt.Size(), 4); len(m.host) < words {
		m.host = make([]float32, words)
	}
	switch dt {
	case snug.F16:
		return snug.SliceView(asType[snug.Float16](m.host, n))
	case snug.BF16:
		return snug.SliceView(asType[snug.BFloat16](m.host, n))
	case snug.U8:
		return snug.SliceView(asType[uint8](m.host, n))
	}
	return snug.SliceView(m.host[:n])
}

// asType returns the first n elements of type T in the memory of x.
func asType[T snug.Element](x []float32, n int) []T {
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(x))), n)
}
