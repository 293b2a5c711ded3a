//go:build cuda && linux

package cuda

import (
	"testing"

	"github.com/snug-ml/snug/internal/driver"
	"github.com/stretchr/testify/require"
)

// openTwice opens the device of a fake driver twice.
func openTwice(t *testing.T) (f *fake, a, b *Device) {
	t.Helper()
	f, a = openFake(t, nil)
	b, err := f.open()
	require.NoError(t, err)
	t.Cleanup(func() {
		clear(f.fail)
		b.Close()
	})
	return f, a, b
}

// TestFollow: what one queue does after Follow comes after what the other had by then.
func TestFollow(t *testing.T) {
	f, home, side := openTwice(t)
	m, err := home.Alloc(4)
	require.NoError(t, err)
	require.NoError(t, home.CopyIn(m, []byte{1, 2, 3, 4}))
	require.NoError(t, side.Follow(home))
	out := make([]byte, 4)
	require.NoError(t, side.CopyOut(out, m))
	require.Equal(t, []byte{1, 2, 3, 4}, out)
	require.NoError(t, side.Follow(side), "of itself nothing waits")

	for _, call := range []string{"cuEventRecord", "cuStreamWaitEvent"} {
		f.fail[call] = 999
		require.ErrorContains(t, side.Follow(home), call+": CUDA_ERROR_UNKNOWN (999)")
		delete(f.fail, call)
	}
	other, _ := openFake(t, nil)
	d, err := other.open()
	require.NoError(t, err)
	d.handle = 1
	require.ErrorIs(t, side.Follow(d), driver.ErrDevice)
	require.ErrorIs(t, side.Follow(nil), driver.ErrDevice)
	d.handle = 0
	require.NoError(t, d.Close())
	require.ErrorContains(t, d.Follow(home), "closed")
	require.ErrorContains(t, home.Follow(d), "closed")
}

// TestIdle: a queue is idle when its work is done, which Idle does not wait for.
func TestIdle(t *testing.T) {
	f, d := openFake(t, nil)
	require.NoError(t, d.Sync())
	_, err := d.Alloc(4)
	require.NoError(t, err)
	idle, err := d.Idle()
	require.NoError(t, err)
	require.False(t, idle)
	for !idle {
		idle, err = d.Idle()
		require.NoError(t, err)
	}
	require.Zero(t, testing.AllocsPerRun(10, func() { _, _ = d.Idle() }))
	f.fail["cuStreamQuery"] = errIllegalAddress
	_, err = d.Idle()
	require.ErrorIs(t, err, driver.ErrDevice)
	require.ErrorContains(t, err, "cuStreamQuery: CUDA_ERROR_ILLEGAL_ADDRESS (700)")
	_, err = d.Idle()
	require.ErrorContains(t, err, "cuda:0 is lost")
	_, err = d.Enter()
	require.ErrorContains(t, err, "cuda:0 is lost")
}

// TestEnter: the stream is the queue, and the context is current until Leave.
func TestEnter(t *testing.T) {
	f, d := openFake(t, nil)
	require.Equal(t, []string{"cuStreamSynchronize"}, f.calls(func() {
		stream, err := d.Enter()
		require.NoError(t, err)
		require.Equal(t, success, f.api().streamSync(stream), "a call that needs the context")
		d.Leave()
	}))
	_, err := d.Capture(func() error {
		_, err := d.Enter()
		require.ErrorContains(t, err, "another library's work cannot be part of a captured graph")
		_, err = d.Idle()
		require.ErrorContains(t, err, "Idle cannot be part of a captured graph")
		return nil
	})
	require.NoError(t, err)
}
