//go:build (cuda || hip) && linux

package cuda

import (
	"encoding/binary"
	"fmt"
	"math"
	"testing"

	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/gpu"
	"github.com/stretchr/testify/require"
	"github.com/x448/float16"
)

func openLt(t *testing.T) (*fakeLt, *Device) {
	l := newFakeLt(newFake())
	d, err := l.open()
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, d.Close())
		require.Empty(t, l.f.leaks())
		require.Zero(t, len(l.descs)+len(l.layouts)+len(l.prefers)+l.handles, "left of cuBLASLt")
	})
	return l, d
}

// encode returns small integers as elements of a type, exact in all of them.
func encode(typ gpu.Type, vals []float32) []byte {
	var out []byte
	for _, v := range vals {
		switch typ {
		case gpu.F32:
			out = binary.LittleEndian.AppendUint32(out, math.Float32bits(v))
		case gpu.F16:
			out = binary.LittleEndian.AppendUint16(out, float16.Fromfloat32(v).Bits())
		case gpu.BF16:
			out = binary.LittleEndian.AppendUint16(out, uint16(math.Float32bits(v)>>16))
		}
	}
	return out
}

// testMatrix puts a rows×cols matrix on the device, in rows one element apart
// and transposed if asked. Element (i, j) is value(i, j).
func testMatrix(t *testing.T, d *Device, typ gpu.Type, rows, cols int, trans bool, value func(i, j int) float32) gpu.Matrix {
	if trans {
		inner := value
		rows, cols, value = cols, rows, func(i, j int) float32 { return inner(j, i) }
	}
	stride := cols + 1
	vals := make([]float32, rows*stride)
	for i := range rows {
		for j := range cols {
			vals[i*stride+j] = value(i, j)
		}
	}
	data := encode(typ, vals)
	m, err := d.Alloc(len(data))
	require.NoError(t, err)
	require.NoError(t, d.CopyIn(m, data))
	return gpu.Matrix{Mem: m, Type: typ, Stride: stride, Trans: trans}
}

func TestMatMul(t *testing.T) {
	const m, n, k = 3, 4, 5
	av := func(i, j int) float32 { return float32(i + 2*j - 3) }
	bv := func(i, j int) float32 { return float32(2*i - j + 1) }
	cv := func(i, j int) float32 { return float32(i - j) }
	want := func(i, j int) float32 {
		sum := float32(0)
		for l := range k {
			sum += av(i, l) * bv(l, j)
		}
		return 2*sum - cv(i, j)
	}
	for _, types := range [][2]gpu.Type{
		{gpu.F32, gpu.F32}, {gpu.F16, gpu.F16}, {gpu.F16, gpu.F32}, {gpu.BF16, gpu.BF16}, {gpu.BF16, gpu.F32},
	} {
		for trans := range 8 {
			t.Run(fmt.Sprint(types, trans), func(t *testing.T) {
				_, d := openLt(t)
				a := testMatrix(t, d, types[0], m, k, trans&1 != 0, av)
				b := testMatrix(t, d, types[0], k, n, trans&2 != 0, bv)
				c := testMatrix(t, d, types[1], m, n, trans&4 != 0, cv)
				ok, err := d.MatMul(m, n, k, 2, a, b, -1, c)
				require.NoError(t, err)
				require.True(t, ok)
				expect := testMatrix(t, d, types[1], m, n, trans&4 != 0, want)
				got, exp := make([]byte, c.Mem.Size), make([]byte, c.Mem.Size)
				require.NoError(t, d.CopyOut(got, c.Mem))
				require.NoError(t, d.CopyOut(exp, expect.Mem))
				require.Equal(t, exp, got)
			})
		}
	}
}

func square(t *testing.T, d *Device, typ gpu.Type) gpu.Matrix {
	return testMatrix(t, d, typ, 4, 4, false, func(i, j int) float32 { return float32(i + j) })
}

func TestMatMulHasNoProduct(t *testing.T) {
	l, d := openLt(t)
	f32, f16, bf16 := square(t, d, gpu.F32), square(t, d, gpu.F16), square(t, d, gpu.BF16)
	narrow, short, host, unknown := f32, f32, f32, f32
	narrow.Stride = 3
	short.Mem.Size -= 8
	host.Mem.Addr = 0
	unknown.Type = 9
	for name, test := range map[string]struct {
		m       int
		a, b, c gpu.Matrix
	}{
		"mixed inputs": {4, f32, bf16, f32}, "other output": {4, f16, f16, bf16}, "narrower output": {4, f32, f32, f16},
		"empty": {0, f32, f32, f32}, "overlapping rows": {4, narrow, f32, f32}, "short": {4, f32, short, f32},
		"host memory": {4, f32, f32, host}, "unknown type": {4, unknown, unknown, f32},
	} {
		t.Run(name, func(t *testing.T) {
			ok, err := d.MatMul(test.m, 4, 4, 1, test.a, test.b, 0, test.c)
			require.NoError(t, err, name)
			require.False(t, ok, name)
		})
	}
	require.Zero(t, l.questions)

	for _, answer := range []ltStatus{15, cublasLt.invalid, 0} {
		l.answer, l.none = answer, true
		ok, err := d.MatMul(4, 4, 4, 1, f32, f32, 0, f32)
		require.NoError(t, err)
		require.False(t, ok)
		require.NoError(t, d.dropLtPlans())
	}

	_, without := openFake(t, nil)
	ok, err := without.MatMul(4, 4, 4, 1, square(t, without, gpu.F32), square(t, without, gpu.F32), 0, square(t, without, gpu.F32))
	require.NoError(t, err)
	require.False(t, ok, "cuBLASLt is not installed")
}

