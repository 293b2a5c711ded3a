package kerneltest

import (
	"runtime"
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/require"
)

// NoAllocs fails the test when a call of f allocates on average of ten, after one
// call to warm pools up. Collections, which empty pools, wait meanwhile. The race
// detector makes pools drop memory at random; under it f is only called.
func NoAllocs(t testing.TB, f func()) {
	t.Helper()
	if Race {
		f()
		return
	}
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	runtime.GC() // ends one that is under way
	require.Zero(t, testing.AllocsPerRun(10, f), "allocations")
}
