//go:build metal

package metal

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug/internal/driver"
)

// kill makes the next command buffer of a stream fail.
func (f *fake) kill(s *stream, code int) {
	f.do(func() { f.fails, f.victim = code, s.queue })
}

// within returns what a call returns, and fails the test when it hangs.
func within(t *testing.T, call func() error) error {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- call() }()
	select {
	case err := <-done:
		return err
	case <-time.After(10 * time.Second):
		require.FailNow(t, "the call hangs")
		return nil
	}
}

const killedWork = 2 // MTLCommandBufferErrorTimeout

// TestWaitForKilledWork only waits for a copy, whose command buffer waits for one that is
// killed, with work before and after it. A killed command buffer does not signal its event.
func TestWaitForKilledWork(t *testing.T) {
	for _, code := range []int{killedWork, codeOutOfMemory} {
		for _, behind := range []int{0, 1, 2} {
			t.Run(fmt.Sprint(code, behind), func(t *testing.T) {
				f := newFake()
				d := f.open(t)
				m, err := d.Alloc(64)
				require.NoError(t, err)
				p, err := d.AllocPinned(64)
				require.NoError(t, err)
				f.pause(true)
				require.NoError(t, d.LaunchGrid(f.fill(m, 7)))
				first, err := d.StartCopyOut(p, m, nil)
				require.NoError(t, err)
				last := first
				for range behind {
					require.NoError(t, d.LaunchGrid(f.fill(m, 8)))
					last, err = d.StartCopyOut(p, m, nil)
					require.NoError(t, err)
				}
				f.kill(&d.work, code)
				f.pause(false)
				require.ErrorContains(t, within(t, last.Wait), "injected")
				_ = within(t, d.Sync)
				_ = within(t, d.Close)
			})
		}
	}
}

// TestWaitForWorkKilledMeanwhile: the host looks at the work, the work is killed, later work lets
// the copy go on, and the host looks at the copy, which has finished.
func TestWaitForWorkKilledMeanwhile(t *testing.T) {
	f := newFake()
	d := f.open(t)
	m, err := d.Alloc(64)
	require.NoError(t, err)
	p, err := d.AllocPinned(64)
	require.NoError(t, err)
	f.pause(true)
	var last driver.Fence
	for range 2 {
		require.NoError(t, d.LaunchGrid(f.fill(m, 7)))
		last, err = d.StartCopyOut(p, m, nil)
		require.NoError(t, err)
	}
	f.kill(&d.work, killedWork)
	status, looks := d.api.status, 0
	d.api.status = func(o object) int {
		before := status(o)
		if looks++; looks == 1 {
			f.pause(false)
			d.api.wait(d.copies.flight[1].object)
		}
		return before
	}
	require.ErrorContains(t, within(t, last.Wait), "injected")
}

// TestWorkBehindKilledCopy waits for work whose command buffer waits for a copy that is killed.
func TestWorkBehindKilledCopy(t *testing.T) {
	for _, code := range []int{killedWork, codeOutOfMemory} {
		f := newFake()
		d := f.open(t)
		m, err := d.Alloc(64)
		require.NoError(t, err)
		p, err := d.AllocPinned(64)
		require.NoError(t, err)
		f.pause(true)
		fence, err := d.StartCopyIn(m, p, nil)
		require.NoError(t, err)
		require.NoError(t, fence.Await())
		require.NoError(t, d.LaunchGrid(f.increment(m)))
		f.kill(&d.copies, code)
		f.pause(false)
		require.ErrorContains(t, within(t, d.Sync), "injected")
		_ = within(t, d.Close)
	}
}

// TestCloseBehindKilledWork closes a device with a copy in flight whose work was killed.
func TestCloseBehindKilledWork(t *testing.T) {
	f := newFake()
	d := f.open(t)
	m, err := d.Alloc(64)
	require.NoError(t, err)
	p, err := d.AllocPinned(64)
	require.NoError(t, err)
	f.pause(true)
	require.NoError(t, d.LaunchGrid(f.fill(m, 7)))
	_, err = d.StartCopyOut(p, m, nil)
	require.NoError(t, err)
	f.kill(&d.work, codeOutOfMemory)
	f.pause(false)
	require.ErrorIs(t, within(t, d.Close), driver.ErrNoMemory)
}

// TestFreeAfterKilledWork: the call that returns the error of earlier work gives memory back all the
// same, since its caller may not call again.
func TestFreeAfterKilledWork(t *testing.T) {
	f := newFake()
	d := f.open(t)
	m, err := d.Alloc(64)
	require.NoError(t, err)
	p, err := d.AllocPinned(64)
	require.NoError(t, err)
	for _, free := range []func() error{func() error { return d.Free(m) }, func() error { return d.FreePinned(p) }} {
		before := f.count("buffer")
		f.pause(true)
		f.kill(&d.work, killedWork)
		require.NoError(t, d.LaunchGrid(f.launch("copy_bytes", make([]byte, 8))))
		d.mu.Lock()
		d.commit(&d.work)
		f.pause(false)
		d.drain(&d.work)
		d.mu.Unlock()
		require.ErrorContains(t, free(), "injected")
		require.Equal(t, before-1, f.count("buffer"))
		require.NoError(t, d.Sync(), "once")
	}
	require.ErrorContains(t, d.Free(m), "no buffer starts", "freed")
}
