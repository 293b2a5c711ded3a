package offload

import (
	"math"
	"testing"
	"time"

	"github.com/snug-ml/snug"
	"github.com/stretchr/testify/require"
)

func TestNewMoverErrors(t *testing.T) {
	dev, c := openCopier(t)
	for _, n := range [][2]int{{0, 1}, {-1, 1}, {maxPage + 1, 1}, {1, 0}, {1, -1}, {1, maxPages + 1}} {
		for _, dev := range []*snug.Device{dev, snug.CPU()} {
			_, err := NewMover(dev, n[0], n[1])
			require.ErrorIs(t, err, snug.ErrConfig, "%d bytes, %d pages", n[0], n[1])
		}
	}
	for _, n := range [][2]int{{2 << 20, 1}, {maxPage, maxPages}} {
		_, err := NewMover(dev, n[0], n[1])
		require.ErrorIs(t, err, snug.ErrNoMemory, "%d bytes, %d pages", n[0], n[1])
	}
	for _, b := range c.blocks {
		require.Nil(t, b, "device memory was not freed")
	}
	m, err := NewMover(snug.CPU(), 64, 2)
	require.NoError(t, err)
	require.Zero(t, m.pinned.Size)
	require.NoError(t, m.Close())

	require.NoError(t, dev.Close())
	_, err = NewMover(dev, 64, 2)
	require.ErrorIs(t, err, snug.ErrDevice)
}

func TestMoveErrors(t *testing.T) {
	opaque, err := snug.Open("opaque:0")
	require.NoError(t, err)
	defer opaque.Close()
	dev, _ := openCopier(t)
	m := newMover(t, dev, 64, 4)
	x, other, host := onDevice(t, dev, make([]float32, 9)), onDevice(t, opaque, make([]float32, 9)), counted(9, 1)
	for _, c := range []struct {
		name         string
		device, host snug.View
		want         error
	}{
		{"length", x, snug.ViewOf(host[:8]), snug.ErrShape},
		{"type", x, snug.SliceView(make([]int32, 9)), snug.ErrDType},
		{"device on the host", snug.ViewOf(host), snug.ViewOf(host), snug.ErrDevice},
		{"host on the device", x, x, snug.ErrDevice},
		{"another device", other, snug.ViewOf(host), snug.ErrDevice},
	} {
		_, err := m.Load(c.device, c.host)
		require.ErrorIs(t, err, c.want, c.name)
		_, err = m.Save(c.host, c.device)
		require.ErrorIs(t, err, c.want, c.name)
	}
	require.Equal(t, make([]float32, 9), read(t, x))
	require.Equal(t, counted(9, 1), host)
	_, err = m.Load(snug.View{}, snug.View{})
	require.NoError(t, err)

	closed, err := NewMover(dev, 64, 4)
	require.NoError(t, err)
	require.NoError(t, closed.Close())
	_, err = closed.Load(x, snug.ViewOf(host))
	require.ErrorIs(t, err, snug.ErrConfig)
}

// at plants an error in copy number n.
func at(n int) func(int) error {
	return func(number int) error {
		if number == n {
			return errPlanted
		}
		return nil
	}
}

// TestStartFails leaves nothing under way when a copy cannot be started, and the
// Mover as usable as before.
func TestStartFails(t *testing.T) {
	for failing := range 7 {
		dev, c := openCopier(t)
		m := newMover(t, dev, 64, 4)
		x, host := onDevice(t, dev, counted(100, 1)), counted(100, 500)
		c.failStart = at(failing) // of 7 pages, 4 at a time
		_, err := m.Load(x, snug.ViewOf(host))
		require.ErrorIs(t, err, errPlanted)
		c.failStart = at(c.started + failing)
		_, err = m.Save(snug.ViewOf(host), x)
		require.ErrorIs(t, err, errPlanted)
		require.Zero(t, c.active)

		host = counted(100, 9)
		load, err := m.Load(x, snug.ViewOf(host))
		require.NoError(t, err)
		require.NoError(t, load.Await())
		require.Equal(t, host, read(t, x))
	}
}

// TestCopyFails keeps the error of a copy for all later calls, and what arrived
// before.
func TestCopyFails(t *testing.T) {
	for failing := range 7 {
		dev, c := openCopier(t)
		m := newMover(t, dev, 64, 7)
		c.failCopy = at(1 + failing)
		x, first, host := onDevice(t, dev, counted(100, 1)), make([]float32, 16), make([]float32, 100)
		part, err := x.Slice(0, 16)
		require.NoError(t, err)
		before, err := m.Save(snug.ViewOf(first), part)
		require.NoError(t, err)
		save, err := m.Save(snug.ViewOf(host), x)
		if err == nil {
			err = save.Wait()
		}
		require.ErrorIs(t, err, errPlanted)
		require.NoError(t, before.Wait())
		require.Equal(t, counted(16, 1), first)
		require.Equal(t, append(counted(16*failing, 1), make([]float32, 100-16*failing)...), host)

		_, err = m.Load(x, snug.ViewOf(host))
		require.ErrorIs(t, err, errPlanted)
		if save != (Move{}) {
			require.ErrorIs(t, save.Wait(), errPlanted)
			require.ErrorIs(t, save.Await(), errPlanted)
		}
		require.NoError(t, m.Close(), "the error is known")
	}
}

// TestCloseReports returns an error that nobody has seen.
func TestCloseReports(t *testing.T) {
	dev, c := openCopier(t)
	m, err := NewMover(dev, 64, 7)
	require.NoError(t, err)
	c.failCopy = at(2)
	_, err = m.Load(onDevice(t, dev, make([]float32, 100)), snug.ViewOf(make([]float32, 100)))
	require.NoError(t, err)
	require.ErrorIs(t, m.Close(), errPlanted)
	require.NoError(t, m.Close())
}

