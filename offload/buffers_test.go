package offload

import (
	"bytes"
	"context"
	"os"
	"runtime"
	"strconv"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/stretchr/testify/require"
)

// TestBuffersByOrigin takes and gives back pages of sizes below and above that from which
// the system's own memory is used, in a limit that not all of them fit in.
func TestBuffersByOrigin(t *testing.T) {
	b := buffers{limit: 4 * mapBytes, align: alignment}
	require.Equal(t, int64(128), b.rounded(65))
	require.Equal(t, int64(mapBytes+slotAlign), b.rounded(mapBytes+1))
	for round := range 6 {
		size := []int{100, mapBytes, 3*mapBytes - 1, mapBytes + 1}[round%4]
		require.True(t, b.fits(int64(size)))
		p, err := b.take(size)
		require.NoError(t, err)
		require.Len(t, p, size)
		require.Equal(t, int(b.rounded(int64(size))), cap(p))
		for i := range p {
			p[i] = byte(round)
		}
		require.LessOrEqual(t, b.bytes(), b.limit)
		b.give(p)
		require.Zero(t, b.used)
	}
	require.LessOrEqual(t, b.peak, b.limit)
	b.reset()
	require.Zero(t, b.bytes())
}

// TestSystemRefusesMemory has a system with memory for four pages, under stores that
// are allowed more: they evict, as with a limit of three pages, and say so.
func TestSystemRefusesMemory(t *testing.T) {
	const pages, pageLen, memory, left = 9, 32, 4 * 4 * 32, 3 * 4 * 32
	for _, o := range []Options{{}, {HostLimit: 8 * 4 * pageLen}, {HostLimit: 8 * 4 * pageLen, NoPrefetch: true}} {
		s := memStore(t, o)
		s.mu.Lock()
		s.buffers.refuse = func(n int) bool { return s.buffers.bytes()+int64(n) > memory }
		s.mu.Unlock()
		x, err := Create[float32](s, "x", pages*pageLen, pageLen)
		require.NoError(t, err)
		for range 5 {
			pageThrough(t, x, 0)
		}
		for i := range pages {
			p, err := x.Pin(context.Background(), i)
			require.NoError(t, err)
			require.Equal(t, float32(5), p.Data[0])
			require.NoError(t, p.Unpin(false))
		}
		st := s.Stats()
		require.LessOrEqual(t, st.HostPeak, int64(memory))
		require.Equal(t, int64(left), st.HostLimit)
		require.LessOrEqual(t, st.HostBytes, int64(left))
		require.Positive(t, st.Evicted)

		var held []Page[float32]
		for i := range 3 {
			p, err := x.Pin(context.Background(), i)
			require.NoError(t, err)
			held = append(held, p)
		}
		_, err = x.Pin(context.Background(), 3)
		require.ErrorIs(t, err, snug.ErrNoMemory)
		for _, p := range held {
			require.NoError(t, p.Unpin(false))
		}
		require.NoError(t, s.Commit())
		require.NoError(t, s.Close())
	}
}

// TestNoMemoryAtAll has a system without any: an error, and nothing is lost.
func TestNoMemoryAtAll(t *testing.T) {
	s := memStore(t, Options{})
	touch(t, s, "a", true)
	refusing := true
	s.buffers.refuse = func(int) bool { return refusing }
	require.NoError(t, s.Commit())
	held, err := s.Acquire("a", 64)
	require.NoError(t, err)
	_, err = s.Acquire("b", 64)
	require.ErrorIs(t, err, snug.ErrNoMemory)
	require.False(t, s.Has("b"))
	require.Len(t, held, 64)
	require.NoError(t, s.Release("a", false))
	touch(t, s, "b", true)
	require.NoError(t, s.Close())
}

// TestMemoryIsGivenBack checks that a store's memory is the system's again, when pages
// of another size take its place and after Close.
func TestMemoryIsGivenBack(t *testing.T) {
	if runtime.GOOS != "linux" || !mapsMemory {
		t.Skip("pages are of Go's heap, or the system does not say what a process holds")
	}
	resident := func() int {
		text, err := os.ReadFile("/proc/self/statm")
		require.NoError(t, err)
		n, err := strconv.Atoi(string(bytes.Fields(text)[1]))
		require.NoError(t, err)
		return n * os.Getpagesize()
	}
	const limit, slack = 64 << 20, 8 << 20
	before := resident()
	s, err := Open(t.TempDir(), Options{HostLimit: limit})
	require.NoError(t, err)
	for _, pageLen := range []int{1 << 16, 1 << 17, 1 << 15} {
		x, err := Create[float32](s, strconv.Itoa(pageLen), 2*limit/4, pageLen)
		require.NoError(t, err)
		pageThrough(t, x, 0)
		require.Less(t, resident(), before+limit+slack)
	}
	require.Greater(t, resident(), before+limit/4)
	require.NoError(t, s.Close())
	require.Less(t, resident(), before+slack)
}
