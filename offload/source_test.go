package offload

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/files/filestest"
	"github.com/snug-ml/snug/internal/half"
)

// weights is a Source of one tensor.
type weights struct {
	name   string
	values []float32
	fail   error
	loads  atomic.Int32
}

func (w *weights) LoadAt(name string, lo int, dst snug.View) error {
	w.loads.Add(1)
	if w.fail != nil {
		return w.fail
	}
	if name != w.name || lo+dst.Len() > len(w.values) {
		return snug.ErrConfig
	}
	half.Store(dst, 0, w.values[lo:lo+dst.Len()])
	return nil
}

// TestAttach reads a tensor of a Source, with a cast, in a limit of two of its ten
// pages.
func TestAttach(t *testing.T) {
	const n, pageLen = 305, 32
	src := &weights{name: "model.w", values: normals(n, 1)}
	want := make([]snug.BFloat16, n)
	half.Store(snug.SliceView(want), 0, src.values)

	dir := filestest.New()
	s, err := open(dir, Options{HostLimit: 2 * 64, PrefetchDepth: 1, Workers: 1})
	require.NoError(t, err)
	x, err := Attach[snug.BFloat16](s, "w", src, "model.w", n, pageLen)
	require.NoError(t, err)
	require.Zero(t, src.loads.Load(), "nothing is read before it is used")
	for range 5 {
		got := make([]snug.BFloat16, n)
		for lo := 0; lo < n; lo += pageLen {
			require.NoError(t, x.ReadAt(got[lo:min(lo+pageLen, n)], lo))
			time.Sleep(time.Millisecond) // for the background
		}
		require.Equal(t, want, got)
	}
	requireWithin(t, s)
	require.Zero(t, s.Stats().WriteBytes)

	part := make([]snug.BFloat16, 1)
	require.ErrorIs(t, x.WriteAt(part, 0), snug.ErrConfig)
	page, err := x.Pin(context.Background(), 3)
	require.NoError(t, err)
	require.ErrorIs(t, page.Unpin(true), snug.ErrConfig)
	require.NoError(t, page.Unpin(false))

	touch(t, s, "other", true)
	require.NoError(t, s.Commit())
	require.NoError(t, s.Close())
	st := s.Stats()
	require.Positive(t, st.Evicted)
	require.Positive(t, st.Prefetched, "the order is known after the first pass")
	require.EqualValues(t, st.Misses+st.Prefetched, src.loads.Load())
	s, err = open(dir, Options{})
	require.NoError(t, err)
	require.Equal(t, []string{"other"}, s.Keys(), "commits leave it out")
	require.NoError(t, s.Close())
}

func TestAttachErrors(t *testing.T) {
	s := memStore(t, Options{})
	src := &weights{name: "w", values: normals(8, 1)}
	touch(t, s, "taken", true)
	for _, err := range []error{
		second(Attach[float32](s, "", src, "w", 8, 4)),
		second(Attach[float32](s, "taken", src, "w", 8, 4)),
		second(Attach[float32](s, "x", nil, "w", 8, 4)),
	} {
		require.ErrorIs(t, err, snug.ErrConfig)
	}
	require.ErrorIs(t, second(Attach[float32](s, "x", src, "w", -1, 4)), snug.ErrShape)
	x, err := Attach[float32](s, "x", src, "w", 8, 4)
	require.NoError(t, err)
	require.ErrorIs(t, second(Create[float32](s, "x", 8, 4)), snug.ErrConfig)

	src.fail = errors.New("the disk is gone")
	err = x.ReadAt(make([]float32, 8), 0)
	require.ErrorIs(t, err, src.fail)
	require.ErrorContains(t, err, `page 0 of tensor "x"`)
	src.fail = nil
	require.NoError(t, x.ReadAt(make([]float32, 8), 0), "it can be repeated")
	require.NoError(t, s.Delete("x"))
	_, err = Attach[float32](s, "empty", src, "w", 0, 4)
	require.NoError(t, err)
}

// second returns the error of a call.
func second[T any](_ T, err error) error { return err }
