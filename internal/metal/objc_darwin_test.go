//go:build metal && (arm64 || amd64)

package metal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/gpu"
)

// mac opens the first GPU. It skips the test where kernels cannot run, such as
// in a virtual machine; that the frameworks load is tested everywhere.
func mac(t *testing.T) *device {
	_, err := load()
	require.NoError(t, err)
	b, err := driver.Lookup("metal")
	require.NoError(t, err)
	if _, err := b.Count(); errors.Is(err, driver.ErrDevice) {
		t.Skip(err)
	}
	drv, err := b.Open(0)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, drv.Close()) })
	return drv.(*device)
}

// TestMacCopies copies at every alignment, with blit commands and with the
// driver's kernel, in both directions and beside the work.
func TestMacCopies(t *testing.T) {
	d := mac(t)
	const n = 4099
	m, err := d.Alloc(n)
	require.NoError(t, err)
	got := bytes.Repeat([]byte{1}, n)
	require.NoError(t, d.CopyOut(got, m))
	require.Equal(t, make([]byte, n), got)

	pinned, err := d.AllocPinned(n)
	require.NoError(t, err)
	for off := range 5 {
		want := sequence(n)
		want[0] = byte(off)
		copy(pinned.Bytes(), want)
		fence, err := d.StartCopyIn(m, pinned, nil)
		require.NoError(t, err)
		require.NoError(t, fence.Await())
		require.NoError(t, d.Copy(m.Slice(2000, 0), m.Slice(off, 1001)))
		copy(want[2000:], want[off:off+1001])
		require.NoError(t, d.CopyIn(m.Slice(off, 3), []byte{7, 8, 9}))
		copy(want[off:], []byte{7, 8, 9})
		fence, err = d.StartCopyOut(pinned, m, nil)
		require.NoError(t, err)
		require.NoError(t, fence.Wait())
		require.Equal(t, want, pinned.Bytes())
	}
	require.NoError(t, d.Free(m))
}

// TestMacMatMul multiplies matrices that lie at offsets and in long rows.
func TestMacMatMul(t *testing.T) {
	d := mac(t)
	const m, n, k = 33, 17, 29
	for _, typ := range []gpu.Type{gpu.F32, gpu.F16} {
		for trans := range 4 {
			matrix := func(typ gpu.Type, rows, columns, seed int, trans bool) gpu.Matrix {
				mem, err := d.Alloc(12 + rows*columns*4)
				require.NoError(t, err)
				x := gpu.Matrix{Mem: mem.Slice(12, rows*columns*4), Type: typ, Stride: columns, Trans: trans}
				fillMatrix(x, seed)
				return x
			}
			a := matrix(typ, 40, 41, 3, trans&1 != 0)
			b := matrix(typ, 42, 43, 5, trans&2 != 0)
			c := matrix(gpu.F32, m, n+2, 11, false)
			ok, err := d.MatMul(m, n, k, 2, a, b, -1, c)
			require.NoError(t, err)
			require.True(t, ok)
			require.NoError(t, d.Sync())
			for i := range m {
				for j := range n {
					var sum float32
					for l := range k {
						sum += number(at(a, i, l), 3) * number(at(b, l, j), 5)
					}
					want := 2*sum - number(at(c, i, j), 11)
					require.Equal(t, want, math.Float32frombits(binary.LittleEndian.Uint32(c.Mem.Bytes()[4*at(c, i, j):])))
				}
			}
		}
	}
}
