package limits

import (
	"sync/atomic"
	"unsafe"
)

// sink keeps the compiler from dropping the loops whose result nobody reads.
var sink atomic.Uint64

// fma does 8 multiplications and additions a step, in 8 independent sums.
func fma(steps int) {
	var a, b, c, d, e, f, g, h float32
	x := float32(steps)
	for range steps {
		a = a*x + x
		b = b*x + x
		c = c*x + x
		d = d*x + x
		e = e*x + x
		f = f*x + x
		g = g*x + x
		h = h*x + x
	}
	sink.Store(uint64(a + b + c + d + e + f + g + h))
}

func copyGo(dst, src []byte) { copy(dst, src) }

// inParts makes a loop over a whole vector of one that copies parts at the
// same time, and readInParts of one that reads them.
func inParts(parts int, loop func(dst, src *byte, n, apart int)) copying {
	return func(dst, src []byte) { loop(&dst[0], &src[0], len(src)/parts, len(src)/parts) }
}

func readInParts(parts int, loop func(src *byte, n, apart int)) reading {
	return func(src []byte) { loop(&src[0], len(src)/parts, len(src)/parts) }
}

// read reads src in words of 8 bytes.
func read(src []byte) {
	words := unsafe.Slice((*uint64)(unsafe.Pointer(&src[0])), len(src)/8)
	var a, b, c, d uint64
	for ; len(words) >= 4; words = words[4:] {
		a += words[0]
		b += words[1]
		c += words[2]
		d += words[3]
	}
	sink.Store(a + b + c + d)
}

// aligned allocates n bytes from an address that is a multiple of align.
func aligned(n int) []byte {
	b := make([]byte, n+align)
	skip := -uintptr(unsafe.Pointer(&b[0])) % align
	return b[skip:][:n:n]
}
