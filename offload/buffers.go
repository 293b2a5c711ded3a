package offload

import "unsafe"

// alignment of page memory, a cache line and a vector register of AVX-512, and that
// of memory which direct I/O reads and writes.
const (
	alignment       = 64
	directAlignment = slotAlign
)

// buffers hands out page memory and accounts for it. Memory that is given back
// is kept for the next page of that size, so that pages of one size pass
// through without work for the garbage collector.
type buffers struct {
	limit int64 // 0 for none; then nothing is kept
	align int   // of the memory and of its length
	used  int64
	idle  int64 // bytes of free
	peak  int64
	free  map[int][][]byte // by size
}

// roundUp returns n rounded up to a multiple of align, a power of two.
func roundUp[T int | int64](n, align T) T { return (n + align - 1) &^ (align - 1) }

// bytes returns what is in host memory.
func (b *buffers) bytes() int64 { return b.used + b.idle }

// room returns what a page of size bytes takes.
func (b *buffers) room(size int64) int64 { return roundUp(size, int64(b.align)) }

// fits reports whether a page of size bytes has room without an eviction.
func (b *buffers) fits(size int64) bool {
	return b.limit == 0 || b.used+b.room(size) <= b.limit
}

// take returns memory with arbitrary contents for a page that fits.
func (b *buffers) take(size int) []byte {
	n := int(b.room(int64(size)))
	b.used += int64(n)
	if list := b.free[n]; len(list) > 0 {
		last := len(list) - 1
		buf := list[last]
		list[last], b.free[n] = nil, list[:last]
		b.idle -= int64(n)
		return buf[:size]
	}
	for other, list := range b.free {
		for len(list) > 0 && b.bytes() > b.limit {
			list[len(list)-1] = nil
			list = list[:len(list)-1]
			b.idle -= int64(other)
		}
		b.free[other] = list
	}
	b.peak = max(b.peak, b.bytes())
	mem := make([]byte, n+b.align-1)
	off := -uintptr(unsafe.Pointer(unsafe.SliceData(mem))) & uintptr(b.align-1)
	return mem[off : int(off)+size : int(off)+n]
}

// give takes back what take returned.
func (b *buffers) give(buf []byte) {
	n := cap(buf)
	b.used -= int64(n)
	if b.limit == 0 || n == 0 {
		return
	}
	if b.free == nil {
		b.free = map[int][][]byte{}
	}
	b.free[n] = append(b.free[n], buf)
	b.idle += int64(n)
}

// reset forgets all memory.
func (b *buffers) reset() { b.used, b.idle, b.free = 0, 0, nil }
