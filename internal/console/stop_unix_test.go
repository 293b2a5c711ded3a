//go:build unix

package console

import (
	"bytes"
	"context"
	"os"
	"os/signal"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A run that never looks whether it is to end is ended by the second signal; one that ends by
// itself is not.
func TestSecondSignalEndsWhatDoesNotLook(t *testing.T) {
	for _, ends := range []bool{false, true} {
		status := make(chan int, 1)
		var errs bytes.Buffer
		stop, release := OnSignals(Options{Name: "test", Advice: "start anew", Stderr: &errs, Grace: 50 * time.Millisecond, Exit: func(s int) { status <- s }})
		send := func(to context.Context) {
			require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGTERM))
			<-to.Done()
		}
		require.False(t, stop.Asked())
		send(stop.After)
		require.True(t, stop.Asked())
		require.NoError(t, stop.Now.Err())
		select {
		case <-status:
			require.Fail(t, "the first ends after a step")
		case <-time.After(100 * time.Millisecond):
		}
		send(stop.Now)
		if ends {
			release()
			release()
			time.Sleep(100 * time.Millisecond)
			require.Empty(t, status)
			continue
		}
		select {
		case s := <-status:
			require.Equal(t, 128+int(syscall.SIGTERM), s)
		case <-time.After(10 * time.Second):
			require.Fail(t, "it was not ended")
		}
		release()
		require.Contains(t, errs.String(), "test: ended in the middle of what it did; start anew\n")
	}
}

// Each signal that ends a process by default ends a run after its step, with its own status.
func TestSignals(t *testing.T) {
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
		t.Run(s.String(), func(t *testing.T) {
			if signal.Ignored(s) {
				t.Skip("the tests run under nohup, which ignores it")
			}
			var errs bytes.Buffer
			stop, release := OnSignals(Options{Name: "test", Stderr: &errs})
			require.NoError(t, syscall.Kill(os.Getpid(), s))
			<-stop.After.Done()
			require.NoError(t, stop.Now.Err())
			require.Equal(t, 128+int(s), stop.Status())
			release()
		})
	}
	signal.Ignore(syscall.SIGHUP) // as nohup does
	defer signal.Reset(syscall.SIGHUP)
	stop, release := OnSignals(Options{Name: "test", Stderr: &bytes.Buffer{}})
	defer release()
	require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGHUP))
	time.Sleep(20 * time.Millisecond)
	require.False(t, stop.Asked())
}
