package kerneltest

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// NoAllocs fails the test when a call of f allocates on average, after one
// call to warm pools up. The race detector makes pools drop memory at random;
// under it f is only called.
func NoAllocs(t testing.TB, f func()) {
	t.Helper()
	if raceEnabled {
		f()
		return
	}
	require.Zero(t, testing.AllocsPerRun(10, f), "allocations")
}
