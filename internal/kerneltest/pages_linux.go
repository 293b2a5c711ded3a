package kerneltest

import (
	"os"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// Alone returns a vector that fills whole pages, with no memory before and after them, so
// that reading or writing there ends the test.
func Alone[T any](t testing.TB, n int) []T {
	page, size := os.Getpagesize(), n*int(unsafe.Sizeof(*new(T)))
	require.Zero(t, size%page)
	mem, err := syscall.Mmap(-1, 0, size+2*page, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	require.NoError(t, err)
	t.Cleanup(func() { syscall.Munmap(mem) })
	require.NoError(t, syscall.Mprotect(mem[:page], syscall.PROT_NONE))
	require.NoError(t, syscall.Mprotect(mem[page+size:], syscall.PROT_NONE))
	return unsafe.Slice((*T)(unsafe.Pointer(&mem[page])), n)
}

// Cuts are pieces of vectors of n elements, at least 2048, which begin or end where the vectors do: [Alone] shows
// whether a loop over them stays within. They have whole steps of all loops, parts of them, and few elements.
func Cuts(n int) [][2]int {
	return [][2]int{{0, n}, {8, n}, {0, n - 1}, {33, n - 35}, {n - 129, n}, {n - 1025, n}, {0, 127}, {0, 1}, {n - 15, n}, {n, n}}
}