func TestAwaitFails(t *testing.T) {
	dev, c := openCopier(t)
	m := newMover(t, dev, 64, 7)
	x := onDevice(t, dev, make([]float32, 100))
	load, err := m.Load(x, snug.ViewOf(counted(100, 1)))
	require.NoError(t, err)
	c.failAwait = errPlanted
	require.ErrorIs(t, load.Await(), errPlanted)
	require.ErrorIs(t, load.Wait(), errPlanted)
	_, err = m.Save(snug.ViewOf(make([]float32, 100)), x)
	require.ErrorIs(t, err, errPlanted)
}

// TestCloseWaits closes a Mover with a page under way for which the queue cannot wait.
func TestCloseWaits(t *testing.T) {
	dev, c := openCopier(t)
	m, err := NewMover(dev, 64, 1)
	require.NoError(t, err)
	c.gate = make(chan struct{})
	load, err := m.Load(onDevice(t, dev, counted(1, 1)), snug.ViewOf(counted(1, 2)))
	require.NoError(t, err)
	c.failAwait = errPlanted
	require.ErrorIs(t, load.Await(), errPlanted)
	time.AfterFunc(5*time.Millisecond, func() { close(c.gate) })
	require.NoError(t, m.Close())
}

// TestDeviceCloses closes the device, and with it the pinned memory, under a move.
func TestDeviceCloses(t *testing.T) {
	dev, _ := openCopier(t)
	m, err := NewMover(dev, 64, 7)
	require.NoError(t, err)
	x := onDevice(t, dev, counted(100, 1))
	host := make([]float32, 100)
	save, err := m.Save(snug.ViewOf(host), x)
	require.NoError(t, err)
	require.NoError(t, dev.Close())
	require.ErrorIs(t, save.Wait(), snug.ErrDevice)
	require.ErrorIs(t, save.Await(), snug.ErrDevice)
	_, err = m.Load(x, snug.ViewOf(host))
	require.ErrorIs(t, err, snug.ErrDevice)
	require.NoError(t, m.Close())
	require.Equal(t, make([]float32, 100), host)
}

// tensorOf returns a tensor of n counted elements in pages of pageLen.
func tensorOf(t *testing.T, o Options, n, pageLen int) *Tensor[float32] {
	s, err := Open(t.TempDir(), o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	x, err := Create[float32](s, "x", n, pageLen)
	require.NoError(t, err)
	require.NoError(t, x.WriteAt(counted(n, 1), 0))
	return x
}

// TestTensorMoves moves parts of a tensor, most of which lies on disk, to a device
// and back.
func TestTensorMoves(t *testing.T) {
	copiers, _ := openCopier(t)
	opaque, err := snug.Open("opaque:0")
	require.NoError(t, err)
	defer opaque.Close()
	for _, dev := range []*snug.Device{copiers, opaque, snug.CPU()} {
		m := newMover(t, dev, 256, 3)
		for _, r := range [][2]int{{0, 1000}, {0, 0}, {1000, 1000}, {5, 6}, {99, 101}, {100, 300}, {37, 923}} {
			tensor := tensorOf(t, Options{HostLimit: 1024}, 1000, 100)
			lo, hi := r[0], r[1]
			x := onDevice(t, dev, make([]float32, hi-lo))
			load, err := tensor.LoadTo(m, x, lo)
			require.NoError(t, err)
			require.NoError(t, load.Await())
			require.Equal(t, counted(hi-lo, float32(1+lo)), read(t, x), "%s: %v", dev, r)

			launch(t, x, func(x []float32) {
				for i := range x {
					x[i] += 5000
				}
			})
			require.NoError(t, tensor.SaveFrom(m, x, lo))
			got, want := make([]float32, 1000), counted(1000, 1)
			copy(want[lo:hi], counted(hi-lo, float32(5001+lo)))
			require.NoError(t, tensor.ReadAt(got, 0))
			require.Equal(t, want, got, "%s: %v", dev, r)
		}
	}
}

func TestTensorMoveErrors(t *testing.T) {
	dev, c := openCopier(t)
	m := newMover(t, dev, 256, 3)
	tensor := tensorOf(t, Options{}, 1000, 100)
	x, want := onDevice(t, dev, make([]float32, 1000)), counted(1000, 1)
	ints, err := snug.Make[int32](dev, 9)
	require.NoError(t, err)
	for _, c := range []struct {
		name string
		x    snug.View
		off  int
		want error
	}{
		{"before the start", x, -1, snug.ErrShape},
		{"after the end", x, 1, snug.ErrShape},
		{"type", ints.View(), 0, snug.ErrDType},
		{"device", snug.ViewOf(make([]float32, 9)), 0, snug.ErrDevice},
		{"huge offset", x, math.MaxInt, snug.ErrShape},
	} {
		_, err := tensor.LoadTo(m, c.x, c.off)
		require.ErrorIs(t, err, c.want, c.name)
		require.ErrorIs(t, tensor.SaveFrom(m, c.x, c.off), c.want, c.name)
	}
	require.Equal(t, want, readTensor(t, tensor))

	c.failStart = at(c.started + 5)
	_, err = tensor.LoadTo(m, x, 0)
	require.ErrorIs(t, err, errPlanted)
	require.Zero(t, c.active)
	c.failStart = at(c.started + 5)
	require.ErrorIs(t, tensor.SaveFrom(m, x, 0), errPlanted)
	require.Zero(t, tensor.s.pinned, "a page is still pinned")
}

func readTensor(t *testing.T, x *Tensor[float32]) []float32 {
	got := make([]float32, x.Len())
	require.NoError(t, x.ReadAt(got, 0))
	return got
}
