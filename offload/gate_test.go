package offload

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/files"
	"github.com/snug-ml/snug/internal/files/filestest"
)

// gated is a directory whose page file waits at every read and write while the
// gate is closed.
type gated struct {
	*filestest.Dir
	came chan struct{} // a transfer waits at the gate
	open chan struct{} // closed: the gate is open
	late bool          // writes wait when they are done, not before
}

type gatedFile struct {
	files.File
	g *gated
}

// newGated returns an empty directory whose gate is closed.
func newGated() *gated {
	return &gated{Dir: filestest.New(), came: make(chan struct{}), open: make(chan struct{})}
}

func (g *gated) Open(name string, flag int) (files.File, error) {
	f, err := g.Dir.Open(name, flag)
	if name == dataName {
		f = gatedFile{f, g}
	}
	return f, err
}

func (g *gated) pass() {
	select {
	case <-g.open:
	default:
		g.came <- struct{}{}
		<-g.open
	}
}

// free opens the gate while it calls do.
func (g *gated) free(do func()) {
	closed := g.open
	g.open = make(chan struct{})
	close(g.open)
	do()
	g.open = closed
}

func (f gatedFile) ReadAt(b []byte, off int64) (int, error) {
	f.g.pass()
	return f.File.ReadAt(b, off)
}

func (f gatedFile) WriteAt(b []byte, off int64) (int, error) {
	if !f.g.late {
		f.g.pass()
	}
	n, err := f.File.WriteAt(b, off)
	if f.g.late {
		f.g.pass()
	}
	return n, err
}

// gatedStore holds blobs a, b, c of 64 bytes, committed, in a limit of two; b
// and c are in memory. The gate is closed when it returns.
func gatedStore(t *testing.T) (*Store, *gated) {
	g := newGated()
	close(g.open)
	s, err := open(g, Options{HostLimit: 128})
	require.NoError(t, err)
	for _, key := range []string{"a", "b", "c"} {
		touch(t, s, key, true)
	}
	require.NoError(t, s.Commit())
	g.open = make(chan struct{})
	return s, g
}

// during calls do in the background and returns its result's channel, once it
// waits at the gate if there is one.
func during(g *gated, do func() error) chan error {
	result := make(chan error, 1)
	go func() { result <- do() }()
	if g != nil {
		<-g.came
	}
	return result
}

// stuck gives a call that has to wait the time to begin, and fails the test if
// it has ended.
func stuck(t *testing.T, result chan error) {
	t.Helper()
	select {
	case err := <-result:
		t.Fatalf("did not wait: %v", err)
	case <-time.After(5 * time.Millisecond):
	}
}

func acquire(s *Store, key string) func() error {
	return func() error {
		_, err := s.Acquire(key, 64)
		return err
	}
}

