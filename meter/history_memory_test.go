package meter

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestHistoryMemory: a history takes what its doc says.
func TestHistoryMemory(t *testing.T) {
	held := func(make func() any) (bytes int64) {
		var before, after runtime.MemStats
		for range 2 { // a pool keeps what it has for one collection more
			runtime.GC()
		}
		runtime.ReadMemStats(&before)
		kept := make()
		runtime.GC()
		runtime.ReadMemStats(&after)
		runtime.KeepAlive(kept)
		return int64(after.HeapAlloc) - int64(before.HeapAlloc)
	}
	const events, holders = 1 << 14, 4000
	empty := held(func() any { return newHistory(events) })
	require.LessOrEqual(t, empty, int64(48*events+150<<10))
	require.Greater(t, empty, int64(48*events)) // on 32 bits the rest is smaller
	full := held(func() any {
		m, err := New(Options{History: events, Samples: 2})
		require.NoError(t, err)
		for i := range holders {
			m.Holder(OnDevice, Weights, fmt.Sprint(i))
		}
		return m
	})
	require.Less(t, full-empty, int64(300*holders))
}
