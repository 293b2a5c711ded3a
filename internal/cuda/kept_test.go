//go:build (cuda || hip) && linux

package cuda

import (
	"bytes"
	"testing"

	"github.com/snug-ml/snug/internal/driver"
	"github.com/stretchr/testify/require"
)

func alloc(t *testing.T, d *Device, size int) driver.Mem {
	t.Helper()
	m, err := d.Alloc(size)
	require.NoError(t, err)
	return m
}

// Without pools freed memory serves the next allocation that it fits, at once and zeroed.
func TestKeptIsUsedAgain(t *testing.T) {
	f, d := openFake(t, noPools)
	m := alloc(t, d, 90_000)
	require.NoError(t, d.CopyIn(m, bytes.Repeat([]byte{7}, 90_000)))
	require.NoError(t, d.Free(m))
	var again driver.Mem
	require.Equal(t, []string{"cuMemsetD8Async 80000"}, f.calls(func() { again = alloc(t, d, 80_000) }))
	require.Equal(t, driver.Mem{Addr: m.Addr, Size: 80_000}, again)
	got := make([]byte, 80_000)
	require.NoError(t, d.CopyOut(got, again))
	require.Equal(t, make([]byte, 80_000), got)

	require.NoError(t, d.Free(again))
	require.NotEqual(t, m.Addr, alloc(t, d, 70_000).Addr, "the block is much larger")
	require.NotEqual(t, m.Addr, alloc(t, d, 90_001).Addr, "the block is too small")
}

// What is kept beyond a part of the device's memory goes back when the queue is empty, the largest
// blocks first.
func TestKeptIsBounded(t *testing.T) {
	f, d := openFake(t, noPools)
	const limit = 1 << 30 / poolShare
	var ms []driver.Mem
	for _, size := range []int{limit / 2, limit, limit / 4} {
		ms = append(ms, alloc(t, d, size))
	}
	for _, m := range ms {
		require.NoError(t, d.Free(m))
	}
	require.EqualValues(t, limit+limit/2+limit/4, f.used(), "until somebody waits")
	free, _, err := d.Memory()
	require.NoError(t, err)
	require.EqualValues(t, f.total, free)
	require.NoError(t, d.Sync())
	require.EqualValues(t, limit/2+limit/4, f.used())
}

// Kept memory makes the device hold no more than was once allocated at a time.
func TestKeptMakesRoom(t *testing.T) {
	f, d := openFake(t, noPools)
	for size := 1 << 20; size > 1<<15; size /= 2 {
		m := alloc(t, d, size)
		require.LessOrEqual(t, f.used(), uint64(1<<20))
		require.NoError(t, d.Free(m))
	}
}

// A block that the driver does not free is not lost.
func TestKeptAfterAFailedFree(t *testing.T) {
	f, d := openFake(t, noPools)
	f.total = 1 << 20
	m := alloc(t, d, 900_000)
	require.NoError(t, d.Free(m))
	f.fail["cuMemFree"] = errInvalidValue
	_, err := d.Alloc(1 << 20)
	require.ErrorIs(t, err, driver.ErrDevice)
	delete(f.fail, "cuMemFree")
	require.Equal(t, m.Addr, alloc(t, d, 900_000).Addr)
}

// ROCm 7 has said success and given address 0.
func TestAllocOfNothing(t *testing.T) {
	f, d := openFake(t, noPools)
	memAlloc := d.api.memAlloc
	d.api.memAlloc = func(addr *uintptr, size uint64) Result {
		*addr = 0
		return success
	}
	_, err := d.Alloc(100)
	require.ErrorIs(t, err, driver.ErrNoMemory)
	d.api.memAlloc = memAlloc
	alloc(t, d, 100)
	require.EqualValues(t, 100, f.used())
}