// TestWaitingForATransfer starts calls that need what one slow read or write
// holds.
func TestWaitingForATransfer(t *testing.T) {
	t.Run("same page", func(t *testing.T) {
		s, g := gatedStore(t)
		first := during(g, acquire(s, "a"))
		second := during(nil, acquire(s, "a"))
		stuck(t, second)
		close(g.open)
		require.NoError(t, <-first)
		require.NoError(t, <-second)
		st := s.Stats()
		require.EqualValues(t, 1, st.Misses)
		require.Positive(t, st.Stall)
		require.NoError(t, s.Release("a", false))
		require.NoError(t, s.Release("a", false))
		require.NoError(t, s.Close())
	})
	t.Run("room that is being written free", func(t *testing.T) {
		s, g := gatedStore(t)
		touch(t, s, "b", true)
		touch(t, s, "c", true)
		first := during(g, acquire(s, "a")) // writes b
		second := during(nil, acquire(s, "b"))
		third := during(nil, acquire(s, "d"))
		stuck(t, second)
		stuck(t, third)
		close(g.open)
		errs := []error{<-first, <-second, <-third}
		failed := 0
		for _, err := range errs {
			if err != nil {
				require.ErrorIs(t, err, snug.ErrNoMemory)
				failed++
			}
		}
		require.Equal(t, 1, failed, "two of three have room")
		require.NoError(t, s.Close())
		requireWithin(t, s)
	})
	t.Run("context", func(t *testing.T) {
		s, g := gatedStore(t)
		x, err := Create[float32](s, "x", 16, 16)
		require.NoError(t, err)
		_, err = s.Acquire("c", 64)
		require.NoError(t, err)
		first := during(g, acquire(s, "a"))
		ctx, cancel := context.WithCancel(context.Background())
		second := during(nil, func() error {
			_, err := x.Pin(ctx, 0)
			return err
		})
		stuck(t, second)
		cancel()
		require.ErrorIs(t, <-second, context.Canceled)
		close(g.open)
		require.NoError(t, <-first)
		require.NoError(t, s.Close())
	})
	t.Run("delete", func(t *testing.T) {
		s, g := gatedStore(t)
		touch(t, s, "b", true)
		touch(t, s, "c", true)
		first := during(g, acquire(s, "a")) // writes b
		second := during(nil, func() error { return s.Delete("b") })
		stuck(t, second)
		close(g.open)
		require.NoError(t, <-first)
		require.NoError(t, <-second)
		require.Equal(t, []string{"a", "c"}, s.Keys())
		require.NoError(t, s.Close())
	})
	t.Run("commit", func(t *testing.T) {
		s, g := gatedStore(t)
		touch(t, s, "c", true)
		first := during(g, s.Commit) // writes c
		queued := []chan error{during(nil, acquire(s, "c")), during(nil, acquire(s, "c")), during(nil, s.Commit)}
		for _, result := range queued {
			stuck(t, result)
		}
		require.NoError(t, acquire(s, "b")(), "no commit needs it")
		require.NoError(t, s.Release("b", true))
		close(g.open)
		require.NoError(t, <-first)
		for _, result := range queued[:2] {
			require.NoError(t, <-result)
		}
		if err := <-queued[2]; err != nil {
			require.ErrorIs(t, err, snug.ErrConfig, "c is pinned")
		}
		require.NoError(t, s.Close())
	})
	t.Run("close", func(t *testing.T) {
		s, g := gatedStore(t)
		_, err := s.Acquire("c", 64)
		require.NoError(t, err)
		first := during(g, acquire(s, "a"))
		same, create := during(nil, acquire(s, "a")), during(nil, acquire(s, "new"))
		commit, del := during(nil, s.Commit), during(nil, func() error { return s.Delete("a") })
		stuck(t, same)
		stuck(t, create)
		require.ErrorIs(t, <-commit, snug.ErrConfig, "c is pinned")
		stuck(t, del)
		closed := during(nil, s.Close)
		stuck(t, closed)
		close(g.open)
		require.NoError(t, <-closed)
		<-first // may be just in time
		for _, result := range []chan error{same, create, del} {
			require.ErrorIs(t, <-result, snug.ErrConfig)
		}
	})
}

// TestReadAheadInFlight checks that a page on its way counts as found.
func TestReadAheadInFlight(t *testing.T) {
	g := newGated()
	close(g.open)
	s, err := open(g, Options{HostLimit: 128, PrefetchDepth: 1, Workers: 1})
	require.NoError(t, err)
	for _, key := range []string{"a", "b", "c"} {
		touch(t, s, key, true)
	}
	require.NoError(t, s.Commit())
	before := s.Stats()
	g.open = make(chan struct{})
	s.Prefetch("a")
	<-g.came
	result := during(nil, acquire(s, "a"))
	stuck(t, result)
	close(g.open)
	require.NoError(t, <-result)
	after := s.Stats()
	require.Equal(t, before.Misses, after.Misses)
	require.Equal(t, before.Hits+1, after.Hits)
	require.EqualValues(t, 1, after.Prefetched)
	require.NoError(t, s.Close())
}
