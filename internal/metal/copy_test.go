//go:build metal

package metal

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug/internal/driver"
)

// sequence returns n bytes that differ from their neighbours.
func sequence(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + 1)
	}
	return b
}

func TestCopy(t *testing.T) {
	for _, k := range kinds {
		for _, c := range []struct{ dst, src, n int }{
			{0, 0, 64}, {4, 8, 12}, {1, 0, 8}, {0, 2, 8}, {4, 4, 7}, {3, 5, 300}, {0, 0, 0},
		} {
			t.Run(fmt.Sprint(k.name, c), func(t *testing.T) {
				d := k.make().open(t)
				src, err := d.Alloc(400)
				require.NoError(t, err)
				dst, err := d.Alloc(400)
				require.NoError(t, err)
				data := sequence(400)
				require.NoError(t, d.CopyIn(src, data))
				require.NoError(t, d.Copy(dst.Slice(c.dst, 1), src.Slice(c.src, c.n)))
				want := make([]byte, 400)
				copy(want[c.dst:], data[c.src:c.src+c.n])
				got := make([]byte, 400)
				require.NoError(t, d.CopyOut(got, dst))
				require.Equal(t, want, got)
			})
		}
	}
}

// TestCopyInOrder copies to memory that queued work reads before and writes
// after, for lengths that are staged and one that waits.
func TestCopyInOrder(t *testing.T) {
	for _, k := range kinds {
		for _, n := range []int{8, 1001, stageLimit + 4} {
			t.Run(fmt.Sprint(k.name, n), func(t *testing.T) {
				f := k.make()
				f.limit = 64 << 20
				d := f.open(t)
				m, err := d.Alloc(n)
				require.NoError(t, err)
				out, err := d.Alloc(2 * n)
				require.NoError(t, err)
				f.pause(true)
				require.NoError(t, d.Copy(out, m)) // zeros
				if n > stageLimit {
					time.AfterFunc(10*time.Millisecond, func() { f.pause(false) })
				}
				data := sequence(n)
				require.NoError(t, d.CopyIn(m, data))
				want := bytes.Clone(data)
				clear(data) // the caller may
				require.NoError(t, d.Copy(out.Slice(n, n), m))
				f.pause(false)
				got := make([]byte, 2*n)
				require.NoError(t, d.CopyOut(got, out))
				require.Equal(t, make([]byte, n), got[:n])
				require.Equal(t, want, got[n:])
			})
		}
	}
}

// TestCopyInDirect copies at once to unified memory that no queued work uses.
func TestCopyInDirect(t *testing.T) {
	f := newFake()
	d := f.open(t)
	a, err := d.Alloc(64)
	require.NoError(t, err)
	b, err := d.Alloc(64)
	require.NoError(t, err)
	f.pause(true)
	require.NoError(t, d.LaunchGrid(f.fill(a, 7)))
	require.NoError(t, d.CopyIn(b, sequence(64)))
	require.Equal(t, sequence(64), b.Bytes())
}

// strange is a fence of another kind of device.
type strange struct{ driver.Fence }

