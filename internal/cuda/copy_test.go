//go:build (cuda || hip) && linux

package cuda

import (
	"math/rand/v2"
	"testing"

	"github.com/snug-ml/snug/internal/driver"
	"github.com/stretchr/testify/require"
)

// src may change as soon as CopyIn returns, though the copy runs later.
func TestCopyInAndOut(t *testing.T) {
	_, d := openFake(t, nil)
	for _, n := range []int{1, stageBytes, stageBytes + 1, 3*stageBytes - 7, (stages + 2) * stageBytes} {
		m, err := d.Alloc(n + 1)
		require.NoError(t, err)
		src := make([]byte, n)
		rand.NewChaCha8([32]byte{byte(n)}).Read(src)
		want := append(append([]byte(nil), src...), 0)
		require.NoError(t, d.CopyIn(m, src))
		clear(src)
		got := make([]byte, n+1)
		require.NoError(t, d.CopyOut(got, m))
		require.Equal(t, want, got)
		require.NoError(t, d.Free(m))
	}
}

// TestShortCopies: a call needs no event for each, and its copies do not wait for one another.
func TestShortCopies(t *testing.T) {
	f, d := openFake(t, nil)
	m, err := d.Alloc(stageBytes)
	require.NoError(t, err)
	want := make([]byte, 4*1000)
	rand.NewChaCha8([32]byte{}).Read(want)
	require.NoError(t, d.CopyIn(m.Slice(0, 4), want[:4]))
	for _, call := range f.calls(func() {
		for i := 1; i < 1000; i++ {
			require.NoError(t, d.CopyIn(m.Slice(4*i, 4), want[4*i:][:4]))
		}
	}) {
		require.Equal(t, "cuMemcpyHtoDAsync 4", call)
	}
	got := make([]byte, len(want))
	require.NoError(t, d.CopyOut(got, m))
	require.Equal(t, want, got)

	f.fail["cuEventRecord"] = Result(999)
	require.ErrorIs(t, d.CopyIn(m, make([]byte, stageBytes)), driver.ErrDevice, "the buffer is full")
	delete(f.fail, "cuEventRecord")
	for i := range 2 * stages * stageBytes / len(want) {
		want[i%len(want)]++
		require.NoError(t, d.CopyIn(m, want))
	}
	require.NoError(t, d.CopyOut(got, m))
	require.Equal(t, want, got)
}

func TestCopiesAreChecked(t *testing.T) {
	f, d := openFake(t, nil)
	m, err := d.Alloc(4)
	require.NoError(t, err)
	host, err := d.AllocPinned(4)
	require.NoError(t, err)
	go5, plain := make([]byte, 5), driver.Mem{Host: host.Host, Size: 4}
	_, in := d.StartCopyIn(m, driver.Mem{Host: host.Host, Addr: host.Addr, Size: 5}, nil)
	_, out := d.StartCopyOut(host, m.Slice(0, 5), nil)
	_, pageable := d.StartCopyIn(m, driver.Mem{Host: m.Slice(0, 0).Host, Size: 4}, nil)
	_, beyond := d.StartCopyOut(host.Slice(1, 4), m, nil)
	for what, err := range map[string]error{
		"CopyIn": d.CopyIn(m, go5), "CopyOut": d.CopyOut(go5, m), "Copy": d.Copy(m, m.Slice(0, 5)),
		"to the host": d.Copy(plain, m), "in": in, "out": out, "pageable": pageable, "beyond": beyond,
		"unknown pinned": d.FreePinned(m),
	} {
		require.ErrorIs(t, err, driver.ErrDevice, what)
	}
	require.Empty(t, f.calls(func() {
		require.NoError(t, d.CopyIn(m, nil))
		require.NoError(t, d.CopyOut(nil, m))
		require.NoError(t, d.Copy(m, m.Slice(0, 0)))
	}), "empty copies")
}

// StartCopyOut reads what the queue wrote before, and Await makes later work
// wait: without an event the fake runs nothing of the other stream.
func TestCopierOrder(t *testing.T) {
	f, d := openFake(t, nil)
	m, err := d.Alloc(4)
	require.NoError(t, err)
	other, err := d.Alloc(4)
	require.NoError(t, err)
	out, err := d.AllocPinned(8)
	require.NoError(t, err)
	in, err := d.AllocPinned(4)
	require.NoError(t, err)
	require.Equal(t, uintptr(in.Host), in.Addr)

	require.NoError(t, d.CopyIn(m, []byte{1, 2, 3, 4}))
	fence, err := d.StartCopyOut(out.Slice(4, 4), m, nil)
	require.NoError(t, err)
	require.NoError(t, fence.Wait())
	require.Equal(t, []byte{0, 0, 0, 0, 1, 2, 3, 4}, out.Bytes())

	copy(in.Bytes(), []byte{5, 6, 7, 8})
	fence, err = d.StartCopyIn(m, in, nil)
	require.NoError(t, err)
	require.NoError(t, fence.Await())
	require.NoError(t, d.Copy(other, m))
	got := make([]byte, 4)
	require.NoError(t, d.CopyOut(got, other))
	require.Equal(t, []byte{5, 6, 7, 8}, got)
	require.NoError(t, fence.Await(), "once more")
	require.NoError(t, fence.Wait())
	fence.Release()
	require.ErrorContains(t, fence.Wait(), "after its release")
	require.ErrorContains(t, fence.Await(), "after its release")
	_, err = d.StartCopyIn(m, in, fence)
	require.ErrorContains(t, err, "released")

	made := len(f.events)
	for range 100 {
		fence, err = d.StartCopyIn(m, in, nil)
		require.NoError(t, err)
		require.NoError(t, fence.Wait())
	}
	require.Len(t, f.events, made, "events are used again")
	require.NoError(t, d.FreePinned(in))
	require.NoError(t, d.FreePinned(out))
}

