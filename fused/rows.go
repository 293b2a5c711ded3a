package fused

import (
	"unsafe"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/half"
	"github.com/snug-ml/snug/internal/vexp"
)

// itemLen is about how many elements an item of a parallel loop covers.
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
	next := v.Mem().Bytes()[(lo+len(buf))*v.DType().Size():]
	vexp.Registry.Best().Prefetch(next[:min(len(next), len(buf)*v.DType().Size())])
	return buf
}

// target returns where to compute len(buf) elements of v from lo, for store to
// finish: v's own memory when it holds float32, else buf.
func target(buf []float32, v snug.View, lo int) []float32 {
	if v.DType() == snug.F32 {
		return v.Float32s()[lo:][:len(buf)]
	}
	return buf
}

// aside is target for kernels that wait for memory. When v holds float32 and is
// so large that caches would not hold it until it is read, it returns buf, from
// which store writes around the caches. The item ends with finish.
func aside(buf []float32, v snug.View, lo int) []float32 {
	if v.Bytes() >= half.StreamBytes {
		return buf
	}
	return target(buf, v, lo)
}

// store finishes what target or aside began.
func store(v snug.View, lo int, row []float32) {
	if v.DType() != snug.F32 {
		half.Store(v, lo, row)
		return
	}
	if to := v.Float32s()[lo:][:len(row)]; unsafe.SliceData(to) != unsafe.SliceData(row) {
		vexp.Registry.Best().Stream(to, row)
	}
}

// finish ends an item: it gives its buffer back and lets other goroutines see what
// was written around the caches.
func finish(buf *[]float32) {
	scratch.Put(buf)
	vexp.Registry.Best().Fence()
}

// gradient returns where to compute len(buf) elements of the gradient of v from
// lo, for accumulate to finish: their own place when they overwrite it as they
// are, else buf.
func (o Into) gradient(buf []float32, v snug.View, lo int) []float32 {
	if o.overwrites() {
		return aside(buf, v, lo)
	}
	return buf
}

// accumulate computes v[lo:] = Beta·v[lo:] + Alpha·g for the g that gradient
// placed, with buf for the conversion of v.
func (o Into) accumulate(v snug.View, lo int, g, buf []float32) {
	if o.overwrites() {
		store(v, lo, g)
		return
	}
	acc := aside(buf, v, lo)
	if o.Beta != 0 {
		acc = load(buf, v, lo)
	}
	o.apply(acc, g)
	store(v, lo, acc)
}
