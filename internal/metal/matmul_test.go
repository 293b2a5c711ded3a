//go:build metal

package metal

import (
	"encoding/binary"
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/x448/float16"

	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/gpu"
)

// at returns the place of an element of a matrix.
func at(x gpu.Matrix, row, column int) int {
	if x.Trans {
		row, column = column, row
	}
	return row*x.Stride + column
}

// fillMatrix writes small integers into the whole memory of x.
func fillMatrix(x gpu.Matrix, seed int) {
	b := x.Mem.Bytes()
	if x.Type == gpu.F16 {
		for i := range len(b) / 2 {
			binary.LittleEndian.PutUint16(b[2*i:], float16.Fromfloat32(number(i, seed)).Bits())
		}
		return
	}
	for i := range len(b) / 4 {
		binary.LittleEndian.PutUint32(b[4*i:], math.Float32bits(number(i, seed)))
	}
}

// number is what fillMatrix writes to place i.
func number(i, seed int) float32 { return float32((i*seed)%7 - 3) }

func TestMatMul(t *testing.T) {
	const m, n, k = 3, 5, 4
	for _, typ := range []gpu.Type{gpu.F32, gpu.F16} {
		for trans := range 4 {
			for _, off := range []int{0, 12} {
				t.Run(fmt.Sprint(typ, trans, off), func(t *testing.T) {
					d := newFake().open(t)
					elem := 4 >> typ
					mem := func(bytes int) driver.Mem {
						x, err := d.Alloc(off + bytes)
						require.NoError(t, err)
						return x.Slice(off, bytes)
					}
					a := gpu.Matrix{Mem: mem(6 * 6 * elem), Type: typ, Stride: 6, Trans: trans&1 != 0}
					b := gpu.Matrix{Mem: mem(7 * 7 * elem), Type: typ, Stride: 7, Trans: trans&2 != 0}
					c := gpu.Matrix{Mem: mem(((m-1)*6 + n) * 4), Type: gpu.F32, Stride: 6} // ends with its last element
					fillMatrix(a, 3)
					fillMatrix(b, 5)
					fillMatrix(c, 11)
					for range 2 { // the second with the kernel kept
						ok, err := d.MatMul(m, n, k, 2, a, b, -1, c)
						require.NoError(t, err)
						require.True(t, ok)
						require.Len(t, d.products, 1)
						require.NoError(t, d.Sync())
						got := c.Mem.Bytes()
						for i := range m {
							for j := range n {
								var sum float32
								for l := range k {
									sum += number(at(a, i, l), 3) * number(at(b, l, j), 5)
								}
								want := 2*sum - number(at(c, i, j), 11)
								require.Equal(t, want, math.Float32frombits(binary.LittleEndian.Uint32(got[4*at(c, i, j):])))
							}
						}
						fillMatrix(c, 11)
					}
				})
			}
		}
	}
}

// TestMatMulOrder puts a product between kernels.
func TestMatMulOrder(t *testing.T) {
	f := newFake()
	d := f.open(t)
	x := gpu.Matrix{Stride: 1}
	var err error
	x.Mem, err = d.Alloc(4)
	require.NoError(t, err)
	one := math.Float32bits(1)
	f.pause(true)
	require.NoError(t, d.CopyIn(x.Mem, binary.LittleEndian.AppendUint32(nil, one)))
	for range 10 {
		ok, err := d.MatMul(1, 1, 1, 1, x, x, 1, x)
		require.NoError(t, err)
		require.True(t, ok)
		require.NoError(t, d.LaunchGrid(f.fill(x.Mem.Slice(0, 1), 0)))
		require.NoError(t, d.CopyIn(x.Mem, binary.LittleEndian.AppendUint32(nil, one)))
	}
	ok, err := d.MatMul(1, 1, 1, 1, x, x, 1, x)
	require.NoError(t, err)
	require.True(t, ok)
	f.pause(false)
	require.NoError(t, d.Sync())
	require.Equal(t, float32(2), math.Float32frombits(binary.LittleEndian.Uint32(x.Mem.Bytes())))
}