func TestCopierCalls(t *testing.T) {
	f, d := openFake(t, nil)
	m, err := d.Alloc(4)
	require.NoError(t, err)
	in, err := d.AllocPinned(4)
	require.NoError(t, err)
	require.Equal(t, []string{"cuEventCreate", "cuEventRecord", "cuStreamWaitEvent", "cuMemcpyHtoDAsync 4", "cuEventRecord"},
		f.calls(func() {
			_, err := d.StartCopyIn(m, in, nil)
			require.NoError(t, err)
		}))
}

// TestCopyAfter: a copy after a fence does not wait for what was queued since, and waits for the copy of the other way
// that the fence is the end of.
func TestCopyAfter(t *testing.T) {
	f, d := openFake(t, nil)
	m, err := d.Alloc(4)
	require.NoError(t, err)
	host, err := d.AllocPinned(8)
	require.NoError(t, err)
	require.NoError(t, d.CopyIn(m, []byte{1, 2, 3, 4}))
	point, err := d.Point()
	require.NoError(t, err)
	require.NoError(t, d.CopyIn(m, []byte{5, 6, 7, 8}))
	calls := f.calls(func() {
		out, err := d.StartCopyOut(host.Slice(4, 4), m, point)
		require.NoError(t, err)
		point.Release()
		copy(host.Bytes(), []byte{9, 9, 9, 9})
		in, err := d.StartCopyIn(m, host.Slice(0, 4), out)
		require.NoError(t, err)
		out.Release()
		require.NoError(t, in.Wait())
	})
	require.Equal(t, []byte{9, 9, 9, 9, 1, 2, 3, 4}, host.Bytes(), "the copy in let the copy out go first, and that what came before the point")
	require.Equal(t, []string{
		"cuEventCreate", "cuStreamWaitEvent", "cuMemcpyDtoHAsync 4", "cuEventRecord",
		"cuStreamWaitEvent", "cuMemcpyHtoDAsync 4", "cuEventRecord", "cuEventSynchronize",
	}, calls, "the second copy has the point's event")
	got := make([]byte, 4)
	require.NoError(t, d.CopyOut(got, m))
	require.Equal(t, []byte{5, 6, 7, 8}, got, "which the queue copied when it was waited for")
	_, other := openFake(t, nil)
	point, err = other.Point()
	require.NoError(t, err)
	_, err = d.StartCopyIn(m, host.Slice(0, 4), point)
	require.ErrorContains(t, err, "another device's")
	require.NoError(t, d.FreePinned(host))
}

// A copy whose end cannot be marked is done when its start returns the error.
func TestCopierNoMark(t *testing.T) {
	_, d := openFake(t, nil)
	m, err := d.Alloc(4)
	require.NoError(t, err)
	in, err := d.AllocPinned(4)
	require.NoError(t, err)
	out, err := d.AllocPinned(4)
	require.NoError(t, err)
	copy(in.Bytes(), []byte{1, 2, 3, 4})
	record, calls := d.api.eventRecord, 0
	d.api.eventRecord = func(event, stream uintptr) Result {
		if calls++; calls%2 == 0 {
			return 999
		}
		return record(event, stream)
	}
	_, err = d.StartCopyIn(m, in, nil)
	require.ErrorContains(t, err, "cuEventRecord")
	clear(in.Bytes())
	_, err = d.StartCopyOut(out, m, nil)
	require.ErrorContains(t, err, "cuEventRecord")
	require.Equal(t, []byte{1, 2, 3, 4}, out.Bytes())
	d.api.eventRecord = record
	require.NoError(t, d.FreePinned(in))
	require.NoError(t, d.FreePinned(out))
}

// A copy out that waits for kernels does not hold up copies in that were started before or after it, and the other way round.
func TestCopiesOfBothWays(t *testing.T) {
	f, d := openFake(t, nil)
	m, err := d.Alloc(8)
	require.NoError(t, err)
	host, err := d.AllocPinned(8)
	require.NoError(t, err)
	require.NoError(t, d.CopyIn(m, []byte{1, 2, 3, 4, 5, 6, 7, 8}))
	copy(host.Bytes(), []byte{9, 9, 9, 9, 0, 0, 0, 0})
	out, err := d.StartCopyOut(host.Slice(4, 4), m.Slice(4, 4), nil)
	require.NoError(t, err)
	in, err := d.StartCopyIn(m.Slice(0, 4), host.Slice(0, 4), nil)
	require.NoError(t, err)
	require.NoError(t, in.Wait())
	require.Equal(t, []byte{9, 9, 9, 9, 0, 0, 0, 0}, host.Bytes(), "the fake runs a stream only when somebody waits for it")
	require.Less(t, f.streams[d.out].done, len(f.streams[d.out].work))
	require.NoError(t, out.Wait())
	require.Equal(t, []byte{9, 9, 9, 9, 5, 6, 7, 8}, host.Bytes())
	got := make([]byte, 8)
	require.NoError(t, d.CopyOut(got, m))
	require.Equal(t, []byte{9, 9, 9, 9, 5, 6, 7, 8}, got)
}
