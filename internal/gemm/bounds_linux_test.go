package gemm

import (
	"math/rand/v2"
	"os"
	"syscall"
	"testing"
	"unsafe"

	"github.com/snug-ml/snug"
	"github.com/stretchr/testify/require"
)

// endOfMemory returns a vector that ends where no memory follows, so that
// reading beyond it ends the test.
func endOfMemory[T snug.Element](t *testing.T, n int) []T {
	page := os.Getpagesize()
	mem, err := syscall.Mmap(-1, 0, 17*page, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	require.NoError(t, err)
	t.Cleanup(func() { syscall.Munmap(mem) })
	require.NoError(t, syscall.Mprotect(mem[16*page:], syscall.PROT_NONE))
	all := unsafe.Slice((*T)(unsafe.Pointer(&mem[0])), 16*page/int(unsafe.Sizeof(*new(T))))
	require.LessOrEqual(t, n, len(all))
	return all[len(all)-n:]
}

// No operand is read or written beyond its last element.
func TestStaysWithinOperands(t *testing.T) {
	rng := rand.New(rand.NewPCG(11, 12))
	for i := range 200 {
		m, n, k := 1+rng.IntN(60), 1+rng.IntN(60), 1+rng.IntN(60)
		if i%5 == 0 {
			n, k = skinny+1+rng.IntN(9), nearRows+1+rng.IntN(40) // A is packed
		}
		operand := func(rows, cols int, trans bool) Matrix {
			if trans {
				rows, cols = cols, rows
			}
			v := [...]func() snug.View{
				func() snug.View { return snug.ViewOf(endOfMemory[float32](t, rows*cols)) },
				func() snug.View { return snug.ViewOf(endOfMemory[snug.Float16](t, rows*cols)) },
				func() snug.View { return snug.ViewOf(endOfMemory[snug.BFloat16](t, rows*cols)) },
			}
			if i%4 == 0 {
				return Matrix{v[2](), cols, trans} // products of bfloat16 are packed in another way
			}
			return Matrix{v[rng.IntN(3)](), cols, trans}
		}
		a, b, c := operand(m, k, rng.IntN(2) == 0), operand(k, n, rng.IntN(2) == 0), operand(m, n, false)
		for _, kern := range Registry.All() {
			g := newArgs(kern, m, n, k, 1, a, b, 1, c)
			g.serial()
		}
	}
}
