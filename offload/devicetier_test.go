package offload

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/snug-ml/snug"
	"github.com/stretchr/testify/require"
)

func newTier(t testing.TB, s *Store, m *Mover, limit int64) *DeviceTier {
	d, err := NewDeviceTier(s, m, limit)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, m.dev.Sync())
		require.NoError(t, d.Close())
		require.NoError(t, d.Close(), "closing twice does nothing")
		require.Zero(t, d.Stats().Bytes)
	})
	return d
}

// pinOn pins a page on d.
func pinOn(t testing.TB, d *DeviceTier, x *Tensor[float32], page int) DevicePage {
	p, err := x.PinOn(context.Background(), d, page)
	require.NoError(t, err)
	return p
}

// TestDeviceTier changes random pages on a device under a limit of three, and in host
// memory in between, and compares with a slice.
func TestDeviceTier(t *testing.T) {
	const n, pageLen, limit = 301, 32, 3 * 4 * 32
	eachDevice(t, func(t *testing.T, dev *snug.Device) {
		rng := rand.New(rand.NewPCG(1, 2))
		s := memStore(t, Options{HostLimit: 5 * 4 * pageLen})
		x, err := Create[float32](s, "x", n, pageLen)
		require.NoError(t, err)
		want := normals(n, 1)
		require.NoError(t, x.WriteAt(want, 0))
		d := newTier(t, s, newMover(t, dev, 64, 3), limit)
		for range 300 {
			i := rng.IntN(x.Pages())
			lo, hi := i*pageLen, min((i+1)*pageLen, n)
			p := pinOn(t, d, x, i)
			require.Equal(t, want[lo:hi], read(t, p.View))
			change := rng.IntN(2) == 0
			if change {
				copy(want[lo:hi], normals(hi-lo, rng.Uint64()))
				require.NoError(t, snug.Copy(p.View, want[lo:hi]))
			}
			require.NoError(t, p.Unpin(change))
			if rng.IntN(20) == 0 {
				require.NoError(t, d.Flush())
				at := rng.IntN(n - 5)
				copy(want[at:], normals(5, rng.Uint64()))
				require.NoError(t, x.WriteAt(want[at:at+5], at))
			}
		}
		require.NoError(t, d.Flush())
		got := make([]float32, n)
		require.NoError(t, x.ReadAt(got, 0))
		require.Equal(t, want, got)
		st := d.Stats()
		require.LessOrEqual(t, st.Peak, int64(limit))
		require.Positive(t, st.Evicted)
		require.Positive(t, st.SaveBytes)
		require.EqualValues(t, 300, st.Hits+st.Misses)
		requireWithin(t, s)
	})
}

// TestDeviceTierAhead goes through more pages than the device holds, again and again:
// it keeps what is used next, and copies ahead what is in host memory.
func TestDeviceTierAhead(t *testing.T) {
	const pages, pageLen, passes = 8, 16, 20
	eachDevice(t, func(t *testing.T, dev *snug.Device) {
		s := memStore(t, Options{})
		x, err := Create[float32](s, "x", pages*pageLen, pageLen)
		require.NoError(t, err)
		d := newTier(t, s, newMover(t, dev, 64, 3), 5*4*pageLen)
		for range passes {
			for i := range pages {
				p := pinOn(t, d, x, i)
				require.NoError(t, p.Unpin(false))
			}
		}
		st := d.Stats()
		require.Greater(t, st.Ahead, int64(passes))
		require.Less(t, st.Misses, int64(passes*pages/4))
		require.Less(t, st.LoadBytes, int64(passes*pages*pageLen*4*3/4), "least recently used would copy all each time")
	})
}

// TestDeviceTierDemotes gives a device less memory than the limit says.
func TestDeviceTierDemotes(t *testing.T) {
	const pages, pageLen = 6, 32
	dev, c := openCopier(t)
	s := memStore(t, Options{})
	x, err := Create[float32](s, "x", pages*pageLen, pageLen)
	require.NoError(t, err)
	want := normals(pages*pageLen, 3)
	require.NoError(t, x.WriteAt(want, 0))
	d := newTier(t, s, newMover(t, dev, 64, 3), 0)
	c.memory = 2 * 4 * pageLen
	for range 3 {
		for i := range pages {
			p := pinOn(t, d, x, i)
			require.Equal(t, want[i*pageLen:(i+1)*pageLen], read(t, p.View))
			require.NoError(t, p.Unpin(true))
		}
	}
	st := d.Stats()
	require.EqualValues(t, 1, st.Demoted)
	require.EqualValues(t, 2*4*pageLen, st.Limit)
	require.EqualValues(t, 2*4*pageLen, st.Peak)

	a, b := pinOn(t, d, x, 0), pinOn(t, d, x, 1)
	_, err = x.PinOn(context.Background(), d, 2)
	require.ErrorIs(t, err, snug.ErrNoMemory)
	require.NoError(t, a.Unpin(false))
	c2 := pinOn(t, d, x, 2)
	require.NoError(t, b.Unpin(false))
	require.NoError(t, c2.Unpin(false))

	small, err := Create[float32](s, "small", 8, 4)
	require.NoError(t, err)
	p := pinOn(t, d, small, 1) // in the room of a page of another size
	require.Equal(t, 4, p.View.Len())
	require.NoError(t, p.Unpin(false))
}

