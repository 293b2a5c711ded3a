//go:build (cuda || hip) && linux

package cuda

import (
	"errors"
	"testing"

	"github.com/snug-ml/snug/internal/driver"
	"github.com/stretchr/testify/require"
)

func TestGraph(t *testing.T) {
	f, d := openFake(t, nil)
	f.kernels["one"] = func(args []byte) { f.bytes(word(args, 0), 1)[0]++ }
	f.kernels["double"] = func(args []byte) { f.bytes(word(args, 0), 1)[0] *= 2 }
	m, err := d.Alloc(1)
	require.NoError(t, err)
	last, err := d.Alloc(1)
	require.NoError(t, err)
	value := func(m driver.Mem) int {
		got := make([]byte, 1)
		require.NoError(t, d.CopyOut(got, m))
		return int(got[0])
	}

	var g driver.Graph
	require.Contains(t, f.calls(func() {
		g, err = d.Capture(func() error { return first(d.Launch(&add{m}), d.Copy(last, m)) })
	}), "cuStreamBeginCapture 2", "relaxed, since goroutines change threads")
	require.NoError(t, err)
	require.Zero(t, value(m), "captured work does not run")
	for range 3 {
		require.NoError(t, g.Launch())
	}
	require.Equal(t, 14, value(m))
	require.Equal(t, 14, value(last))

	require.NoError(t, g.Close())
	require.NoError(t, g.Close())
	require.ErrorIs(t, g.Launch(), driver.ErrDevice)
	require.Empty(t, f.execs)
}

// What a graph cannot hold is refused, and the capture goes on.
func TestCaptureRefuses(t *testing.T) {
	f, d := openFake(t, noPools)
	f.kernels["one"] = func(args []byte) { f.bytes(word(args, 0), 1)[0]++ }
	m, err := d.Alloc(1)
	require.NoError(t, err)
	freed, err := d.Alloc(1)
	require.NoError(t, err)
	host, err := d.AllocPinned(1)
	require.NoError(t, err)
	before, err := d.StartCopyIn(m, host, nil)
	require.NoError(t, err)
	empty, err := d.Capture(func() error { return nil })
	require.NoError(t, err)

	g, err := d.Capture(func() error {
		_, alloc := d.Alloc(1)
		_, in := d.StartCopyIn(m, host, nil)
		_, out := d.StartCopyOut(host, m, nil)
		_, nested := d.Capture(func() error { return nil })
		for what, err := range map[string]error{
			"Alloc": alloc, "StartCopyIn": in, "StartCopyOut": out, "Capture": nested, "Sync": d.Sync(),
			"CopyIn": d.CopyIn(m, []byte{1}), "CopyOut": d.CopyOut([]byte{1}, m), "Await": before.Await(),
			"graph": empty.Launch(), "closing a graph": empty.Close(),
		} {
			require.ErrorIs(t, err, driver.ErrDevice, what)
			require.ErrorContains(t, err, "cannot be part of a captured graph", what)
		}
		require.NoError(t, d.Free(freed))
		require.Len(t, f.memory, 2, "freed when the capture ends")
		return d.LaunchGrid(grid("one", nil, m))
	})
	require.NoError(t, err)
	require.NoError(t, before.Await(), "a refused Await may be repeated")
	require.NoError(t, d.giveBackNow())
	require.Len(t, f.memory, 1)
	require.NoError(t, g.Launch())
	require.NoError(t, d.Sync())
}

func TestCaptureFails(t *testing.T) {
	f, d := openFake(t, nil)
	f.kernels["k"] = func([]byte) { t.Error("dropped work ran") }
	wrong := errors.New("wrong")
	_, err := d.Capture(func() error { return first(d.LaunchGrid(grid("k", nil)), wrong) })
	require.ErrorIs(t, err, wrong)
	require.NoError(t, d.Sync(), "the queue is usable")

	require.PanicsWithValue(t, "stop", func() {
		d.Capture(func() error { panic("stop") })
	})
	require.NoError(t, d.Sync())

	f.fail["cuStreamEndCapture"] = 901
	_, err = d.Capture(func() error { return nil })
	require.ErrorContains(t, err, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED (901)")
	delete(f.fail, "cuStreamEndCapture")
	require.NoError(t, d.Sync())

	_, err = d.Capture(func() error { return d.Close() })
	require.ErrorIs(t, err, driver.ErrDevice)
	require.ErrorContains(t, err, "closed")
}
