package snug

import (
	"fmt"
)

// Copy copies src to dst, two vectors of one element type and length on any devices:
//
//   - from the host to a device: src may be reused when Copy returns;
//   - from a device to the host: Copy waits for the work queued there;
//   - on one device: the copy is queued;
//   - between two devices: the copy goes through 1 MiB of host memory, and Copy waits.
//
// On the CPU dst and src may overlap; on another device only if they are the same.
//
// Errors, with nothing written: [ErrDType], [ErrShape], [ErrDevice], and
// [ErrConfig] for an overlap on a device.
func Copy[D, S Vector](dst D, src S) error { return copyView(ViewOf(dst), ViewOf(src)) }

func copyView(dst, src View) error {
	if dst.dtype != src.dtype {
		return fmt.Errorf("snug: copy %s to %s: %w", src.dtype, dst.dtype, ErrDType)
	}
	if dst.n != src.n {
		return fmt.Errorf("snug: copy %d elements to %d: %w", src.n, dst.n, ErrShape)
	}
	for _, v := range [...]*View{&dst, &src} {
		if err := v.Device().check(); err != nil {
			return fmt.Errorf("snug: copy: %w", err)
		}
	}
	if dst.n == 0 {
		return nil
	}
	to, from := dst.Device(), src.Device()
	switch {
	case to.IsCPU() && from.IsCPU():
		copy(dst.mem.Bytes(), src.mem.Bytes())
		return nil
	case from.IsCPU():
		return to.queue.CopyIn(dst.mem, src.mem.Bytes())
	case to.IsCPU():
		return from.queue.CopyOut(dst.mem.Bytes(), src.mem)
	case to == from:
		return copyOn(to, dst, src)
	}
	return copyAcross(dst, src)
}

func copyOn(dev *Device, dst, src View) error {
	gap := max(dst.mem.Addr, src.mem.Addr) - min(dst.mem.Addr, src.mem.Addr)
	switch {
	case gap == 0:
		return nil
	case gap < uintptr(dst.Bytes()):
		return fmt.Errorf("snug: copy on %s: dst and src overlap: %w", dev, ErrConfig)
	}
	return dev.queue.Copy(dst.mem, src.mem)
}

// acrossBytes is the host memory that a copy between devices goes through.
const acrossBytes = 1 << 20

func copyAcross(dst, src View) error {
	buf := make([]byte, min(acrossBytes, dst.Bytes()))
	for lo := 0; lo < dst.Bytes(); lo += len(buf) {
		part := buf[:min(len(buf), dst.Bytes()-lo)]
		if err := src.dev.queue.CopyOut(part, src.mem.Slice(lo, len(part))); err != nil {
			return err
		}
		if err := dst.dev.queue.CopyIn(dst.mem.Slice(lo, len(part)), part); err != nil {
			return err
		}
	}
	return nil
}

// MakeView is [Make] for an element type that is known at run time only. free
// gives the memory back. On the CPU the garbage collector frees it, and free does
// nothing.
func MakeView(dev *Device, dt DType, n int) (v View, free func() error, err error) {
	switch dt {
	case F32:
		return makeView[float32](dev, n)
	case F16:
		return makeView[Float16](dev, n)
	case BF16:
		return makeView[BFloat16](dev, n)
	case U8:
		return makeView[uint8](dev, n)
	case I32:
		return makeView[int32](dev, n)
	case F8E4M3:
		return makeView[Float8E4M3](dev, n)
	case F8E5M2:
		return makeView[Float8E5M2](dev, n)
	}
	return View{}, nil, fmt.Errorf("snug: make a vector of element type %d: %w", dt, ErrDType)
}

func makeView[T Element](dev *Device, n int) (View, func() error, error) {
	a, err := Make[T](dev, n)
	if err != nil {
		return View{}, nil, err
	}
	return a.View(), a.Close, nil
}
