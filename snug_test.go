package snug_test

import (
	"errors"
	"fmt"
	"math"
	"sync"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

func TestViewOfEveryVector(t *testing.T) {
	for _, p := range kerneltest.Backends(t) {
		dev := p.Dev
		if dev == nil {
			dev = snug.CPU()
		}
		f, err := snug.Make[float32](dev, 3)
		require.NoError(t, err)
		h, err := snug.Make[snug.Float16](dev, 4)
		require.NoError(t, err)
		b, err := snug.Make[snug.BFloat16](dev, 5)
		require.NoError(t, err)
		for _, c := range []struct {
			v  snug.View
			dt snug.DType
			n  int
		}{
			{snug.ViewOf(f), snug.F32, 3}, {snug.ViewOf(h), snug.F16, 4}, {snug.ViewOf(b), snug.BF16, 5},
			{snug.ViewOf(snug.ViewOf(f)), snug.F32, 3},
		} {
			require.Equal(t, c.dt, c.v.DType())
			require.Equal(t, c.n, c.v.Len())
			require.Equal(t, c.n*c.dt.Size(), c.v.Bytes())
			require.Same(t, dev, c.v.Device())
			require.Equal(t, dev.IsCPU(), snug.Host[float32](c.v) != nil || c.v.Float16s() != nil || c.v.BFloat16s() != nil)
		}
		require.NoError(t, errors.Join(f.Close(), h.Close(), b.Close(), b.Close()))
	}
	s := []snug.BFloat16{1, 2, 3}
	v := snug.ViewOf(s)
	require.Nil(t, v.Float32s(), "a view gives no slice of another type")
	v.BFloat16s()[1] = 9
	require.Equal(t, snug.BFloat16(9), s[1], "a view shares the slice's memory")
	require.Equal(t, 0, snug.ViewOf([]float32(nil)).Len())
	require.Equal(t, snug.CPU(), snug.View{}.Device())
}

func TestViewOfAllocatesNothing(t *testing.T) {
	s := make([]snug.Float16, 10)
	a := snug.FromSlice(make([]float32, 10))
	n := 0
	require.Zero(t, testing.AllocsPerRun(100, func() {
		n += snug.ViewOf(s).Len() + snug.ViewOf(a).Len()
		if _, err := snug.CommonDevice(snug.ViewOf(s), snug.ViewOf(a)); err != nil {
			n = -1
		}
	}))
	require.Positive(t, n)
}

func TestSlices(t *testing.T) {
	v, err := snug.ViewOf([]float32{1, 2, 3, 4}).Slice(1, 3)
	require.NoError(t, err)
	require.Equal(t, []float32{2, 3}, v.Float32s())
	a, err := snug.FromSlice([]uint8{1, 2, 3, 4}).Slice(2, 4)
	require.NoError(t, err)
	require.Equal(t, []uint8{3, 4}, a.Host())
	for _, r := range [][2]int{{-1, 2}, {2, 1}, {0, 5}, {5, 5}} {
		_, err := snug.ViewOf([]float32{1, 2, 3, 4}).Slice(r[0], r[1])
		require.ErrorIs(t, err, snug.ErrShape)
		_, err = snug.FromSlice([]uint8{1, 2, 3, 4}).Slice(r[0], r[1])
		require.ErrorIs(t, err, snug.ErrShape)
	}
}

func TestCopiesOnEveryDevice(t *testing.T) {
	kerneltest.Each(t, func(t *testing.T, p kerneltest.Backend) {
		buf := kerneltest.Put(t, p, []int32{5, 6, 7})
		require.Equal(t, []int32{5, 6, 7}, buf.Get())
		if p.Dev == nil {
			return
		}
		a, err := snug.Make[float32](p.Dev, 6)
		require.NoError(t, err)
		part, err := a.Slice(2, 5)
		require.NoError(t, err)
		require.NoError(t, part.CopyIn([]float32{1, 2, 3}))
		all := make([]float32, 6)
		require.NoError(t, a.CopyOut(all))
		require.Equal(t, []float32{0, 0, 1, 2, 3, 0}, all)
		require.ErrorIs(t, part.CopyIn(make([]float32, 4)), snug.ErrShape)
		require.ErrorIs(t, part.CopyOut(make([]float32, 4)), snug.ErrShape)
		require.NoError(t, part.CopyOut(nil))
		require.NoError(t, a.Close())
		require.ErrorIs(t, a.CopyIn(all), snug.ErrDevice)
		require.Zero(t, a.View().Len(), "the view of a closed array is empty")
	})
}

func TestMakeErrors(t *testing.T) {
	dev := kerneltest.Backends(t)[2].Dev
	_, err := snug.Make[float32](dev, -1)
	require.ErrorIs(t, err, snug.ErrShape)
	_, err = snug.Make[float32](dev, math.MaxInt)
	require.ErrorIs(t, err, snug.ErrShape)
	_, err = snug.Make[uint8](dev, kerneltest.Total+1)
	require.ErrorIs(t, err, snug.ErrNoMemory)
	empty, err := snug.Make[uint8](dev, 0)
	require.NoError(t, err)
	require.Same(t, dev, empty.Device())
	require.NoError(t, empty.Close())

	_, err = snug.Wrap[float32](snug.CPU(), 64, 1)
	require.ErrorIs(t, err, snug.ErrDevice)
	_, err = snug.Wrap[float32](dev, 0, 1)
	require.ErrorIs(t, err, snug.ErrConfig)
	_, err = snug.Wrap[float32](dev, 3, 1)
	require.ErrorIs(t, err, snug.ErrConfig)
	_, err = snug.Wrap[float32](dev, 64, -1)
	require.ErrorIs(t, err, snug.ErrShape)
}

func TestWrapSharesForeignMemory(t *testing.T) {
	dev := kerneltest.Backends(t)[2].Dev
	own, err := snug.Make[float32](dev, 4)
	require.NoError(t, err)
	require.NoError(t, own.CopyIn([]float32{1, 2, 3, 4}))
	w, err := snug.Wrap[float32](dev, own.Addr()+8, 2)
	require.NoError(t, err)
	got := make([]float32, 2)
	require.NoError(t, w.CopyOut(got))
	require.Equal(t, []float32{3, 4}, got)
	require.NoError(t, w.Close())
	require.NoError(t, own.CopyOut(make([]float32, 4)), "closing a wrapped array frees nothing")
	require.NoError(t, own.Close())
	require.ErrorIs(t, dev.Sync(), nil)
}

func TestOpen(t *testing.T) {
	d, err := snug.Open("cpu")
	require.NoError(t, err)
	require.Same(t, snug.CPU(), d)
	require.NoError(t, d.Close(), "closing the CPU does nothing")
	for name, want := range map[string]error{
		"": snug.ErrConfig, ":1": snug.ErrConfig, "cuda:x": snug.ErrConfig, "cuda:-1": snug.ErrConfig,
		"cpu:1": snug.ErrDevice, "opaque:7": snug.ErrDevice, "abacus:0": snug.ErrNotBuilt,
	} {
		t.Run(name, func(t *testing.T) {
			_, err := snug.Open(name)
			require.ErrorIs(t, err, want, "%q", name)
			require.ErrorContains(t, err, fmt.Sprintf("%q", name))
		})
	}
	names, err := snug.Devices()
	if err != nil {
		require.ErrorIs(t, err, snug.ErrNotBuilt, "a backend in this build has no driver here")
	}
	require.Equal(t, "cpu", names[0])
	require.Contains(t, names, "opaque:0")
}

func TestClosedDevice(t *testing.T) {
	d, err := snug.Open("opaque")
	require.NoError(t, err)
	require.Equal(t, "opaque:0", d.Name())
	a, err := snug.Make[float32](d, 1000)
	require.NoError(t, err)
	free, total, err := d.Memory()
	require.NoError(t, err)
	require.Equal(t, int64(4000), total-free)
	require.NoError(t, d.Close())
	require.NoError(t, d.Close())
	require.ErrorIs(t, a.CopyOut(make([]float32, 1)), snug.ErrDevice)
	require.NoError(t, a.Close())
	_, err = snug.Make[float32](d, 1)
	require.ErrorIs(t, err, snug.ErrDevice)
	require.ErrorIs(t, d.Sync(), snug.ErrDevice)
	_, err = snug.CommonDevice(a.View())
	require.NoError(t, err, "the view of a closed array is empty")
}

func TestCommonDevice(t *testing.T) {
	backends := kerneltest.Backends(t)
	host, far := kerneltest.Put(t, backends[0], []float32{1}), kerneltest.Put(t, backends[2], []float32{1})
	d, err := snug.CommonDevice(snug.View{}, far.View)
	require.NoError(t, err)
	require.Same(t, backends[2].Dev, d)
	_, err = snug.CommonDevice(host.View, far.View)
	require.ErrorIs(t, err, snug.ErrDevice)
}

// double is a kernel that doubles x.
type double struct{ x snug.View }

func (d *double) Kernel() string                     { return "test.double" }
func (d *double) Operands(yield func(m *driver.Mem)) { yield(device.Mem(&d.x)) }
func (d *double) Run() {
	for i := range d.x.Float32s() {
		d.x.Float32s()[i] *= 2
	}
}

func TestLaunchInOrderFromManyGoroutines(t *testing.T) {
	dev := kerneltest.Backends(t)[2].Dev
	const users, times = 8, 20
	var wg sync.WaitGroup
	for range users {
		wg.Go(func() {
			a, err := snug.Make[float32](dev, 10)
			if err != nil || a.CopyIn([]float32{1, 1, 1}) != nil {
				t.Error("make or copy failed")
				return
			}
			for range times {
				if err := device.Launch(dev, &double{a.View()}); err != nil {
					t.Error(err)
				}
			}
			got := make([]float32, 4)
			if err := a.CopyOut(got); err != nil || got[2] != 1<<times || got[3] != 0 {
				t.Error(got, err)
			}
			if err := a.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	far, err := snug.Wrap[float32](dev, 4096, 1)
	require.NoError(t, err)
	require.NoError(t, device.Launch(dev, &double{far.View()}))
	require.ErrorIs(t, dev.Sync(), snug.ErrDevice, "a stray address is an error of the queue")
	require.NoError(t, dev.Sync(), "and told once")
}

func TestDTypes(t *testing.T) {
	for _, dt := range []snug.DType{snug.F32, snug.F16, snug.BF16, snug.U8, snug.I32, snug.F8E4M3, snug.F8E5M2} {
		got, err := snug.ParseDType(dt.String())
		require.NoError(t, err)
		require.Equal(t, dt, got)
	}
	_, err := snug.ParseDType("f8")
	require.ErrorIs(t, err, snug.ErrDType)
	require.Equal(t, "invalid", snug.DType(0).String())
	require.Equal(t, "invalid", snug.DType(200).String())
	require.Zero(t, snug.DType(200).Size())
	require.True(t, snug.BF16.IsFloat())
	require.False(t, snug.U8.IsFloat())
	require.Equal(t, "1.5", snug.ToBFloat16(1.5).String())
	require.True(t, math.IsNaN(float64(snug.ToBFloat16(float32(math.NaN())).Float32())))
}

func ExampleViewOf() {
	weights := []snug.BFloat16{snug.ToBFloat16(1), snug.ToBFloat16(-2)}
	v := snug.ViewOf(weights)
	fmt.Println(v.DType(), v.Len(), v.Bytes(), v.Device())
	// Output: bf16 2 4 cpu
}

func ExampleOpen() {
	_, err := snug.Open("metal:0")
	fmt.Println(errors.Is(err, snug.ErrNotBuilt))
	// Output: true
}

// handles is a device whose foreign memory has handles: 7 is 16 bytes.
type handles struct {
	driver.Driver
	wrapped int
}

func (h *handles) WrapBuffer(handle uintptr) (driver.Mem, error) {
	if handle != 7 {
		return driver.Mem{}, driver.ErrDevice
	}
	h.wrapped++
	return driver.Mem{Addr: 4096, Size: 16}, nil
}

func (h *handles) Free(driver.Mem) error {
	h.wrapped--
	return nil
}

func (h *handles) Close() error { return nil }

type handleBackend struct{ dev *handles }

// OpenOn counts the stream as a wrapped handle, so that a test sees it.
func (b handleBackend) OpenOn(_ int, stream uintptr) (driver.Driver, error) {
	return &handles{wrapped: int(stream)}, nil
}

// Capture runs the step as its only replay would.
func (h *handles) Capture(step func() error) (driver.Graph, error) {
	if err := step(); err != nil {
		return nil, err
	}
	return &replays{h: h}, nil
}

type replays struct{ h *handles }

func (r *replays) Launch() error {
	r.h.wrapped += 10
	return nil
}

func (r *replays) Close() error {
	r.h.wrapped = 0
	return nil
}

func (handleBackend) Count() (int, error)               { return 1, nil }
func (b handleBackend) Open(int) (driver.Driver, error) { return b.dev, nil }

var foreign = &handles{}

func init() { driver.Register("handles", handleBackend{foreign}) }

func TestWrapHandle(t *testing.T) {
	h := foreign
	dev, err := snug.Open("handles")
	require.NoError(t, err)
	a, err := snug.Wrap[float32](dev, 7, 3)
	require.NoError(t, err)
	require.EqualValues(t, 4096, a.Addr())
	require.Equal(t, 3, a.Len())
	_, err = snug.Wrap[float32](dev, 7, 5)
	require.ErrorIs(t, err, snug.ErrShape)
	_, err = snug.Wrap[float32](dev, 8, 1)
	require.ErrorIs(t, err, snug.ErrDevice)
	require.Equal(t, 1, h.wrapped)
	require.NoError(t, a.Close())
	require.Zero(t, h.wrapped)
	require.NoError(t, dev.Close())
	_, err = snug.Wrap[float32](dev, 7, 3)
	require.ErrorIs(t, err, snug.ErrDevice)
}

func TestOpenOn(t *testing.T) {
	dev, err := snug.OpenOn("handles:0", 3)
	require.NoError(t, err)
	require.Equal(t, "handles:0", dev.Name())
	require.NoError(t, dev.Close())
	for name, want := range map[string]error{
		"opaque:0": snug.ErrDevice, "abacus": snug.ErrNotBuilt, "handles:1": snug.ErrDevice, "": snug.ErrConfig, "cpu": snug.ErrDevice,
	} {
		_, err := snug.OpenOn(name, 3)
		require.ErrorIs(t, err, want, "%q", name)
	}
}

func TestCapture(t *testing.T) {
	dev, err := snug.OpenOn("handles", 0)
	require.NoError(t, err)
	steps := 0
	g, err := dev.Capture(func() error { steps++; return nil })
	require.NoError(t, err)
	require.Equal(t, 1, steps)
	require.NoError(t, g.Launch())
	require.NoError(t, g.Close())
	failure := errors.New("step")
	_, err = dev.Capture(func() error { return failure })
	require.ErrorIs(t, err, failure)
	require.NoError(t, dev.Close())
	_, err = dev.Capture(func() error { return nil })
	require.ErrorIs(t, err, snug.ErrDevice)
	for _, dev := range []*snug.Device{snug.CPU(), kerneltest.Backends(t)[2].Dev} {
		_, err = dev.Capture(func() error { return nil })
		require.ErrorIs(t, err, snug.ErrDevice)
		require.NotErrorIs(t, err, snug.ErrNotBuilt)
		require.ErrorContains(t, err, "has no graphs")
		_, err = device.Copier(dev)
		require.ErrorIs(t, err, snug.ErrDevice)
		require.NotErrorIs(t, err, snug.ErrNotBuilt)
	}
}
