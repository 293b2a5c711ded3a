package fused

import (
	"unsafe"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/half"
	"github.com/snug-ml/snug/internal/rowwise"
)

// itemLen is about how many elements an item of a parallel loop covers: with helpers that wait for the next loop, two
// cores of a Zen 4 take 55 to 80 % of the time of one for 64 Ki elements.
const itemLen = 32 << 10

// blockCols is how many columns a loop over rows does at a time, so that the
// rows that it converts, and those that it reads again, stay in the first-level
// cache.
const blockCols = 2048

// itemRows returns how many rows of cols elements an item covers.
func itemRows(cols int) int { return max(1, itemLen/cols) }

// scratch holds the rows that a worker converts to float32.
var scratch cpu.Scratch

// cut returns row i of a buffer of rows of n elements.
func cut(buf *[]float32, i, n int) []float32 { return (*buf)[i*n:][:n] }

// span returns n elements of v from lo, a range that the caller has checked.
func span(v snug.View, lo, n int) snug.View {
	v, _ = v.Slice(lo, lo+n)
	return v
}

// load returns len(buf) elements of v from lo: v's own memory when it holds
// float32, else buf, filled. The elements after them, which are likely to be
// next, are on their way into the caches then; float32 kernels see to that
// themselves.
func load(buf []float32, v snug.View, lo int) []float32 {
	if v.DType() == snug.F32 {
		return v.Float32s()[lo:][:len(buf)]
	}
	half.Load(buf, v, lo)
	next := device.Mem(&v).Bytes()[(lo+len(buf))*v.DType().Size():]
	rowwise.Registry.Best().Prefetch(next[:min(len(next), len(buf)*v.DType().Size())])
	return buf
}

// pageRows is how many rows of cols elements like those of v reach a page ahead: the processor itself fetches ahead
// within pages only.
func pageRows(v snug.View, cols int) int { return cpu.Chunks(4096, cols*v.DType().Size()) }

// target returns where to compute len(buf) elements of v from lo, for store to
// finish: v's own memory when it holds float32, else buf.
func target(buf []float32, v snug.View, lo int) []float32 {
	if v.DType() == snug.F32 {
		return v.Float32s()[lo:][:len(buf)]
	}
	return buf
}

// targetInto is target for the gradient of v, which a loop adds to what is there.
func targetInto(o snug.Into, buf []float32, v snug.View, lo int) []float32 {
	if o.Beta != 0 {
		return load(buf, v, lo)
	}
	return target(buf, v, lo)
}

// store finishes what target began.
func store(v snug.View, lo int, row []float32) {
	switch {
	case v.DType() == snug.F32:
	case streams(v):
		half.StoreStream(v, lo, row)
	default:
		half.Store(v, lo, row)
	}
}

// streams reports whether out is so large that caches would not hold it until it is read, so that it is written around
// them. The item ends with finish then. Where out is one of the operands that are read, the caches have its lines
// anyway, and writing around them would be slower: on Zen 4 45 GB/s instead of 54.
func streams(out snug.View, read ...snug.View) bool {
	if out.Bytes() < half.StreamBytes {
		return false
	}
	for _, v := range read {
		if device.Mem(&v).Host == device.Mem(&out).Host {
			return false
		}
	}
	return true
}

// streams32 is streams for what a float32 loop writes, which for other types is a
// buffer.
func streams32(out snug.View, read ...snug.View) bool {
	return out.DType() == snug.F32 && streams(out, read...)
}

// finish ends an item: it gives its buffer back and lets other goroutines see what
// was written around the caches.
func finish(buf *[]float32) {
	scratch.Put(buf)
	rowwise.Registry.Best().Fence()
}

// direct returns the loops that read and write bfloat16, when v holds it and
// there are any.
func direct(v snug.View) *rowwise.Layers[uint16] {
	if v.DType() != snug.BF16 {
		return nil
	}
	return rowwise.BF16.Best()
}

// order returns the function that puts sums over rows of v in order, nil if they are in
// order.
func order(v snug.View) func(dst, src []float32) {
	if k := direct(v); k != nil {
		return k.Order
	}
	return nil
}

// bits returns elements lo to hi-1 of v, which holds bfloat16.
func bits(v snug.View, lo, hi int) []uint16 {
	x := v.BFloat16s()[lo:hi]
	return unsafe.Slice((*uint16)(unsafe.SliceData(x)), len(x))
}