// TestFences moves data in and out beside the work, on a GPU that runs the
// queues in any order that the events allow.
func TestFences(t *testing.T) {
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			f := k.make()
			d := f.open(t)
			m, err := d.Alloc(64)
			require.NoError(t, err)
			in, err := d.AllocPinned(64)
			require.NoError(t, err)
			out, err := d.AllocPinned(64)
			require.NoError(t, err)
			for round := range byte(20) {
				f.pause(true)
				for i := range in.Bytes() {
					in.Bytes()[i] = round
				}
				arrived, err := d.StartCopyIn(m, in, nil)
				require.NoError(t, err)
				require.NoError(t, arrived.Await())
				require.NoError(t, d.LaunchGrid(f.increment(m)))
				var point driver.Fence
				if round%2 == 1 {
					point, err = d.Point()
					require.NoError(t, err)
					require.NoError(t, point.Await(), "it is the queue's own")
				}
				left, err := d.StartCopyOut(out, m, point)
				require.NoError(t, err)
				require.NoError(t, left.Await())
				require.NoError(t, d.LaunchGrid(f.fill(m, 99)))
				again, err := d.StartCopyIn(m, in, left)
				require.NoError(t, err)
				f.pause(false)
				require.NoError(t, again.Wait())
				if point != nil {
					require.NoError(t, point.Wait())
					point.Release()
				}
				require.NoError(t, left.Wait())
				require.Equal(t, bytes.Repeat([]byte{round + 1}, 64), out.Bytes())
			}
			none, err := d.StartCopyIn(m, in.Slice(0, 0), nil)
			require.NoError(t, err)
			require.NoError(t, none.Wait())
			none, err = d.StartCopyIn(m, in.Slice(0, 0), none)
			require.NoError(t, err)
			require.NoError(t, none.Wait())
			_, err = d.StartCopyIn(m, in, strange{})
			require.ErrorIs(t, err, driver.ErrDevice)
			_, err = d.StartCopyIn(driver.Mem{Addr: 1}, in, nil)
			require.ErrorIs(t, err, driver.ErrDevice)
			require.NoError(t, d.FreePinned(in))
			require.NoError(t, d.FreePinned(out))
		})
	}
}

// TestCopyInAfterFence copies to memory that a copy beside the work still
// fills, for lengths that are staged and one that waits.
func TestCopyInAfterFence(t *testing.T) {
	for _, n := range []int{8, stageLimit + 4} {
		f := newFake()
		f.limit = 64 << 20
		d := f.open(t)
		m, err := d.Alloc(n)
		require.NoError(t, err)
		pinned, err := d.AllocPinned(n)
		require.NoError(t, err)
		f.pause(true)
		fence, err := d.StartCopyIn(m, pinned, nil)
		require.NoError(t, err)
		require.NoError(t, fence.Await())
		time.AfterFunc(10*time.Millisecond, func() { f.pause(false) })
		require.NoError(t, d.CopyIn(m, sequence(n)))
		got := make([]byte, n)
		require.NoError(t, d.CopyOut(got, m))
		require.Equal(t, sequence(n), got)
	}
}

// TestManyGoroutines drives a device from many goroutines with memory of their
// own each.
func TestManyGoroutines(t *testing.T) {
	f := newFake()
	d := f.open(t)
	errs := make(chan error)
	const goroutines = 8
	for g := range goroutines {
		go func() { errs <- f.drive(d, byte(g)) }()
	}
	for range goroutines {
		require.NoError(t, <-errs)
	}
	require.Less(t, f.commits, goroutines*rounds*12, "some commands share a command buffer")
}

const rounds = 30

// drive does every operation and compares what comes out.
func (f *fake) drive(d *device, id byte) error {
	for round := range rounds {
		n := 1 + rand.IntN(200)
		m, err := d.Alloc(n)
		if err != nil {
			return err
		}
		pinned, err := d.AllocPinned(n)
		if err != nil {
			return err
		}
		copy(pinned.Bytes(), bytes.Repeat([]byte{id}, n))
		fence, err := d.StartCopyIn(m, pinned, nil)
		if err != nil {
			return err
		}
		if err := fence.Await(); err != nil {
			return err
		}
		for range 3 {
			if err := d.LaunchGrid(f.increment(m)); err != nil {
				return err
			}
		}
		if err := d.CopyIn(m.Slice(n-1, 1), []byte{200}); err != nil {
			return err
		}
		if _, _, err := d.Memory(); err != nil {
			return err
		}
		got := make([]byte, n)
		if err := d.CopyOut(got, m); err != nil {
			return err
		}
		want := append(bytes.Repeat([]byte{id + 3}, n-1), 200)
		if !bytes.Equal(want, got) {
			return fmt.Errorf("goroutine %d, round %d: %v, want %v", id, round, got, want)
		}
		for _, x := range []driver.Mem{m, pinned} {
			if err := d.Free(x); err != nil {
				return err
			}
		}
	}
	return nil
}
