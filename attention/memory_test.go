//go:build !race

// The race detector makes pools forget buffers at random.

package attention

import (
	"runtime"
	"runtime/debug"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/stretchr/testify/require"
)

// Memory: a call allocates nothing, whatever the length, and scratch does not
// grow with it.
func TestMemory(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // collections empty the pools
	runtime.GC()                                     // ends one that is under way
	for _, dt := range dtypes {
		for _, seq := range []int{1280, 4096} {
			if seq > 1280 && dt != snug.F32 {
				continue // takes long and shows nothing new
			}
			c := Config{Batch: 1, Heads: 1, SeqQ: seq, SeqK: seq, Dim: 4, Causal: true}
			a := callOf(t, c, dt)
			both := func() {
				require.NoError(t, a.forward())
				require.NoError(t, a.backward())
			}
			both() // fills the pools
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			both()
			runtime.ReadMemStats(&after)
			// At worst the second worker had not run before.
			limit := uint64(2*c.ScratchBytes() + 1<<16)
			require.Less(t, after.TotalAlloc-before.TotalAlloc, limit)
			require.Less(t, limit, uint64(2*seq*seq), "half a matrix of scores would go unnoticed")
			if seq == 1280 {
				require.Zero(t, testing.AllocsPerRun(1, both))
			}
		}
	}
	require.Equal(t, Config{Batch: 1, Heads: 1, Dim: 4}.ScratchBytes(), Config{Batch: 9, Heads: 1, SeqQ: 1 << 20, SeqK: 1 << 20, Dim: 4}.ScratchBytes())
}
