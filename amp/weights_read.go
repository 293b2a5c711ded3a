package amp

import (
	"encoding/binary"
	"unsafe"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/half"
	"github.com/snug-ml/snug/internal/safetensors"
)

// staged is the number of elements that pass through the host at a time: 256 KiB
// of float32, which the second-level cache holds.
const staged = 1 << 16

// staging are the buffers of that size.
var staging cpu.Scratch

// stagedView returns n elements of a buffer of staging as dt.
func stagedView(buf *[]float32, dt snug.DType, n int) snug.View {
	p := unsafe.Pointer(unsafe.SliceData(*buf))
	switch dt {
	case snug.F16:
		return snug.SliceView(unsafe.Slice((*snug.Float16)(p), n))
	case snug.BF16:
		return snug.SliceView(unsafe.Slice((*snug.BFloat16)(p), n))
	case snug.F8E4M3:
		return snug.SliceView(unsafe.Slice((*snug.Float8E4M3)(p), n))
	case snug.F8E5M2:
		return snug.SliceView(unsafe.Slice((*snug.Float8E5M2)(p), n))
	}
	return snug.SliceView((*buf)[:n])
}

// read reads elements lo and up of a tensor into dst.
func (w *Weights) read(p safetensors.Place, lo int, dst snug.View) error {
	dt := elementType(p.Tensor.DType)
	offset := int64(lo) * int64(dt.Size())
	if dst.Device().IsCPU() && dst.DType() == dt {
		return w.fill(p, dst, offset)
	}
	buf := staging.Get(staged)
	defer staging.Put(buf)
	stream := dst.Bytes() >= half.StreamBytes
	for lo := 0; lo < dst.Len(); lo += staged {
		to, err := dst.Slice(lo, min(lo+staged, dst.Len()))
		if err != nil {
			return err
		}
		piece := stagedView(buf, dt, to.Len())
		if err := w.fill(p, piece, offset+int64(lo)*int64(dt.Size())); err != nil {
			return err
		}
		if err := put(to, piece, stream); err != nil {
			return err
		}
	}
	return nil
}

// fill reads a tensor from byte lo on into a host view of its type.
func (w *Weights) fill(p safetensors.Place, v snug.View, lo int64) error {
	b := device.Mem(&v).Bytes()
	if err := w.set.Read(p, b, lo); err != nil {
		return err
	}
	if bigEndian {
		swap(b, v.DType().Size())
	}
	return nil
}

// put converts a staged piece into dst, on any device, around the caches if stream.
func put(dst, piece snug.View, stream bool) error {
	if dst.Device().IsCPU() {
		job := castJob{dst: dst, src: piece, stream: stream}
		job.Run()
		return nil
	}
	if dst.DType() != piece.DType() {
		buf := staging.Get(staged)
		defer staging.Put(buf)
		converted := stagedView(buf, dst.DType(), dst.Len())
		job := castJob{dst: converted, src: piece}
		job.Run()
		piece = converted
	}
	return snug.Copy(dst, piece)
}

// bigEndian says that the upper half of a number lies before the lower.
var bigEndian = binary.NativeEndian.Uint16([]byte{0, 1}) == 1

// swap reverses the bytes of every element of size bytes: 1, 2 or 4.
func swap(b []byte, size int) {
	if size == 1 {
		return
	}
	for ; len(b) >= size; b = b[size:] {
		if size == 2 {
			b[0], b[1] = b[1], b[0]
		} else {
			binary.BigEndian.PutUint32(b, binary.LittleEndian.Uint32(b))
		}
	}
}
