//go:build !race

// The race detector makes pools forget buffers at random.

package attention

import (
	"math"
	"runtime"
	"runtime/debug"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

// Memory grows with the length: a call allocates nothing at any, and the workspace is one
// number a query.
func TestLinearMemory(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // collections empty the pools
	runtime.GC()
	for _, seq := range []int{1 << 10, 1 << 13, 1 << 16} {
		if !kerneltest.Full() && seq > 1<<13 {
			continue // takes long
		}
		c := Options{Batch: 1, Heads: 1, SeqQ: seq, SeqK: seq, Dim: 4, Causal: true, Window: slidingWindow(100, 0), Softcap: 5, Dropout: Dropout{P: 0.1}}
		require.Equal(t, seq, c.WorkspaceLen())
		a := callOf(t, c, snug.F32)
		both := func() {
			require.NoError(t, a.forward())
			require.NoError(t, a.backward())
		}
		least := math.Inf(1)
		for range 3 { // goroutines of the runtime allocate too
			least = min(least, testing.AllocsPerRun(1, both))
		}
		require.Zero(t, least, "%d", seq)
	}
	require.Equal(t, Options{Batch: 1, Heads: 1, SeqQ: 1 << 19, Dim: 4}.ScratchBytes(), Options{Batch: 1, Heads: 1, SeqQ: 1 << 28, Dim: 4}.ScratchBytes())
}

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
			c := Options{Batch: 1, Heads: 1, SeqQ: seq, SeqK: seq, Dim: 4, Causal: true}
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
	require.Equal(t, Options{Batch: 1, Heads: 1, Dim: 4}.ScratchBytes(), Options{Batch: 9, Heads: 1, SeqQ: 1 << 20, SeqK: 1 << 20, Dim: 4}.ScratchBytes())
}
