package offload

import (
	"context"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/files/filestest"
)

func TestTensorPages(t *testing.T) {
	s := memStore(t, Options{})
	x, err := Create[snug.BFloat16](s, "x", 10, 4)
	require.NoError(t, err)
	require.Equal(t, 10, x.Len())
	require.Equal(t, 4, x.PageLen())
	require.Equal(t, 3, x.Pages())
	for i, want := range []int{4, 4, 2} {
		page, err := x.Pin(context.Background(), i)
		require.NoError(t, err)
		require.Equal(t, make([]snug.BFloat16, want), page.Data)
		page.Data[0] = snug.BFloat16(i + 1)
		require.NoError(t, page.Unpin(true))
		require.ErrorIs(t, page.Unpin(true), snug.ErrConfig, "unpinned twice")
	}
	y, err := Create[snug.BFloat16](s, "x", 10, 4)
	require.NoError(t, err)
	got := make([]snug.BFloat16, 10)
	require.NoError(t, y.ReadAt(got, 0))
	require.Equal(t, []snug.BFloat16{1, 0, 0, 0, 2, 0, 0, 0, 3, 0}, got)

	empty, err := Create[float32](s, "empty", 0, 8)
	require.NoError(t, err)
	require.Zero(t, empty.Pages())
	require.NoError(t, empty.ReadAt(nil, 0))
}

func TestTensorErrors(t *testing.T) {
	s := memStore(t, Options{})
	_, err := s.Acquire("blob", 64)
	require.NoError(t, err)
	x, err := Create[float32](s, "x", 10, 4)
	require.NoError(t, err)
	for _, c := range []struct {
		name       string
		n, pageLen int
		want       error
	}{
		{"", 1, 1, snug.ErrConfig}, {"n", -1, 1, snug.ErrShape}, {"n", math.MaxInt/4 + 1, 1 << 20, snug.ErrShape},
		{"n", 1, 0, snug.ErrShape}, {"n", 1, maxPage/4 + 1, snug.ErrShape}, {"n", maxPages + 1, 1, snug.ErrShape},
		{"x", 11, 4, snug.ErrShape}, {"x", 10, 5, snug.ErrShape}, {"blob", 64, 64, snug.ErrConfig},
	} {
		_, err := Create[float32](s, c.name, c.n, c.pageLen)
		require.ErrorIs(t, err, c.want, "%q %d %d", c.name, c.n, c.pageLen)
	}
	_, err = Create[int32](s, "x", 10, 4)
	require.ErrorIs(t, err, snug.ErrDType)
	_, err = Lookup[snug.Float16](s, "x")
	require.ErrorIs(t, err, snug.ErrDType)
	_, err = Lookup[float32](s, "blob")
	require.ErrorIs(t, err, snug.ErrConfig)
	_, err = Lookup[float32](s, "missing")
	require.ErrorIs(t, err, snug.ErrConfig)
	for _, i := range []int{-1, 3} {
		_, err = x.Pin(context.Background(), i)
		require.ErrorIs(t, err, snug.ErrShape)
	}
	buf := make([]float32, 11)
	for _, c := range [][2]int{{-1, 1}, {0, 11}, {10, 1}, {9, 2}, {math.MaxInt, 1}} {
		require.ErrorIs(t, x.ReadAt(buf[:c[1]], c[0]), snug.ErrShape, c)
		require.ErrorIs(t, x.WriteAt(buf[:c[1]], c[0]), snug.ErrShape, c)
	}
	require.ErrorIs(t, Page[float32]{}.Unpin(false), snug.ErrConfig)
	x.Prefetch(-3, 100) // pages that do not exist
	require.NoError(t, s.Delete("x"))
	_, err = x.Pin(context.Background(), 0)
	require.ErrorIs(t, err, snug.ErrConfig)
	require.ErrorContains(t, err, "deleted")
	x.Prefetch(0, 3)
}

// TestTensorReadWrite compares ReadAt and WriteAt over random ranges with a
// slice, in a store that holds two pages, and after a commit.
func TestTensorReadWrite(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n, pageLen := rapid.IntRange(1, 70).Draw(rt, "n"), rapid.IntRange(1, 20).Draw(rt, "pageLen")
		dir := filestest.New()
		o := Options{HostLimit: 2 * 128, PrefetchDepth: rapid.IntRange(0, 2).Draw(rt, "depth")}
		s, err := open(dir, o)
		require.NoError(rt, err)
		x, err := Create[int32](s, "x", n, pageLen)
		require.NoError(rt, err)
		want := make([]int32, n)
		for range rapid.IntRange(1, 12).Draw(rt, "steps") {
			lo := rapid.IntRange(0, n).Draw(rt, "lo")
			hi := rapid.IntRange(lo, n).Draw(rt, "hi")
			got := make([]int32, hi-lo)
			if rapid.Bool().Draw(rt, "write") {
				for i := range got {
					got[i] = rapid.Int32().Draw(rt, "x")
				}
				require.NoError(rt, x.WriteAt(got, lo))
				copy(want[lo:], got)
			} else {
				require.NoError(rt, x.ReadAt(got, lo))
				require.Equal(rt, want[lo:hi], got)
			}
		}
		requireWithin(rt, s)
		require.NoError(rt, s.Commit())
		require.NoError(rt, s.Close())
		s, err = open(dir, o)
		require.NoError(rt, err)
		x, err = Lookup[int32](s, "x")
		require.NoError(rt, err)
		require.Equal(rt, pageLen, x.PageLen())
		got := make([]int32, n)
		require.NoError(rt, x.ReadAt(got, 0))
		require.Equal(rt, want, got)
		require.NoError(rt, s.Close())
	})
}

func TestWholePagesAreNotRead(t *testing.T) {
	s := memStore(t, Options{HostLimit: 64, NoPrefetch: true})
	x, err := Create[float32](s, "x", 40, 16)
	require.NoError(t, err)
	src := make([]float32, 40)
	for range 3 {
		src[0]++
		require.NoError(t, x.WriteAt(src, 0))
	}
	require.Zero(t, s.Stats().ReadBytes)
	require.NoError(t, x.WriteAt(src[:1], 1))
	require.EqualValues(t, 64, s.Stats().ReadBytes)
}
