package offload

import (
	"sync"
	"testing"
	"time"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// counted returns n elements from first on.
func counted(n int, first float32) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = first + float32(i)
	}
	return x
}

func newMover(t testing.TB, dev *snug.Device, pageBytes, pages int) *Mover {
	m, err := NewMover(dev, pageBytes, pages)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	return m
}

// onDevice returns n elements on dev.
func onDevice(t testing.TB, dev *snug.Device, x []float32) snug.View {
	a, err := snug.Make[float32](dev, len(x))
	require.NoError(t, err)
	require.NoError(t, a.CopyIn(x))
	return a.View()
}

// read returns the elements of a vector on a device, after all queued work.
func read(t testing.TB, x snug.View) []float32 {
	host := make([]float32, x.Len())
	require.NoError(t, snug.Copy(host, x))
	return host
}

// TestMoves moves vectors of all lengths around pages to every backend and back.
func TestMoves(t *testing.T) {
	test := func(t *testing.T, p kerneltest.Backend) {
		dev := p.Dev
		if dev == nil {
			dev = snug.CPU()
		}
		m := newMover(t, dev, 100, 3) // pages of 128 bytes
		for _, n := range []int{0, 1, 31, 32, 33, 95, 96, 97, 1000} {
			want := counted(n, 1)
			src, dst := append([]float32(nil), want...), make([]float32, n+2)
			x := kerneltest.Put(t, p, make([]float32, n))
			load, err := m.Load(x.View, snug.ViewOf(src))
			require.NoError(t, err)
			clear(src) // it may be reused
			require.NoError(t, load.Await())
			require.Equal(t, append([]float32(nil), want...), x.Get())

			save, err := m.Save(snug.ViewOf(dst[1:1+n]), x.View)
			require.NoError(t, err)
			require.NoError(t, save.Wait())
			require.Equal(t, append(append([]float32{0}, want...), 0), dst)
			require.NoError(t, save.Wait())
			require.NoError(t, save.Await())
		}
	}
	kerneltest.Each(t, test)
	t.Run("copier", func(t *testing.T) {
		dev, _ := openCopier(t)
		test(t, kerneltest.Backend{Name: "copier", Dev: dev})
	})
}

// TestMovesBesideKernels ends moves while a kernel that was queued after their
// start has not.
func TestMovesBesideKernels(t *testing.T) {
	dev, _ := openCopier(t)
	m := newMover(t, dev, 64, 8)
	busy, x, y := onDevice(t, dev, []float32{0}), onDevice(t, dev, make([]float32, 100)), onDevice(t, dev, counted(25, 7))
	release, saved := make(chan struct{}), make([]float32, 25)

	save, err := m.Save(snug.ViewOf(saved), y)
	require.NoError(t, err)
	load, err := m.Load(x, snug.ViewOf(counted(100, 1)))
	require.NoError(t, err)
	launch(t, busy, func(x []float32) {
		<-release
		x[0] = 1
	})
	require.NoError(t, save.Wait())
	require.NoError(t, load.Wait()) // would never return if the copies were queued with the kernel
	require.Equal(t, counted(25, 7), saved)
	close(release)
	require.Equal(t, []float32{1}, read(t, busy))
	require.Equal(t, counted(100, 1), read(t, x))
}

// TestLoadOrder queues kernels that use the memory of a load before and after it.
func TestLoadOrder(t *testing.T) {
	dev, c := openCopier(t)
	m := newMover(t, dev, 64, 4)
	x := onDevice(t, dev, counted(50, 1))
	var before, after []float32
	release := make(chan struct{})
	c.gate = make(chan struct{})

	launch(t, x, func(x []float32) {
		<-release
		before = append(before, x...)
	})
	load, err := m.Load(x, snug.ViewOf(counted(50, 1000)))
	require.NoError(t, err)
	require.NoError(t, load.Await())
	ran := make(chan struct{})
	launch(t, x, func(x []float32) {
		after = append(after, x...)
		close(ran)
	})
	close(release)
	select {
	case <-ran:
		t.Fatal("the kernel did not wait for the copy")
	case <-time.After(10 * time.Millisecond):
	}
	close(c.gate)
	require.NoError(t, dev.Sync())
	require.Equal(t, counted(50, 1), before)
	require.Equal(t, counted(50, 1000), after)
}

// TestSaveOrder queues kernels that write the memory of a save before and after it.
func TestSaveOrder(t *testing.T) {
	dev, c := openCopier(t)
	m := newMover(t, dev, 64, 4)
	x, saved := onDevice(t, dev, make([]float32, 50)), make([]float32, 50)
	c.gate = make(chan struct{})

	launch(t, x, func(x []float32) { copy(x, counted(50, 5)) })
	save, err := m.Save(snug.ViewOf(saved), x)
	require.NoError(t, err)
	require.NoError(t, save.Await())
	launch(t, x, func(x []float32) { clear(x) })
	close(c.gate)
	require.NoError(t, save.Wait())
	require.Equal(t, counted(50, 5), saved)
	require.Equal(t, make([]float32, 50), read(t, x))
}

