package rowwise

import (
	"math/rand/v2"
	"os"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// atEnd returns a copy of x that ends where no memory follows.
func atEnd[T any](t *testing.T, x []T) []T {
	page, size := os.Getpagesize(), len(x)*int(unsafe.Sizeof(*new(T)))
	n := (size/page + 1) * page
	mem, err := syscall.Mmap(-1, 0, n+page, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	require.NoError(t, err)
	t.Cleanup(func() { syscall.Munmap(mem) })
	require.NoError(t, syscall.Mprotect(mem[n:], syscall.PROT_NONE))
	y := unsafe.Slice((*T)(unsafe.Pointer(&mem[n-size])), len(x))
	copy(y, x)
	return y
}

// The loops over tiles touch nothing beyond the last row.
func TestTilesStayWithinOperands(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	for range 60 {
		in := randomTile(rng)
		rows := len(in.Sees)
		tile := in
		tile.X, tile.Sees = atEnd(t, in.X), atEnd(t, in.Sees)
		base, delta, sums, ds := atEnd(t, random(rng, rows)), atEnd(t, random(rng, rows)), atEnd(t, random(rng, rows)), atEnd(t, in.X)
		pieces := (in.Cols + TileCols - 1) / TileCols
		for _, k := range Registry.All() {
			k.MaxRows(sums, tile, 1)
			k.Exp2Rows(sums, tile, 1, base)
			k.GradRows(ds, tile, 1, base, delta, 1)
		}
		for _, k := range Pairs.All() {
			k.Exp2Rows(sums, atEnd(t, make([]uint16, pieces*rows*TileCols)), rows*TileCols, tile, 1, base)
			pairs := func() []float32 { return atEnd(t, make([]float32, 32*in.Stride)) }
			g := PairGrads{
				Masks: atEnd(t, make([]uint32, 32*pieces)), MaskRow: pieces, Next: 1024, NextAcross: 1024,
				DS: atEnd(t, make([]uint16, pieces*1024)), P: atEnd(t, make([]uint16, pieces*1024)), Across: atEnd(t, make([]uint16, pieces*1024)),
			}
			row := atEnd(t, make([]float32, 32))
			k.GradRows(g, pairs(), pairs(), 32, in.Cols, in.Stride, 1, row, row, 1)
		}
	}
}