// TestMatMulRefuses leaves products to the caller that the library lacks.
func TestMatMulRefuses(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(d *device, m, n, k *int, a, b, c *gpu.Matrix)
	}{
		{"empty", func(_ *device, m, _, _ *int, _, _, _ *gpu.Matrix) { *m = 0 }},
		{"mixed", func(_ *device, _, _, _ *int, a, _, _ *gpu.Matrix) { a.Type = gpu.F16 }},
		{"bf16", func(_ *device, _, _, _ *int, a, b, _ *gpu.Matrix) { a.Type, b.Type = gpu.BF16, gpu.BF16 }},
		{"f16 result", func(_ *device, _, _, _ *int, _, _, c *gpu.Matrix) { c.Type = gpu.F16 }},
		{"transposed result", func(_ *device, _, _, _ *int, _, _, c *gpu.Matrix) { c.Trans = true }},
		{"stride", func(_ *device, _, _, _ *int, a, _, _ *gpu.Matrix) { a.Stride = 1 }},
		{"offset", func(_ *device, _, _, _ *int, _, b, _ *gpu.Matrix) { b.Mem = b.Mem.Slice(2, 64) }},
		{"no library", func(d *device, _, _, _ *int, _, _, _ *gpu.Matrix) {
			d.api.canMultiply = func(object) bool { return false }
		}},
		{"no kernel", func(d *device, _, _, _ *int, _, _, _ *gpu.Matrix) {
			d.api.newProduct = func(object, product) object { return 0 }
		}},
		{"no matrix", func(d *device, _, _, _ *int, _, _, _ *gpu.Matrix) {
			d.api.newMatrix = func(object, int, int, int, int, uint32) object { return 0 }
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFake()
			d := f.open(t)
			mem, err := d.Alloc(128)
			require.NoError(t, err)
			x := gpu.Matrix{Mem: mem, Stride: 4}
			m, n, k, a, b, r := 2, 2, 2, x, x, x
			c.change(d, &m, &n, &k, &a, &b, &r)
			ok, err := d.MatMul(m, n, k, 1, a, b, 0, r)
			require.NoError(t, err)
			require.False(t, ok)
			require.NoError(t, d.Sync())
			require.Zero(t, f.commits)
		})
	}
}

// TestMatMulReach refuses the first sizes at which the library's offsets
// overflow; no memory of that length is at hand, so a foreign table entry
// stands in.
func TestMatMulReach(t *testing.T) {
	f := newFake()
	d := f.open(t)
	encoded := 0
	d.api.newMatrix = func(object, int, int, int, int, uint32) object {
		return locked(f, func() object { return f.make(&thing{kind: "matrix"}) })
	}
	d.api.encodeProduct = func(object, object, object, object, object) { encoded++ }
	mem, err := d.Alloc(64)
	require.NoError(t, err)
	d.buffers[0].size, mem.Size = 1<<40, 1<<40
	for _, c := range []struct {
		m, n, k int
		want    bool
	}{
		{13000, 13000, 13000, true},
		{13500, 13500, 13500, false},
		{1 << 15, 1 << 14, 1, false}, // 2 GiB
		{1, 1 << 29, 1, false},
		{1 << 20, 64, 1 << 8, true},
		{1 << 20, 64, 1 << 10, false}, // an operand of 4 GiB
	} {
		x := func(stride int) gpu.Matrix { return gpu.Matrix{Mem: mem, Stride: stride} }
		encoded = 0
		ok, err := d.MatMul(c.m, c.n, c.k, 1, x(c.k), x(c.n), 0, x(c.n))
		require.NoError(t, err)
		require.Equal(t, c.want, ok, c)
		require.Equal(t, c.want, encoded > 0, c)
	}
}

func TestMatMulErrors(t *testing.T) {
	f := newFake()
	d := f.open(t)
	mem, err := d.Alloc(64)
	require.NoError(t, err)
	x := gpu.Matrix{Mem: mem, Stride: 4}
	short, gone := x, x
	short.Mem.Size = 20
	gone.Mem.Addr += 1 << 20
	for _, bad := range []gpu.Matrix{short, gone} {
		ok, err := d.MatMul(2, 2, 2, 1, x, bad, 0, x)
		require.ErrorIs(t, err, driver.ErrDevice)
		require.False(t, ok)
	}
}

// TestMatMulKeepsFew bounds the kernels that a device keeps.
func TestMatMulKeepsFew(t *testing.T) {
	f := newFake()
	d := f.open(t)
	mem, err := d.Alloc(64)
	require.NoError(t, err)
	x := gpu.Matrix{Mem: mem, Stride: 1}
	for i := range maxProducts + 1 {
		ok, err := d.MatMul(1, 1, 1, float32(i), x, x, 0, x)
		require.NoError(t, err)
		require.True(t, ok)
	}
	require.Len(t, d.products, 1)
}
