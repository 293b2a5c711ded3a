package driver

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// memory is a Driver of a few bytes.
type memory struct {
	Driver
	free int
	next uintptr
	live map[uintptr]int
}

func (m *memory) Alloc(size int) (Mem, error) {
	if size > m.free {
		return Mem{}, fmt.Errorf("%d bytes wanted: %w", size, ErrNoMemory)
	}
	m.free -= size
	m.next += 1 << 24
	m.live[m.next] = size
	return Mem{Addr: m.next, Size: size}, nil
}

func (m *memory) Free(mem Mem) error {
	size, ok := m.live[mem.Addr]
	if !ok {
		return ErrDevice
	}
	delete(m.live, mem.Addr)
	m.free += size
	return nil
}

func (m *memory) Memory() (free, total int64, err error) { return int64(m.free), 1 << 30, nil }
func (m *memory) CopyIn(Mem, []byte) error               { return nil }
func (m *memory) CopyOut([]byte, Mem) error              { return nil }
func (m *memory) Sync() error                            { return nil }
func (m *memory) Close() error                           { clear(m.live); return nil }

func memoryOf(bytes int) (*Queue, *memory) {
	m := &memory{free: bytes, live: map[uintptr]int{}}
	return &Queue{Name: "memory:0", Driver: m}, m
}

// TestLend: returned memory is lent again, and counts as free.
func TestLend(t *testing.T) {
	q, m := memoryOf(1000)
	a, err := q.Lend(100)
	require.NoError(t, err)
	b, err := q.Lend(100)
	require.NoError(t, err)
	require.NotEqual(t, a, b, "nobody else has it")
	free, _, err := q.Memory()
	require.NoError(t, err)
	require.EqualValues(t, 800, free)
	require.NoError(t, q.Return(a))
	require.NoError(t, q.Return(b))
	require.NoError(t, q.Return(Mem{}))
	free, _, err = q.Memory()
	require.NoError(t, err)
	require.EqualValues(t, 1000, free)
	again, err := q.Lend(100)
	require.NoError(t, err)
	require.Equal(t, b, again, "the last that was used")
	other, err := q.Lend(99)
	require.NoError(t, err)
	require.NotEqual(t, a, other, "of its own size")
	require.EqualValues(t, 3, q.Counts().Allocs)
	require.Len(t, m.live, 3)
}

// TestLendLimits: few blocks and bytes are kept, the last that were used.
func TestLendLimits(t *testing.T) {
	q, m := memoryOf(1 << 30)
	var all []Mem
	for i := range keptBlocks + 2 {
		b, err := q.Lend(1 + i)
		require.NoError(t, err)
		all = append(all, b)
	}
	for _, b := range all {
		require.NoError(t, q.Return(b))
	}
	require.Len(t, m.live, keptBlocks)
	require.NotContains(t, m.live, all[1].Addr)
	require.Contains(t, m.live, all[2].Addr)
	b, err := q.Lend(keptBytes)
	require.NoError(t, err)
	require.NoError(t, q.Return(b))
	require.Len(t, m.live, 1)
	b, err = q.Lend(keptBytes + 1)
	require.NoError(t, err)
	require.NoError(t, q.Return(b))
	require.Empty(t, m.live)
}

// TestAllocTakesKept: what is kept never makes an allocation fail.
func TestAllocTakesKept(t *testing.T) {
	q, m := memoryOf(100)
	b, err := q.Lend(60)
	require.NoError(t, err)
	_, err = q.Alloc(50)
	require.ErrorIs(t, err, ErrNoMemory)
	require.NoError(t, q.Return(b))
	_, err = q.Alloc(50)
	require.NoError(t, err)
	require.Len(t, m.live, 1)
}

// TestLendClosed: memory of a closed device is gone.
func TestLendClosed(t *testing.T) {
	q, m := memoryOf(100)
	b, err := q.Lend(10)
	require.NoError(t, err)
	kept, err := q.Lend(20)
	require.NoError(t, err)
	require.NoError(t, q.Return(kept))
	q.Closed.Store(true)
	require.NoError(t, q.Close())
	require.NoError(t, q.Return(b))
	require.Empty(t, m.live)
	_, err = q.Lend(20)
	require.ErrorIs(t, err, ErrDevice)
}

func TestCounts(t *testing.T) {
	q, _ := memoryOf(100)
	require.NoError(t, q.Sync())
	before := q.Counts()
	require.NoError(t, q.CopyIn(Mem{}, nil))
	require.NoError(t, q.CopyOut(nil, Mem{}))
	require.NoError(t, q.Sync())
	require.Equal(t, Counts{Waits: 2, ToHost: 1, ToDevice: 1}, q.Counts().Minus(before))
	require.Zero(t, (&Queue{CPU: true}).Counts())
	require.Zero(t, q.Launches(), "it does not count them")
	products, err := q.HasProducts()
	require.NoError(t, err)
	require.False(t, products, "it has no library")
}

// TestLendInCapture: a graph would write again to memory that somebody else has then.
func TestLendInCapture(t *testing.T) {
	q, _ := memoryOf(1000)
	m, err := q.Lend(100)
	require.NoError(t, err)
	require.NoError(t, q.Return(m))
	q.Capturing.Store(true)
	_, err = q.Lend(100)
	require.ErrorIs(t, err, ErrDevice)
	require.ErrorContains(t, err, "memory:0: memory that is lent for a call cannot be part of a captured graph")
	q.Capturing.Store(false)
	again, err := q.Lend(100)
	require.NoError(t, err)
	require.Equal(t, m, again)
}
