package offload

import (
	"fmt"
	"unsafe"

	"github.com/snug-ml/snug"
)

// alignment is the alignment of page memory, a cache line and a vector register of
// AVX-512. directAlignment is the alignment of memory for direct I/O.
const (
	alignment       = 64
	directAlignment = slotAlign
)

// mapBytes is the minimum size of a page whose memory comes from the system and not from
// Go's heap. In the heap the collector would hold the same memory again for later, and
// old pages of one size in addition to new pages of another.
const mapBytes = 64 << 10

// buffers hands out page memory and accounts for it. Memory that is given back is kept
// for the next page of the same size.
type buffers struct {
	limit int64 // 0 means no limit; then nothing is kept
	align int   // alignment of the memory and of its length
	used  int64
	idle  int64 // bytes of free
	peak  int64
	free  map[int][][]byte // by size

	refuse func(size int) bool // for tests: the system refuses memory of this size
}

// roundUp returns n rounded up to a multiple of align, a power of two.
func roundUp[T int | int64](n, align T) T { return (n + align - 1) &^ (align - 1) }

// bytes returns the bytes in host memory.
func (b *buffers) bytes() int64 { return b.used + b.idle }

// rounded returns the bytes of memory that a page of size bytes takes.
func (b *buffers) rounded(size int64) int64 {
	if size >= mapBytes {
		return roundUp(size, slotAlign)
	}
	return roundUp(size, int64(b.align))
}

// fits reports whether a page of size bytes fits without an eviction.
func (b *buffers) fits(size int64) bool {
	return b.limit == 0 || b.used+b.rounded(size) <= b.limit
}

// take returns memory with arbitrary contents for a page that fits. If the system has no
// memory, the limit becomes three quarters of the bytes in memory, so that other pages
// are evicted for this page and for the rest of the process; the error wraps
// [snug.ErrNoMemory].
func (b *buffers) take(size int) ([]byte, error) {
	n := int(b.rounded(int64(size)))
	if list := b.free[n]; len(list) > 0 {
		last := len(list) - 1
		buf := list[last]
		list[last], b.free[n] = nil, list[:last]
		b.idle -= int64(n)
		b.used += int64(n)
		return buf[:size], nil
	}
	b.trim(b.limit - int64(n))
	buf := b.obtain(n)
	if buf == nil {
		b.trim(0)
		if buf = b.obtain(n); buf == nil {
			b.limit = max(int64(n), b.used-b.used/4)
			return nil, fmt.Errorf("offload: the system has no memory for a page of %d bytes in addition to %d: %w", n, b.used, snug.ErrNoMemory)
		}
	}
	b.used += int64(n)
	b.peak = max(b.peak, b.bytes())
	return buf[:size], nil
}

// obtain returns new memory of n bytes, nil if the system has none.
func (b *buffers) obtain(n int) []byte {
	switch {
	case b.refuse != nil && b.refuse(n):
		return nil
	case n >= mapBytes:
		return mapMemory(n)
	}
	return heapMemory(n, b.align)
}

// heapMemory returns n bytes of Go's heap at a multiple of align.
func heapMemory(n, align int) []byte {
	mem := make([]byte, n+align-1)
	off := int(-uintptr(unsafe.Pointer(unsafe.SliceData(mem))) & uintptr(align-1))
	return mem[off : off+n : off+n]
}

// drop gives memory back to the system or to Go's heap.
func (b *buffers) drop(buf []byte) {
	if cap(buf) >= mapBytes { // as obtain did
		unmapMemory(buf[:cap(buf)])
	}
}

// trim drops idle memory until at most limit bytes are held, or no idle memory is left.
func (b *buffers) trim(limit int64) {
	for n, list := range b.free {
		for len(list) > 0 && b.bytes() > limit {
			last := len(list) - 1
			b.drop(list[last])
			list[last], list = nil, list[:last]
			b.idle -= int64(n)
		}
		b.free[n] = list
	}
}

// give takes back what take returned.
func (b *buffers) give(buf []byte) {
	n := cap(buf)
	b.used -= int64(n)
	switch {
	case n == 0:
		return
	case b.limit == 0:
		b.drop(buf)
		return
	}
	if b.free == nil {
		b.free = map[int][][]byte{}
	}
	b.free[n] = append(b.free[n], buf[:n])
	b.idle += int64(n)
	b.trim(b.limit) // the limit may have fallen
}

// reset forgets all memory, and drops the idle memory.
func (b *buffers) reset() {
	b.trim(0)
	b.used, b.idle, b.free = 0, 0, nil
}
