package offload

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

// scan makes 8 passes over n blobs, of which the host limit holds hold, and
// returns the statistics of the last 4.
func scan(t *testing.T, n, hold int, o Options, dirty bool) (st Stats) {
	o.HostLimit = int64(hold) * 64
	s := memStore(t, o)
	for pass := range 8 {
		if pass == 4 {
			if !dirty {
				require.NoError(t, s.Commit())
			}
			st = s.Stats()
		}
		for i := range n {
			touch(t, s, fmt.Sprint(i), dirty || pass == 0)
			if o.PrefetchDepth > 0 {
				time.Sleep(50 * time.Microsecond) // as work on the page would
			}
		}
	}
	end := s.Stats()
	require.LessOrEqual(t, end.HostPeak, o.HostLimit)
	st.Misses = end.Misses - st.Misses
	st.Hits = end.Hits - st.Hits
	st.ReadBytes = end.ReadBytes - st.ReadBytes
	st.WriteBytes = end.WriteBytes - st.WriteBytes
	st.Prefetched = end.Prefetched - st.Prefetched
	return st
}

// TestBelady compares the misses of a cyclic scan with the optimum: of n pages
// in turn, a cache of c pages hits c-1 in every n-1 accesses when it drops
// the page whose next use is farthest, and none when it drops the least
// recently used.
func TestBelady(t *testing.T) {
	const n, c, passes = 31, 16, 4
	st := scan(t, n, c, Options{NoPrefetch: true}, true)
	optimum := passes * n * (n - c) / (n - 1)
	require.InDelta(t, optimum, st.Misses, 2)
	require.EqualValues(t, passes*n, st.Misses+st.Hits)
	require.Equal(t, 64*st.Misses, st.ReadBytes)
	require.Less(t, 4*st.Misses, int64(3*passes*n), "LRU misses every time")
	require.Zero(t, st.Prefetched)
}

// TestReadAhead checks that the background reads what a scan needs, and no
// more than Belady's rule without it reads, give or take the depth.
func TestReadAhead(t *testing.T) {
	const n, c, passes = 31, 16, 4
	st := scan(t, n, c, Options{PrefetchDepth: 3}, true)
	optimum := passes * n * (n - c) / (n - 1)
	require.Positive(t, st.Prefetched)
	require.Equal(t, 64*(st.Misses+st.Prefetched), st.ReadBytes)
	require.LessOrEqual(t, st.ReadBytes, int64(64*(optimum+4*passes*3)))
	require.Less(t, st.Misses, st.Prefetched, "most reads are done ahead")
}

func TestScanThatFits(t *testing.T) {
	st := scan(t, 16, 16, Options{}, true)
	require.Zero(t, st.Misses)
	require.Zero(t, st.ReadBytes+st.WriteBytes)
}

func TestCleanPagesAreNotWritten(t *testing.T) {
	st := scan(t, 9, 4, Options{}, false)
	require.Positive(t, st.ReadBytes)
	require.Zero(t, st.WriteBytes)
}

func TestPrefetch(t *testing.T) {
	s := memStore(t, Options{HostLimit: 4 * 64, PrefetchDepth: 2})
	for _, key := range []string{"a", "b", "c", "d", "e", "f"} {
		touch(t, s, key, true)
	}
	require.NoError(t, s.Commit()) // all are clean now; c, d, e, f in memory
	prefetched := func(n int64) func() bool {
		return func() bool { return s.Stats().Prefetched == n }
	}
	s.Prefetch("missing", "f", "a")
	require.Eventually(t, prefetched(1), time.Second, time.Millisecond)
	before := s.Stats()
	touch(t, s, "a", false)
	require.Equal(t, before.Hits+1, s.Stats().Hits)
	require.Equal(t, before.Misses, s.Stats().Misses)
	for _, key := range []string{"d", "e", "f"} { // c was the least recently used
		touch(t, s, key, false)
	}
	require.Equal(t, before.Misses, s.Stats().Misses)

	// With everything dirty, room is written free in the background.
	for _, key := range []string{"a", "d", "e", "f"} {
		touch(t, s, key, true)
	}
	s.Prefetch("b", "c")
	require.Eventually(t, prefetched(3), time.Second, time.Millisecond)
	require.LessOrEqual(t, s.Stats().HostPeak, int64(4*64))
}

func TestPrefetchOff(t *testing.T) {
	goroutines := runtime.NumGoroutine()
	s := memStore(t, Options{HostLimit: 64, NoPrefetch: true})
	kerneltest.AtMostGoroutines(t, goroutines)
	touch(t, s, "a", true)
	touch(t, s, "b", true)
	s.Prefetch("a")
	require.Zero(t, s.Stats().Prefetched)
}
