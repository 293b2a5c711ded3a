//go:build metal

package metal

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug/internal/driver"
)

// kinds are the memories that a device may have.
var kinds = []struct {
	name string
	make func() *fake
}{
	{"unified", newFake},
	{"unified, without gpuAddress", func() *fake { f := newFake(); f.old = true; return f }},
	{"discrete", func() *fake { f := newFake(); f.discrete = true; return f }},
}

func TestAllocZeroes(t *testing.T) {
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			f := k.make()
			d := f.open(t)
			for _, n := range []int{1, 16, 1001} {
				m, err := d.Alloc(n)
				require.NoError(t, err)
				require.NotZero(t, m.Addr)
				require.Equal(t, n, m.Size)
				require.Equal(t, f.discrete, m.Host == nil)
				got := bytes.Repeat([]byte{1}, n)
				require.NoError(t, d.CopyOut(got, m))
				require.Equal(t, make([]byte, n), got)
			}
		})
	}
}

// TestAddresses copies to and from ranges of several buffers.
func TestAddresses(t *testing.T) {
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			d := k.make().open(t)
			var ms []driver.Mem
			for i := range 5 {
				m, err := d.Alloc(100 + i)
				require.NoError(t, err)
				ms = append(ms, m)
			}
			require.NoError(t, d.Free(ms[2]))
			for i, m := range ms {
				for _, off := range []int{0, 4, 7, 90} {
					src := []byte{byte(i), byte(off), 3, 4, 5}
					err := d.CopyIn(m.Slice(off, 5), src)
					if i == 2 {
						require.ErrorIs(t, err, driver.ErrDevice)
						continue
					}
					require.NoError(t, err)
					got := make([]byte, 5)
					require.NoError(t, d.CopyOut(got, m.Slice(off, 5)))
					require.Equal(t, src, got)
				}
				require.ErrorIs(t, d.CopyIn(m.Slice(98, 5+i), make([]byte, 5+i)), driver.ErrDevice, "beyond the end")
				require.ErrorIs(t, d.Free(m.Slice(4, 4)), driver.ErrDevice, "not a start")
			}
			require.ErrorIs(t, d.CopyOut(make([]byte, 1), driver.Mem{Addr: 1, Size: 1}), driver.ErrDevice)
		})
	}
}

// TestFreeWaits frees memory that queued work still writes. The fake notes a
// fault when a command reaches a buffer that is gone.
func TestFreeWaits(t *testing.T) {
	f := newFake()
	d := f.open(t)
	m, err := d.Alloc(64)
	require.NoError(t, err)
	f.pause(true)
	require.NoError(t, d.LaunchGrid(f.fill(m, 7)))
	require.NoError(t, d.Free(m))
	require.ErrorIs(t, d.LaunchGrid(f.fill(m, 8)), driver.ErrDevice)
	require.Equal(t, 2, f.count("buffer"), "the freed one and the empty one")
	f.pause(false)
	require.NoError(t, d.Sync())
	require.Equal(t, 1, f.count("buffer"))
}

func TestOutOfMemory(t *testing.T) {
	f := newFake()
	d := f.open(t)
	_, err := d.Alloc(f.limit)
	require.ErrorIs(t, err, driver.ErrNoMemory)
	require.ErrorContains(t, err, fmt.Sprintf("%d bytes wanted, %d of %d free", f.limit, f.limit-emptyBytes, f.limit))
	_, err = d.Alloc(0)
	require.ErrorIs(t, err, driver.ErrNoMemory)

	// What was freed is there again, also while the queue holds it.
	m, err := d.Alloc(f.limit / 2)
	require.NoError(t, err)
	require.NoError(t, d.LaunchGrid(f.fill(m, 7)))
	require.NoError(t, d.Free(m))
	m, err = d.Alloc(f.limit / 2)
	require.NoError(t, err)

	// Staging needs memory too.
	require.NoError(t, d.LaunchGrid(f.fill(m, 7)))
	f.limit = f.used
	require.ErrorIs(t, d.CopyIn(m, make([]byte, 1000)), driver.ErrNoMemory)
}

func TestWrapBuffer(t *testing.T) {
	f := newFake()
	d := f.open(t)
	o, stranger := f.foreign(64), f.foreign(64)
	f.things[stranger].name = "of another device"
	for _, bad := range []uintptr{0, uintptr(stranger)} {
		_, err := d.WrapBuffer(bad)
		require.ErrorIs(t, err, driver.ErrDevice)
	}
	m, err := d.WrapBuffer(uintptr(o))
	require.NoError(t, err)
	require.Equal(t, 64, m.Size)
	again, err := d.WrapBuffer(uintptr(o))
	require.NoError(t, err)
	require.Equal(t, m, again)
	require.NoError(t, d.LaunchGrid(f.fill(m.Slice(4, 8), 7)))
	require.NoError(t, d.Sync())
	require.Equal(t, []byte{7, 7, 7, 7, 7, 7, 7, 7}, m.Bytes()[4:12])
	require.NoError(t, d.Free(m))
	require.NoError(t, d.CopyIn(m, []byte{1}), "wrapped once more")
	require.NoError(t, d.Free(m))
	require.ErrorIs(t, d.Free(m), driver.ErrDevice)

	_, err = d.WrapBuffer(uintptr(o)) // Close gives it back
	require.NoError(t, err)
	require.NoError(t, d.Close())
	for _, x := range []object{o, stranger} {
		require.Equal(t, 1, f.things[x].refs)
		f.drop(x)
	}
}