// TestOrders compares any sequence of loads, saves and kernels with the same in
// plain Go.
func TestOrders(t *testing.T) {
	dev, _ := openCopier(t)
	rapid.Check(t, func(t *rapid.T) { orders(t, dev) })
}

func orders(t *rapid.T, dev *snug.Device) {
	const regions, n = 3, 70
	m, err := NewMover(dev, 64, rapid.IntRange(1, 12).Draw(t, "pages"))
	require.NoError(t, err)
	defer func() { require.NoError(t, m.Close()) }()
	array, err := snug.Make[float32](dev, regions*n)
	require.NoError(t, err)
	defer array.Close()
	model := make([]float32, regions*n)
	type saved struct {
		move      Move
		got, want []float32
	}
	var saves []saved
	for i := range rapid.IntRange(1, 12).Draw(t, "steps") {
		lo := n * rapid.IntRange(0, regions-1).Draw(t, "region")
		part, err := array.Slice(lo, lo+n)
		require.NoError(t, err)
		x, want := part.View(), model[lo:lo+n]
		switch rapid.SampledFrom([]string{"load", "save", "kernel"}).Draw(t, "do") {
		case "load":
			copy(want, counted(n, float32(1000*i)))
			src := append([]float32(nil), want...)
			load, err := m.Load(x, snug.ViewOf(src))
			require.NoError(t, err)
			clear(src)
			if rapid.Bool().Draw(t, "wait") {
				require.NoError(t, load.Wait())
			} else {
				require.NoError(t, load.Await())
			}
		case "save":
			s := saved{got: make([]float32, n), want: append([]float32(nil), want...)}
			s.move, err = m.Save(snug.ViewOf(s.got), x)
			require.NoError(t, err)
			require.NoError(t, s.move.Await())
			saves = append(saves, s)
		case "kernel":
			add := func(x []float32) {
				for i := range x {
					x[i]++
				}
			}
			add(want)
			require.NoError(t, device.Launch(dev, &kernel{x, add}))
		}
	}
	for _, s := range saves {
		require.NoError(t, s.move.Wait())
		require.Equal(t, s.want, s.got)
	}
	got := make([]float32, len(model))
	require.NoError(t, array.CopyOut(got))
	require.Equal(t, model, got)
}

// TestCloseEndsMoves closes a Mover whose moves nobody has waited for.
func TestCloseEndsMoves(t *testing.T) {
	dev, _ := openCopier(t)
	m, err := NewMover(dev, 64, 8)
	require.NoError(t, err)
	require.EqualValues(t, 8*64, m.pinned.Size)
	x, saved := onDevice(t, dev, counted(30, 1)), make([]float32, 30)
	save, err := m.Save(snug.ViewOf(saved), x)
	require.NoError(t, err)
	require.NoError(t, m.Close())
	require.Equal(t, counted(30, 1), saved)
	require.Zero(t, m.pinned.Size)
	require.NoError(t, save.Wait())
	require.NoError(t, m.Close())
}

// TestManyCallers uses one Mover from many goroutines.
func TestManyCallers(t *testing.T) {
	dev, _ := openCopier(t)
	m := newMover(t, dev, 64, 3)
	x := onDevice(t, dev, make([]float32, 8*50))
	var wg sync.WaitGroup
	for i := range 8 {
		part, err := x.Slice(i*50, i*50+50)
		require.NoError(t, err)
		wg.Go(func() {
			for round := range 5 {
				want, got := counted(50, float32(100*i+round)), make([]float32, 50)
				load, err := m.Load(part, snug.ViewOf(want))
				if err == nil {
					err = load.Await()
				}
				var save Move
				if err == nil {
					save, err = m.Save(snug.ViewOf(got), part)
				}
				if err == nil {
					err = save.Wait()
				}
				if err != nil || got[0] != want[0] || got[49] != want[49] {
					t.Errorf("part %d: %v, want %v, %v", i, got, want, err)
				}
			}
		})
	}
	wg.Wait()
}

func TestMoverAllocs(t *testing.T) {
	dev, c := openCopier(t)
	c.instant = true
	m := newMover(t, dev, 1000, 3)
	x, host := onDevice(t, dev, make([]float32, 3000)), make([]float32, 3000)
	kerneltest.NoAllocs(t, func() {
		load, err := m.Load(x, snug.ViewOf(host))
		require.NoError(t, err)
		require.NoError(t, load.Await())
		save, err := m.Save(snug.ViewOf(host), x)
		require.NoError(t, err)
		require.NoError(t, save.Await())
		require.NoError(t, save.Wait())
	})
}