func (d *Device) dropLtPlans() error {
	d.blas.mu.Lock()
	defer d.blas.mu.Unlock()
	return d.blas.dropPlans()
}

func TestMatMulPlans(t *testing.T) {
	l, d := openLt(t)
	x := square(t, d, gpu.F32)
	multiply := func() {
		if ok, err := d.MatMul(4, 4, 4, 1, x, x, 0, x); !ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	multiply()
	multiply()
	require.Equal(t, 1, l.questions, "a shape is asked for once")
	require.Equal(t, map[int32]uint64{
		preferWorkspace: workspaceSmall, cublasLt.reduction: reductionCompute,
		cublasLt.alignment: 256, cublasLt.alignment + 1: 256, cublasLt.alignment + 2: 256, cublasLt.alignment + 3: 256,
	}, l.asked)

	b := x
	b.Mem = b.Mem.Slice(4, b.Mem.Size-4)
	ok, err := d.MatMul(3, 3, 3, 1, x, b, 0, x)
	require.NoError(t, err)
	require.True(t, ok)
	require.EqualValues(t, 4, l.asked[cublasLt.alignment], "b comes first in column-major order")
	require.EqualValues(t, 256, l.asked[cublasLt.alignment+1])

	most := 0
	for i := range maxPlans + 10 {
		_, err := d.MatMul(1, 4, 4, 1, gpu.Matrix{Mem: x.Mem, Stride: 6 + i}, x, 0, x)
		require.NoError(t, err)
		most = max(most, len(l.descs))
	}
	require.Equal(t, maxPlans, most, "the cache is bounded")
	require.Less(t, len(l.descs), maxPlans)
}

func TestMatMulWorkspace(t *testing.T) {
	l, d := openLt(t)
	x := square(t, d, gpu.F32)
	l.f.total = 1000
	_, err := d.MatMul(4, 4, 4, 1, x, x, 0, x)
	require.ErrorIs(t, err, driver.ErrNoMemory)
	require.ErrorContains(t, err, "4194304 bytes wanted")
	l.f.total = 1 << 30
	_, err = d.MatMul(4, 4, 4, 1, x, x, 0, x)
	require.NoError(t, err)

	l.status = 14
	_, err = d.MatMul(4, 4, 4, 1, x, x, 0, x)
	require.ErrorIs(t, err, driver.ErrDevice)
	require.ErrorContains(t, err, "product of 4×4 and 4×4: cublasLtMatmul: CUBLAS_STATUS_INTERNAL_ERROR (14)")

	hopper := newFakeLt(newFake())
	hopper.f.major = 9
	d, err = hopper.open()
	require.NoError(t, err)
	x = square(t, d, gpu.F32)
	require.Contains(t, hopper.f.calls(func() {
		_, err = d.MatMul(4, 4, 4, 1, x, x, 0, x)
	}), "cuMemAlloc 33554432")
	require.NoError(t, err)
	require.NoError(t, d.Close())
	require.Empty(t, hopper.f.leaks())
}

// A library that does not start is not used; the next one is, and the device looks for
// libraries once.
func TestMatMulLibraries(t *testing.T) {
	for _, status := range []ltStatus{1, 8, 13, 14, 15} {
		f := newFake()
		broken, l := newFakeLt(f), newFakeLt(f)
		broken.created, l.before = status, []*fakeLt{broken}
		d, err := l.open()
		require.NoError(t, err)
		x := square(t, d, gpu.F32)
		for range 3 {
			ok, err := d.MatMul(4, 4, 4, 1, x, x, 0, x)
			require.NoError(t, err)
			require.True(t, ok)
		}
		require.Equal(t, [2]int{1, 1}, [2]int{broken.creates, l.creates})

		l.created = status
		none, err := l.open()
		require.NoError(t, err)
		calls := f.calls(func() {
			for range 3 {
				ok, err := none.MatMul(4, 4, 4, 1, x, x, 0, x)
				require.NoError(t, err)
				require.False(t, ok)
			}
		})
		require.Empty(t, calls, "no workspace")
		require.Equal(t, [2]int{2, 2}, [2]int{broken.creates, l.creates})
		require.NoError(t, none.Close())
		require.NoError(t, d.Close())
		require.Empty(t, f.leaks())
	}
}

// What a library cannot do is left to snug's kernels, from then on.
func TestMatMulLeavesProducts(t *testing.T) {
	for _, status := range []ltStatus{1, 8, 13, 15} {
		for _, of := range []string{"heuristic", "product"} {
			l, d := openLt(t)
			x := square(t, d, gpu.F32)
			if of == "product" {
				l.status = status
			} else {
				l.answer = status
			}
			for range 2 {
				ok, err := d.MatMul(4, 4, 4, 1, x, x, 0, x)
				require.NoError(t, err, "%s: %d", of, status)
				require.False(t, ok)
			}
			require.Equal(t, 1, l.questions)
			l.status, l.answer = 0, 0
			ok, err := d.MatMul(3, 3, 3, 1, x, x, 0, x)
			require.NoError(t, err)
			require.True(t, ok, "another shape")
		}
	}
}

// A product may be the first work of a capture, and makes a graph.
func TestMatMulInGraph(t *testing.T) {
	_, d := openLt(t)
	x, y := square(t, d, gpu.F32), square(t, d, gpu.F32)
	g, err := d.Capture(func() error {
		has, err := d.HasMatMul(4, 4, 4, x, x, y)
		require.NoError(t, err)
		require.True(t, has)
		ok, err := d.MatMul(4, 4, 4, 1, x, x, 0, y)
		require.True(t, ok)
		return err
	})
	require.NoError(t, err)
	require.NoError(t, g.Launch())
	got := make([]byte, 4)
	require.NoError(t, d.CopyOut(got, y.Mem))
	require.EqualValues(t, 0+1+4+9, math.Float32frombits(binary.LittleEndian.Uint32(got)))
}

// HasMatMul answers what MatMul will do, and queues nothing.
func TestHasMatMul(t *testing.T) {
	l, d := openLt(t)
	f32, bf16 := square(t, d, gpu.F32), square(t, d, gpu.BF16)
	trans := f32
	trans.Trans = true
	has := func(m int, a, b, c gpu.Matrix) bool {
		var ok bool
		var err error
		require.Empty(t, l.f.calls(func() { ok, err = d.HasMatMul(m, 4, 4, a, b, c) }))
		require.NoError(t, err)
		return ok
	}
	there, err := d.HasProducts()
	require.NoError(t, err)
	require.True(t, there)
	require.True(t, has(4, f32, f32, f32))
	require.True(t, has(4, bf16, bf16, f32))
	require.False(t, has(4, f32, bf16, f32))
	require.False(t, has(0, f32, f32, f32))
	require.True(t, has(3, f32, f32, trans))
	questions := l.questions
	ok, err := d.MatMul(4, 4, 4, 1, f32, f32, 0, f32)
	require.NoError(t, err)
	require.True(t, ok)
	ok, err = d.MatMul(3, 4, 4, 1, f32, f32, 0, trans)
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, questions, l.questions, "the shapes are known")

	l.status = 15
	ok, err = d.MatMul(4, 4, 4, 1, f32, f32, 0, f32)
	require.NoError(t, err)
	require.False(t, ok)
	require.False(t, has(4, f32, f32, f32), "MatMul has refused it")
	l.answer = 15
	require.False(t, has(2, f32, f32, f32))
	l.answer = 3
	_, err = d.HasMatMul(1, 4, 4, f32, f32, f32)
	require.ErrorIs(t, err, driver.ErrNoMemory)
}

// The library is opened once, by the first question or product, and without it there is no product.
func TestHasProducts(t *testing.T) {
	l, d := openLt(t)
	l.f.total = 1000
	_, err := d.HasProducts()
	require.ErrorIs(t, err, driver.ErrNoMemory)
	l.f.total = 1 << 30
	creates := l.creates
	for range 2 {
		ok, err := d.HasProducts()
		require.NoError(t, err)
		require.True(t, ok)
	}
	require.Equal(t, creates+1, l.creates)

	_, without := openFake(t, nil)
	ok, err := without.HasProducts()
	require.NoError(t, err)
	require.False(t, ok)
	x := square(t, without, gpu.F32)
	ok, err = without.HasMatMul(4, 4, 4, x, x, x)
	require.NoError(t, err)
	require.False(t, ok)

	other, err := l.open()
	require.NoError(t, err)
	require.NoError(t, other.Close())
	_, err = other.HasProducts()
	require.ErrorIs(t, err, driver.ErrDevice)
	_, err = other.HasMatMul(4, 4, 4, x, x, x)
	require.ErrorIs(t, err, driver.ErrDevice)
}
