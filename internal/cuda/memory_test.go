//go:build (cuda || hip) && linux

package cuda

import (
	"bytes"
	"testing"

	"github.com/snug-ml/snug/internal/driver"
	"github.com/stretchr/testify/require"
)

func eachPool(t *testing.T, test func(t *testing.T, f *fake, d *Device)) {
	for name, set := range map[string]func(*fake){"pools": nil, "no pools": noPools} {
		t.Run(name, func(t *testing.T) {
			f, d := openFake(t, set)
			test(t, f, d)
		})
	}
}

func TestAllocIsZeroed(t *testing.T) {
	eachPool(t, func(t *testing.T, _ *fake, d *Device) {
		m, err := d.Alloc(1000)
		require.NoError(t, err)
		require.Equal(t, 1000, m.Size)
		require.Nil(t, m.Host)
		got := bytes.Repeat([]byte{1}, 1000)
		require.NoError(t, d.CopyOut(got, m))
		require.Equal(t, make([]byte, 1000), got)

		for _, size := range []int{0, -1} {
			_, err = d.Alloc(size)
			require.ErrorIs(t, err, driver.ErrDevice)
			_, err = d.AllocPinned(size)
			require.ErrorIs(t, err, driver.ErrDevice)
		}
	})
}

func TestOutOfMemory(t *testing.T) {
	eachPool(t, func(t *testing.T, f *fake, d *Device) {
		f.total = 1000
		m, err := d.Alloc(900)
		require.NoError(t, err)
		_, err = d.Alloc(200)
		require.ErrorIs(t, err, driver.ErrNoMemory)
		require.ErrorContains(t, err, "200 bytes wanted")
		require.ErrorContains(t, err, "of 1000")
		require.ErrorContains(t, err, "CUDA_ERROR_OUT_OF_MEMORY (2)")

		require.NoError(t, d.Free(m))
		_, err = d.Alloc(200)
		require.NoError(t, err, "memory that queued work holds is waited for")
	})
}

// What the pool keeps goes back to the device before an allocation fails.
func TestOutOfMemoryTrims(t *testing.T) {
	f, d := openFake(t, nil)
	f.fail["cuMemAllocFromPoolAsync"] = errOutOfMemory
	require.Contains(t, f.calls(func() {
		_, err := d.Alloc(100)
		require.ErrorIs(t, err, driver.ErrNoMemory)
	}), "cuMemPoolTrimTo")
}

// Freed memory is in use until the work queued before has run.
func TestFreeAfterQueuedWork(t *testing.T) {
	eachPool(t, func(t *testing.T, f *fake, d *Device) {
		m, err := d.Alloc(4)
		require.NoError(t, err)
		other, err := d.Alloc(4)
		require.NoError(t, err)
		require.NoError(t, d.CopyIn(m, []byte{1, 2, 3, 4}))
		require.NoError(t, d.Copy(other, m))
		require.NoError(t, d.Free(m))
		require.Len(t, f.memory, 2, "the queue has not run")
		got := make([]byte, 4)
		require.NoError(t, d.CopyOut(got, other))
		require.Equal(t, []byte{1, 2, 3, 4}, got)
		_, _, err = d.Memory()
		require.NoError(t, err)
		require.NoError(t, d.giveBackNow())
		require.Len(t, f.memory, 1)

		require.ErrorIs(t, d.Free(m), driver.ErrDevice, "freed twice")
		require.ErrorContains(t, d.Free(driver.Mem{Addr: 12, Size: 1}), "0xc, which was not allocated here")
	})
}

// giveBackNow returns freed memory to the device.
func (d *Device) giveBackNow() error {
	if err := d.enter(); err != nil {
		return err
	}
	defer d.leave()
	return d.giveBack()
}

func TestMemory(t *testing.T) {
	f, d := openFake(t, nil)
	_, err := d.Alloc(1 << 20)
	require.NoError(t, err)
	m, err := d.Alloc(1 << 20)
	require.NoError(t, err)
	require.NoError(t, d.Free(m))
	require.NoError(t, d.Sync())
	require.EqualValues(t, 2<<20, f.used(), "the pool keeps what was freed")
	free, total, err := d.Memory()
	require.NoError(t, err)
	require.EqualValues(t, f.total, total)
	require.EqualValues(t, f.total-1<<20, free)

	f, d = openFake(t, noPools)
	free, _, err = d.Memory()
	require.NoError(t, err)
	require.EqualValues(t, f.total, free)
}

func TestPoolKeepsABoundedPart(t *testing.T) {
	f := newFake()
	var d *Device
	calls := f.calls(func() {
		var err error
		d, err = f.open()
		require.NoError(t, err)
	})
	require.Contains(t, calls, "cuMemPoolSetAttribute 4 67108864", "1/16 of 1 GiB")
	require.NoError(t, d.Close())
}

// Two processes share a device under a limit each: neither takes the other's part, though their
// pools keep freed memory, and one that goes beyond its limit gets an error that says what is free
// and leaves the other alone.
func TestTwoProcesses(t *testing.T) {
	const limit = 4 << 20
	eachPool(t, func(t *testing.T, f *fake, a *Device) {
		f.total = 2 * limit
		b, err := f.open()
		require.NoError(t, err)
		defer func() { require.NoError(t, b.Close()) }()
		processes := []*Device{a, b}
		for round := range 8 {
			for i, d := range processes {
				size := limit >> ((round + i) % 4)
				var ms []driver.Mem
				for range limit / size {
					m, err := d.Alloc(size)
					require.NoError(t, err, "round %d, process %d", round, i)
					ms = append(ms, m)
				}
				for _, m := range ms {
					require.NoError(t, d.Free(m))
				}
				if round%2 == 1 {
					require.NoError(t, d.Sync())
				}
			}
		}

		m, err := a.Alloc(limit)
		require.NoError(t, err)
		require.NoError(t, a.Sync())
		require.NoError(t, b.Sync())
		_, err = b.Alloc(limit + 1)
		require.ErrorIs(t, err, driver.ErrNoMemory)
		require.ErrorContains(t, err, "4194305 bytes wanted, 4194304 free of 8388608")
		require.NotContains(t, err.Error(), "\n")
		require.NoError(t, a.Copy(m.Slice(0, 1), m.Slice(1, 1)))
		require.NoError(t, a.Sync())
	})
}
