//go:build metal

package metal

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug/internal/driver"
)

func TestBackend(t *testing.T) {
	notFound := errors.New("no Metal.framework")
	for _, c := range []struct {
		name   string
		change func(f *fake, b *backend)
		count  int
		want   error
		say    string
	}{
		{name: "one", change: func(*fake, *backend) {}, count: 1},
		{name: "none", change: func(f *fake, _ *backend) { delete(f.things, f.dev); f.dev = 0 }, want: driver.ErrDevice, say: "no GPU"},
		{name: "old", change: func(f *fake, _ *backend) { f.family = familyApple7 - 1 }, want: driver.ErrDevice, say: "found Fake GPU"},
		{name: "no library", change: func(_ *fake, b *backend) { b.load = func() (*api, error) { return nil, notFound } }, want: notFound},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFake()
			b := f.backend()
			c.change(f, &b)
			n, err := b.Count()
			require.Equal(t, c.count, n)
			if c.want == nil {
				require.NoError(t, err)
				_, err = b.Open(1)
				require.ErrorIs(t, err, driver.ErrDevice)
			} else {
				require.ErrorIs(t, err, c.want)
				require.ErrorContains(t, err, c.say)
				_, err = b.Open(0)
				require.ErrorIs(t, err, c.want)
			}
			f.check(t)
		})
	}
}

// TestOpenFails runs out of memory in Open.
func TestOpenFails(t *testing.T) {
	f := newFake()
	f.limit = emptyBytes - 1
	_, err := f.backend().Open(0)
	require.ErrorIs(t, err, driver.ErrDevice)
	f.check(t)
}

func TestClose(t *testing.T) {
	f := newFake()
	d := f.open(t)
	m, err := d.Alloc(64)
	require.NoError(t, err)
	require.NoError(t, d.LaunchGrid(f.fill(m, 7)))
	require.NoError(t, d.Close())
	require.NoError(t, d.Close())
	f.check(t)

	_, err = d.Alloc(1)
	require.ErrorIs(t, err, driver.ErrDevice)
	require.ErrorContains(t, err, "closed")
	_, _, err = d.Memory()
	require.ErrorIs(t, err, driver.ErrDevice)
	for _, err := range []error{
		d.Free(m), d.CopyIn(m, []byte{1}), d.CopyOut(make([]byte, 1), m), d.Copy(m, m), d.Sync(), d.LaunchGrid(f.fill(m, 7)),
	} {
		require.ErrorIs(t, err, driver.ErrDevice)
	}
}

// TestCloseWhileWaiting closes a device that another goroutine waits for.
func TestCloseWhileWaiting(t *testing.T) {
	f := newFake()
	d := f.open(t)
	m, err := d.Alloc(64)
	require.NoError(t, err)
	f.pause(true)
	require.NoError(t, d.LaunchGrid(f.fill(m, 7)))
	waited := make(chan error)
	go func() { waited <- d.Sync() }()
	f.pause(false)
	require.NoError(t, d.Close())
	if err := <-waited; err != nil {
		require.ErrorIs(t, err, driver.ErrDevice)
	}
}

func TestLostDevice(t *testing.T) {
	f := newFake()
	d := f.open(t)
	m, err := d.Alloc(64)
	require.NoError(t, err)
	f.fails = 3 // page fault
	require.NoError(t, d.LaunchGrid(f.fill(m, 7)))
	for range 2 { // it stays lost
		err = d.Sync()
		var lost *LostError
		require.ErrorAs(t, err, &lost)
		require.ErrorIs(t, err, driver.ErrDevice)
		require.Equal(t, LostError{Code: 3, Reason: "injected"}, *lost)
	}
	require.ErrorAs(t, d.LaunchGrid(f.fill(m, 7)), new(*LostError))
	require.ErrorAs(t, d.Close(), new(*LostError))
}

// TestLostDeviceFence loses the work that a copy on the other queue waits for.
func TestLostDeviceFence(t *testing.T) {
	f := newFake()
	d := f.open(t)
	m, err := d.Alloc(64)
	require.NoError(t, err)
	p, err := d.AllocPinned(64)
	require.NoError(t, err)
	f.pause(true)
	require.NoError(t, d.LaunchGrid(f.fill(m, 7)))
	fence, err := d.StartCopyOut(p, m, nil)
	require.NoError(t, err)
	f.mu.Lock()
	f.fails = codeDeviceRemoved // of whichever starts first
	f.mu.Unlock()
	f.pause(false)
	require.ErrorAs(t, errors.Join(d.Sync(), fence.Wait()), new(*LostError))
	require.ErrorAs(t, d.Close(), new(*LostError))
}

// TestQueueOutOfMemory reports the error of queued work once.
func TestQueueOutOfMemory(t *testing.T) {
	f := newFake()
	d := f.open(t)
	m, err := d.Alloc(64)
	require.NoError(t, err)
	f.fails = codeOutOfMemory
	require.NoError(t, d.LaunchGrid(f.fill(m, 7)))
	require.ErrorIs(t, d.Sync(), driver.ErrNoMemory)

	// An allocation does not take it for its own.
	f.fails = codeOutOfMemory
	require.NoError(t, d.LaunchGrid(f.fill(m, 7)))
	d.commit(&d.work)
	for len(d.work.flight) > 0 {
		d.api.wait(d.work.flight[0].object)
		d.reap(&d.work)
	}
	_, err = d.Alloc(64)
	require.ErrorIs(t, err, driver.ErrNoMemory)
	require.ErrorContains(t, err, "queued work was dropped")

	require.NoError(t, d.LaunchGrid(f.fill(m, 7)))
	require.NoError(t, d.Sync())
	require.Equal(t, byte(7), m.Bytes()[0])
}

func TestMemory(t *testing.T) {
	f := newFake()
	d := f.open(t)
	before, total, err := d.Memory()
	require.NoError(t, err)
	require.EqualValues(t, f.limit, total)
	_, err = d.Alloc(1000)
	require.NoError(t, err)
	free, _, err := d.Memory()
	require.NoError(t, err)
	require.EqualValues(t, before-1008, free, "rounded up to %d", granule)
}
