package blockq

import (
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// before returns n bytes that end where memory ends.
func before(t *testing.T, n int) unsafe.Pointer {
	const page = 4096
	size := (n + page - 1) / page * page
	mem, err := syscall.Mmap(-1, 0, size+page, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	require.NoError(t, err)
	require.NoError(t, syscall.Mprotect(mem[size:], syscall.PROT_NONE))
	t.Cleanup(func() { require.NoError(t, syscall.Munmap(mem)) })
	return unsafe.Pointer(&mem[size-n])
}

// TestBounds has operands that end where memory ends.
func TestBounds(t *testing.T) {
	m := (*[256]float32)(before(t, 1024))
	*m = *dynamic(true)
	for _, n := range []int{64, 100, 128, 192, 256, 320} {
		x, codes := unsafe.Slice((*float32)(before(t, 4*n)), n), unsafe.Slice((*uint8)(before(t, n)), n)
		copy(x, randoms(n, uint64(n)))
		absmax := unsafe.Slice((*float32)(before(t, 4)), 1)
		for tier, k := range Registry.All() {
			for _, e := range shared {
				absmax[0] = k.AbsMax(x)
				k.Encode(codes, x, absmax[0], e)
			}
			k.Decode(x, codes, m, absmax, n)
			k.DecodeStream(x, codes, m, absmax, n)
			require.False(t, x[0] != x[0], "%v", tier)
		}
	}
}