func TestDeviceTierErrors(t *testing.T) {
	s, other := memStore(t, Options{}), memStore(t, Options{})
	m := newMover(t, snug.CPU(), 64, 1)
	require.ErrorIs(t, second(NewDeviceTier(s, nil, 0)), snug.ErrConfig)
	require.ErrorIs(t, second(NewDeviceTier(s, m, -1)), snug.ErrConfig)
	d := newTier(t, s, m, 0)
	x, err := Create[float32](s, "x", 8, 4)
	require.NoError(t, err)
	foreign, err := Create[float32](other, "x", 8, 4)
	require.NoError(t, err)
	ctx := context.Background()
	require.ErrorIs(t, second(x.PinOn(ctx, d, 2)), snug.ErrShape)
	require.ErrorIs(t, second(foreign.PinOn(ctx, d, 0)), snug.ErrConfig)
	require.ErrorIs(t, DevicePage{}.Unpin(false), snug.ErrConfig)
	canceled, cancel := context.WithCancel(ctx)
	cancel()
	require.NoError(t, s.Commit())
	p := pinOn(t, d, x, 0)
	require.ErrorIs(t, d.Flush(), nil)
	require.NoError(t, p.Unpin(true))
	require.ErrorIs(t, p.Unpin(false), snug.ErrConfig)
	p = pinOn(t, d, x, 0)
	require.ErrorIs(t, d.Flush(), snug.ErrConfig, "pinned and dirty")
	require.NoError(t, p.Unpin(false))

	require.NoError(t, x.WriteAt([]float32{1}, 0))
	require.ErrorIs(t, second(x.PinOn(ctx, d, 0)), snug.ErrConfig, "changed on both sides")
	require.ErrorIs(t, d.Flush(), snug.ErrConfig)

	src := &weights{name: "w", values: normals(8, 1)}
	w, err := Attach[float32](s, "w", src, "w", 8, 4)
	require.NoError(t, err)
	require.ErrorIs(t, second(w.PinOn(canceled, d, 1)), context.Canceled)
	p = pinOn(t, d, w, 1)
	require.Equal(t, src.values[4:], read(t, p.View))
	require.ErrorIs(t, p.Unpin(true), snug.ErrConfig, "read-only")
	require.NoError(t, p.Unpin(false))
	require.NoError(t, s.Delete("w"))
	require.Error(t, second(w.PinOn(ctx, d, 1)))
	require.NoError(t, d.Close())
	require.ErrorIs(t, second(x.PinOn(ctx, d, 1)), snug.ErrConfig)
}

// TestDeviceTierConcurrent uses pages from many goroutines.
func TestDeviceTierConcurrent(t *testing.T) {
	const pages, pageLen = 12, 16
	dev, _ := openCopier(t)
	s := memStore(t, Options{HostLimit: 6 * 4 * pageLen})
	x, err := Create[float32](s, "x", pages*pageLen, pageLen)
	require.NoError(t, err)
	d := newTier(t, s, newMover(t, dev, 64, 3), 8*4*pageLen)
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range 40 {
				page := (i*(g+1) + g) % pages
				p, err := x.PinOn(context.Background(), d, page)
				if err != nil {
					t.Error(err)
					return
				}
				if page%4 == g {
					if err := snug.Copy(p.View, normals(pageLen, uint64(page))); err != nil {
						t.Error(err)
					}
				}
				if err := p.Unpin(page%4 == g); err != nil {
					t.Error(err)
				}
				time.Sleep(50 * time.Microsecond)
			}
		})
	}
	wg.Wait()
	require.LessOrEqual(t, d.Stats().Peak, int64(8*4*pageLen))
}
