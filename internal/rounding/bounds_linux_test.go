package rounding

import (
	"os"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/philox"
)

// alone returns a vector that fills whole pages, with no memory before and after them, so
// that reading or writing there ends the test.
func alone[T snug.Element](t *testing.T, n int) []T {
	page, size := os.Getpagesize(), n*int(unsafe.Sizeof(*new(T)))
	require.Zero(t, size%page)
	mem, err := syscall.Mmap(-1, 0, size+2*page, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	require.NoError(t, err)
	t.Cleanup(func() { syscall.Munmap(mem) })
	require.NoError(t, syscall.Mprotect(mem[:page], syscall.PROT_NONE))
	require.NoError(t, syscall.Mprotect(mem[page+size:], syscall.PROT_NONE))
	return unsafe.Slice((*T)(unsafe.Pointer(&mem[page])), n)
}

// No operand is read or written beyond its ends.
func TestStaysWithinOperands(t *testing.T) {
	n := 4 * os.Getpagesize()
	dst, src := alone[snug.BFloat16](t, n), alone[float32](t, n)
	gradients := []snug.View{snug.ViewOf(src), snug.ViewOf(alone[snug.Float16](t, n)), snug.ViewOf(alone[snug.BFloat16](t, n))}
	d := Draws{Stream: philox.Stream{Seed: 1}}
	for _, k := range Registry.All() {
		for _, cut := range [][2]int{{0, n}, {8, n}, {0, n - 1}, {33, n - 35}, {n - 129, n}, {0, 127}} {
			lo, hi := cut[0], cut[1]
			d.store(snug.ViewOf(dst), lo, src[lo:hi], k.BF16)
			d.store(snug.ViewOf(dst), lo, src[lo:hi], k.BF16Stream)
			for _, g := range gradients {
				d.accumulate(k, dst[lo:hi], g, lo, 1, 1)
			}
		}
	}
}
