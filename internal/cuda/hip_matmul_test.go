//go:build hip && linux && (amd64 || arm64)

package cuda

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/gpu"
)

func TestHIPMatMul(t *testing.T) {
	f := newFake()
	f.vendor = &amd
	l := newFakeLt(f)
	l.vendor = &hipBlasLt
	d, err := l.open()
	require.NoError(t, err)
	defer d.Close()
	put := func(n int) driver.Mem {
		m, err := d.Alloc(4 * n)
		require.NoError(t, err)
		x := make([]byte, 4*n)
		for i := range n {
			x[4*i+2], x[4*i+3] = 0x80, 0x3f // 1
		}
		require.NoError(t, d.CopyIn(m, x))
		return m
	}
	a, b, c := put(64), put(64), put(64)
	ok, err := d.MatMul(4, 8, 16, 2, gpu.Matrix{Mem: a, Stride: 16}, gpu.Matrix{Mem: b, Stride: 16, Trans: true}, 1, gpu.Matrix{Mem: c, Stride: 8})
	require.False(t, ok, "b is too small")
	require.NoError(t, err)
	ok, err = d.MatMul(4, 4, 16, 2, gpu.Matrix{Mem: a, Stride: 16}, gpu.Matrix{Mem: b, Stride: 16, Trans: true}, 1, gpu.Matrix{Mem: c, Stride: 4})
	require.NoError(t, err)
	require.True(t, ok)
	got := make([]byte, 64)
	require.NoError(t, d.CopyOut(got, c))
	require.Equal(t, slices.Repeat([]byte{0, 0, 0x04, 0x42}, 16), got, "2·16 + 1")
	require.Equal(t, map[int32]uint64{preferWorkspace: workspaceLarge}, l.asked)

	for what, matrix := range map[string]gpu.Matrix{
		"rows":    {Mem: a, Stride: 15},
		"address": {Mem: driver.Mem{Addr: a.Addr + 4, Size: a.Size - 4}, Stride: 12},
	} {
		ok, err = d.MatMul(4, 4, 8, 1, matrix, gpu.Matrix{Mem: b, Stride: 8, Trans: true}, 1, gpu.Matrix{Mem: c, Stride: 4})
		require.NoError(t, err)
		require.False(t, ok, what)
		ok, err = d.HasMatMul(4, 4, 8, matrix, gpu.Matrix{Mem: b, Stride: 8, Trans: true}, gpu.Matrix{Mem: c, Stride: 4})
		require.NoError(t, err)
		require.False(t, ok, what)
	}
	for _, status := range []ltStatus{1, 5, 7, 8} {
		l.status = status
		ok, err = d.MatMul(4, 4, 4+4*int(status), 1, gpu.Matrix{Mem: a, Stride: 16}, gpu.Matrix{Mem: a, Stride: 4}, 1, gpu.Matrix{Mem: c, Stride: 4})
		require.NoError(t, err)
		require.False(t, ok)
	}
	require.Equal(t, "hipblasLtMatmul: HIPBLAS_STATUS_ALLOC_FAILED (2)", (&ltAPI{vendor: &hipBlasLt}).check("Matmul", 2).Error())
	require.ErrorIs(t, (&ltAPI{vendor: &hipBlasLt}).check("Matmul", 2), driver.ErrNoMemory)
}

// hipLt is a fake of HIP with hipBLASLt, and two operands on its device.
func hipLt(t *testing.T, change func(f *fake)) (*fakeLt, *Device, gpu.Matrix) {
	f := newFake()
	f.vendor = &amd
	if change != nil {
		change(f)
	}
	l := newFakeLt(f)
	l.vendor = &hipBlasLt
	d, err := l.open()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	return l, d, gpu.Matrix{Mem: alloc(t, d, 64), Stride: 4}
}

// multiply is a product of 4×4 matrices.
func multiply(d *Device, x gpu.Matrix) error {
	_, err := d.MatMul(4, 4, 4, 1, x, x, 0, x)
	return err
}

// hipBLASLt ends the process if it starts during a capture, so it has started before.
func TestHIPProductInCapture(t *testing.T) {
	l, d, x := hipLt(t, nil)
	g, err := d.Capture(func() error { return multiply(d, x) })
	require.NoError(t, err)
	require.Equal(t, 1, l.creates)
	require.NoError(t, g.Launch())
}

// It waits for the captures of other devices, but an endless one is an error.
func TestHIPProductDuringCaptureOfAnother(t *testing.T) {
	f := newFake()
	f.vendor, f.count = &amd, 2
	l := newFakeLt(f)
	l.vendor = &hipBlasLt
	b := newBackend(&amd, func() (*api, error) { return f.driverAPI(), nil }, l.found)
	open := func() (*Device, gpu.Matrix) {
		opened, err := b.Open(0)
		require.NoError(t, err)
		d := opened.(*Device)
		return d, gpu.Matrix{Mem: alloc(t, d, 64), Stride: 4}
	}
	capturing, x := open()
	other, y := open()
	result, begun := make(chan error), make(chan bool)
	_, err := capturing.Capture(func() error {
		go func() {
			close(begun)
			result <- multiply(other, y)
		}()
		<-begun
		time.Sleep(10 * time.Millisecond)
		return multiply(capturing, x)
	})
	require.NoError(t, err)
	require.NoError(t, <-result)
	require.Equal(t, 2, l.creates)

	third, z := open()
	startWait = 10 * time.Millisecond
	defer func() { startWait = 10 * time.Second }()
	_, err = capturing.Capture(func() error { return multiply(third, z) })
	require.ErrorIs(t, err, driver.ErrDevice)
	require.ErrorContains(t, err, "hip:0: the first product waited for 10ms, and another device still captures")
	require.NoError(t, multiply(third, z), "after the capture")
	for _, d := range []*Device{capturing, other, third} {
		require.NoError(t, d.Close())
	}
}

// hipBLASLt ends the process without memory, so it is not started then.
func TestHIPProductWithoutMemory(t *testing.T) {
	l, d, x := hipLt(t, func(f *fake) { f.total = 80 << 20 })
	much := alloc(t, d, 70<<20)
	err := multiply(d, x)
	require.ErrorIs(t, err, driver.ErrNoMemory)
	require.ErrorContains(t, err, "67108864 bytes wanted")
	_, err = d.Capture(func() error { return multiply(d, x) })
	require.ErrorContains(t, err, "hip:0: the first product cannot be part of a captured graph")
	require.Zero(t, l.creates)
	require.NoError(t, d.Free(much))
	require.NoError(t, multiply(d, x), "kept memory is given back before")
	require.Equal(t, 1, l.creates)
}
