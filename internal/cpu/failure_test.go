package cpu_test

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug/internal/cpu"
)

// TestFailure: how a function ends a goroutine is how another one ends that raises it.
func TestFailure(t *testing.T) {
	ended := func(do func()) (f cpu.Failure) {
		done := make(chan struct{})
		go func() {
			returned := false
			defer close(done)
			defer f.Catch(&returned)
			do()
			returned = true
		}()
		<-done
		return f
	}
	none := ended(func() {})
	require.NotPanics(t, none.Raise)
	paniced := ended(func() { panic("value") })
	require.PanicsWithValue(t, "value", paniced.Raise)
	require.PanicsWithValue(t, "value", paniced.Raise, "it is still there")
	gone := ended(runtime.Goexit)
	again := ended(gone.Raise)
	require.Equal(t, gone, again)
	require.NotEqual(t, none, again)
	nothing := ended(func() { panic(nil) })
	require.Panics(t, nothing.Raise)
}
