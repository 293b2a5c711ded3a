//go:build (cuda || hip) && linux

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

// TestAwait: what one queue does after Await comes after what the other had at Mark, and not after more.
func TestAwait(t *testing.T) {
	f, home, side := openTwice(t)
	m, err := home.Alloc(4)
	require.NoError(t, err)
	require.NoError(t, home.CopyIn(m, []byte{1, 2, 3, 4}))
	moment, err := home.Mark()
	require.NoError(t, err)
	require.NoError(t, home.CopyIn(m, []byte{5, 6, 7, 8}))
	require.NoError(t, side.Await(moment))
	out := make([]byte, 4)
	require.NoError(t, side.CopyOut(out, m))
	require.Equal(t, []byte{1, 2, 3, 4}, out)
	require.NoError(t, home.CopyOut(out, m))
	require.Equal(t, []byte{5, 6, 7, 8}, out)

	moment, err = home.Mark()
	require.NoError(t, err)
	require.NoError(t, home.Await(moment), "of itself")
	f.fail["cuEventRecord"] = 999
	_, err = home.Mark()
	require.ErrorContains(t, err, "cuEventRecord: CUDA_ERROR_UNKNOWN (999)")
	delete(f.fail, "cuEventRecord")
	moment, err = home.Mark()
	require.NoError(t, err)
	f.fail["cuStreamWaitEvent"] = 999
	require.ErrorContains(t, side.Await(moment), "cuStreamWaitEvent: CUDA_ERROR_UNKNOWN (999)")
	delete(f.fail, "cuStreamWaitEvent")
	require.NoError(t, side.Await(moment), "it is released by its first Await alone")

	other, d := openFake(t, nil)
	d.handle = 1
	moment, err = d.Mark()
	require.NoError(t, err)
	require.ErrorIs(t, side.Await(moment), driver.ErrDevice)
	require.ErrorIs(t, side.Await(driver.Moment{}), driver.ErrDevice)
	d.handle = 0
	closed, err := other.open()
	require.NoError(t, err)
	moment, err = closed.Mark()
	require.NoError(t, err)
	require.NoError(t, closed.Close())
	require.ErrorContains(t, d.Await(moment), "closed")
	_, err = closed.Mark()
	require.ErrorContains(t, err, "closed")
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
		_, err = d.Mark()
		require.ErrorContains(t, err, "Mark cannot be part of a captured graph")
		require.ErrorContains(t, d.Await(driver.Moment{Of: d}), "Await cannot be part of a captured graph")
		return nil
	})
	require.NoError(t, err)
}
