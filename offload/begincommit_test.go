package offload

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/files/filestest"
)

// set writes a byte to all of a blob of 64 bytes.
func set(s *Store, key string, value byte) error {
	b, err := s.Acquire(key, 64)
	if err != nil {
		return err
	}
	for i := range b {
		b[i] = value
	}
	return s.Release(key, true)
}

// blobs is a model of blobs of 64 bytes.
func blobs(values map[string]byte) model {
	m := model{}
	for key, value := range values {
		m[key] = bytes.Repeat([]byte{value}, 64)
	}
	return m
}

// gatedBlobs is a store with blobs that are dirty. A commit writes them in the order of keys. The
// gate is closed.
func gatedBlobs(t *testing.T, o Options, keys ...string) (*Store, *gated) {
	g := newGated()
	s, err := open(g, o)
	require.NoError(t, err)
	g.free(func() {
		for _, key := range slices.Backward(keys) {
			require.NoError(t, set(s, key, 1))
		}
	})
	return s, g
}

// beginAtGate begins a commit, which waits at the gate with the first page.
func beginAtGate(t *testing.T, s *Store, g *gated) Commit {
	c, err := s.BeginCommit()
	require.NoError(t, err)
	<-g.came
	require.False(t, c.Done())
	return c
}

// requireCommitted opens what a machine that stops now leaves.
func requireCommitted(t *testing.T, dir *filestest.Dir, want model) {
	t.Helper()
	s, err := open(dir.Crash(rand.New(rand.NewPCG(1, 2))), Options{})
	require.NoError(t, err)
	requireHolds(t, s, want)
	require.NoError(t, s.Close())
}

// TestPagesChangeDuringACommit changes pages while the commit is held up with the first one:
// with memory they are copied, without they are written first. The commit has the old
// contents, the store the new ones.
func TestPagesChangeDuringACommit(t *testing.T) {
	t.Run("copied", func(t *testing.T) {
		s, g := gatedBlobs(t, Options{HostLimit: 5 * 64}, "a", "b", "c")
		c := beginAtGate(t, s, g) // with a
		require.NoError(t, set(s, "b", 2))
		require.EqualValues(t, 1, s.Stats().Copied)
		require.NoError(t, set(s, "b", 3), "the copy is there")
		_, err := s.Acquire("c", 64)
		require.NoError(t, err)
		require.NoError(t, s.Release("c", false))
		require.EqualValues(t, 2, s.Stats().Copied, "nobody knew that c does not change")
		require.EqualValues(t, 5*64, s.Stats().HostBytes)
		close(g.open)
		require.NoError(t, c.Wait())
		require.True(t, c.Done())
		requireCommitted(t, g.Dir, blobs(map[string]byte{"a": 1, "b": 1, "c": 1}))
		require.EqualValues(t, 3*64, s.buffers.used, "the copies are gone")
		for key, dirty := range map[string]bool{"a": false, "b": true, "c": false} {
			require.Equal(t, dirty, s.objects[key].pages[0].dirty, key)
		}
		requireHolds(t, s, blobs(map[string]byte{"a": 1, "b": 3, "c": 1}))
		require.NoError(t, s.Commit())
		requireCommitted(t, g.Dir, blobs(map[string]byte{"a": 1, "b": 3, "c": 1}))
		require.Len(t, s.retired, 0)
		require.NoError(t, s.Close())
		requireWithin(t, s)
	})
	t.Run("written first", func(t *testing.T) {
		s, g := gatedBlobs(t, Options{HostLimit: 2 * 64}, "a", "b")
		c := beginAtGate(t, s, g) // with a
		result := during(g, func() error { return set(s, "b", 2) })
		stuck(t, result) // at the gate with b
		close(g.open)
		require.NoError(t, <-result)
		require.NoError(t, c.Wait())
		require.Zero(t, s.Stats().Copied)
		requireCommitted(t, g.Dir, blobs(map[string]byte{"a": 1, "b": 1}))
		requireHolds(t, s, blobs(map[string]byte{"a": 1, "b": 2}))
		require.NoError(t, s.Close())
		requireWithin(t, s)
	})
	t.Run("clean pages make space", func(t *testing.T) {
		s, g := gatedBlobs(t, Options{HostLimit: 3 * 64}, "x")
		g.free(func() {
			require.NoError(t, s.Commit())
			for _, key := range []string{"b", "a"} {
				require.NoError(t, set(s, key, 1))
			}
		})
		c := beginAtGate(t, s, g)
		require.NoError(t, set(s, "b", 2))
		require.EqualValues(t, 1, s.Stats().Copied)
		require.Nil(t, s.objects["x"].pages[0].buf)
		close(g.open)
		require.NoError(t, c.Wait())
		requireCommitted(t, g.Dir, blobs(map[string]byte{"a": 1, "b": 1, "x": 1}))
		require.NoError(t, s.Close())
		requireWithin(t, s)
	})
	t.Run("only the page that is being written", func(t *testing.T) {
		s, g := gatedBlobs(t, Options{}, "a", "b")
		c := beginAtGate(t, s, g) // with a
		result := during(nil, func() error { return set(s, "a", 2) })
		stuck(t, result)
		for i := range 20 {
			require.NoError(t, set(s, "b", byte(i)))
			require.NoError(t, set(s, fmt.Sprint("new", i), 5))
		}
		close(g.open)
		require.NoError(t, <-result)
		require.NoError(t, c.Wait())
		requireCommitted(t, g.Dir, blobs(map[string]byte{"a": 1, "b": 1}))
		require.NoError(t, s.Close())
	})
	t.Run("deleted", func(t *testing.T) {
		s, g := gatedBlobs(t, Options{}, "a", "b")
		g.free(func() { require.NoError(t, s.Commit()) })
		require.NoError(t, set(s, "a", 2))
		c := beginAtGate(t, s, g) // with a
		require.NoError(t, s.Delete("b"), "its slot stays")
		result := during(nil, func() error { return s.Delete("a") })
		stuck(t, result)
		close(g.open)
		require.NoError(t, <-result)
		require.NoError(t, c.Wait())
		require.Empty(t, s.Keys())
		requireCommitted(t, g.Dir, blobs(map[string]byte{"a": 2, "b": 1}))
		require.NoError(t, s.Commit())
		require.Zero(t, s.Stats().DiskBytes)
		require.NoError(t, s.Close())
	})
}

// TestCommitsAreInOrder: a commit waits for the one before, and so does Close.
func TestCommitsAreInOrder(t *testing.T) {
	s, g := gatedBlobs(t, Options{}, "a", "b")
	first := beginAtGate(t, s, g)
	require.NoError(t, set(s, "b", 2))
	next := during(nil, s.Commit)
	stuck(t, next)
	closed := during(nil, s.Close)
	stuck(t, closed)
	require.NoError(t, set(s, "c", 2), "the store is still open")
	close(g.open)
	require.NoError(t, first.Wait())
	require.NoError(t, <-closed)
	if err := <-next; err != nil { // Close came first
		require.ErrorIs(t, err, snug.ErrConfig)
	}
	require.NoError(t, first.Wait(), "after Close too")
	require.ErrorIs(t, second(s.BeginCommit()), snug.ErrConfig)

	s = memStore(t, Options{})
	_, err := s.Acquire("a", 64)
	require.NoError(t, err)
	require.ErrorIs(t, second(s.BeginCommit()), snug.ErrConfig, "a is pinned")
	require.NoError(t, s.Release("a", true))
	require.NoError(t, second(s.BeginCommit()))
}

// TestErrorsInTheBackground: an error of a commit reaches exactly one of Wait, the next
// commit and Close, except that Wait repeats it, and the commit before stays.
func TestErrorsInTheBackground(t *testing.T) {
	failing := func() (*Store, *filestest.Dir, Commit) {
		dir := filestest.New()
		s, err := open(dir, Options{})
		require.NoError(t, err)
		require.NoError(t, set(s, "a", 1))
		require.NoError(t, s.Commit())
		require.NoError(t, set(s, "a", 2))
		dir.FailChange(1, true, syscall.ENOSPC)
		c, err := s.BeginCommit()
		require.NoError(t, err)
		for !c.Done() {
		}
		dir.FailChange(0, false, nil)
		requireCommitted(t, dir, blobs(map[string]byte{"a": 1}))
		return s, dir, c
	}
	again := func(s *Store, dir *filestest.Dir) {
		require.NoError(t, s.Commit())
		requireCommitted(t, dir, blobs(map[string]byte{"a": 2}))
		require.NoError(t, s.Close())
	}
	s, dir, c := failing()
	require.ErrorIs(t, c.Wait(), syscall.ENOSPC)
	require.ErrorIs(t, c.Wait(), syscall.ENOSPC)
	again(s, dir)

	for _, commit := range []func(s *Store) error{(*Store).Commit, func(s *Store) error { return second(s.BeginCommit()) }} {
		s, dir, c = failing()
		err := commit(s)
		require.ErrorIs(t, err, syscall.ENOSPC)
		require.ErrorContains(t, err, "offload: the commit before: commit: write")
		requireCommitted(t, dir, blobs(map[string]byte{"a": 1}))
		again(s, dir)
		require.ErrorIs(t, c.Wait(), syscall.ENOSPC)
	}

	s, _, _ = failing()
	require.ErrorIs(t, s.Close(), syscall.ENOSPC)
	require.NoError(t, s.Close())
}

// TestPinsDoNotFail: a page that can neither be copied nor written ends the commit and not
// the pin. The copies of the commit are given back.
func TestPinsDoNotFail(t *testing.T) {
	s, g := gatedBlobs(t, Options{HostLimit: 4 * 64}, "a", "b", "c")
	c := beginAtGate(t, s, g) // with a
	require.NoError(t, set(s, "b", 2))
	require.EqualValues(t, 4*64, s.buffers.used)
	g.FailChange(1, true, syscall.ENOSPC)
	result := during(g, func() error { return set(s, "c", 2) })
	close(g.open)
	require.NoError(t, <-result)
	require.ErrorIs(t, c.Wait(), syscall.ENOSPC)
	require.EqualValues(t, 3*64, s.buffers.used)
	g.FailChange(0, false, nil)
	requireCommitted(t, g.Dir, model{})
	requireHolds(t, s, blobs(map[string]byte{"a": 1, "b": 2, "c": 2}))
	require.NoError(t, s.Commit())
	requireCommitted(t, g.Dir, blobs(map[string]byte{"a": 1, "b": 2, "c": 2}))
	require.NoError(t, s.Close())
}

// TestFullDiskDuringACommit: a pin that finds no space on the disk waits for the commit, whose
// end frees the slots of the one before.
func TestFullDiskDuringACommit(t *testing.T) {
	for _, none := range []bool{true, false} {
		dir := filestest.New()
		o, err := Options{HostLimit: 2 * 64, DiskLimit: 8 * slotAlign, NoPrefetch: none}.check()
		require.NoError(t, err)
		s, err := open(dir, o)
		require.NoError(t, err)
		keys := []string{"a", "b"}
		for round := range byte(30) {
			for _, key := range keys {
				require.NoError(t, set(s, key, round))
			}
			_, err := s.BeginCommit()
			require.NoError(t, err)
			for extra := range byte(2) { // each pass wants further slots
				require.NoError(t, set(s, "c", extra))
				require.NoError(t, set(s, "d", extra))
			}
			require.LessOrEqual(t, s.Stats().DiskBytes, o.DiskLimit)
		}
		require.NoError(t, s.Close())
		requireCommitted(t, dir, blobs(map[string]byte{"a": 29, "b": 29, "c": 1, "d": 1}))
	}
}

// TestSyncThatFailsInTheBackground: pages that were written before the end of a sync that
// failed are written again, also when they were evicted meanwhile.
func TestSyncThatFailsInTheBackground(t *testing.T) {
	for k := 1; k < 40; k++ {
		dir := filestest.New()
		s, err := open(dir, Options{HostLimit: 3 * 64})
		require.NoError(t, err)
		want := map[string]byte{}
		fill := func(value byte) {
			for i := range 7 {
				key := fmt.Sprint(i)
				require.NoError(t, set(s, key, value))
				want[key] = value
			}
		}
		fill(1)
		require.NoError(t, s.Commit())
		fill(2)
		dir.FailCall(k, false, syscall.EIO)
		c, err := s.BeginCommit()
		require.NoError(t, err)
		for i := range 3 { // the calls of these pins may fail too
			_ = set(s, fmt.Sprint(i), 2)
		}
		failed := c.Wait()
		dir.FailCall(0, false, nil)
		if failed != nil {
			require.ErrorIs(t, failed, syscall.EIO)
			require.NoError(t, set(s, "6", 3))
			want["6"] = 3
			c, err = s.BeginCommit()
			require.NoError(t, err)
			for i := range 7 { // while it writes again what is in doubt
				require.NoError(t, set(s, fmt.Sprint(i), 4))
			}
			require.NoError(t, c.Wait(), "call %d", k)
		}
		requireCommitted(t, dir, blobs(want))
		require.NoError(t, s.Close())
		requireWithin(t, s)
	}
}

// TestSyncThatFailsDuringAWrite: what the system lost of a page because a sync failed before the write had returned is
// written again.
func TestSyncThatFailsDuringAWrite(t *testing.T) {
	g := newGated()
	g.late = true
	s, err := open(g, Options{HostLimit: 2 * 64, NoPrefetch: true})
	require.NoError(t, err)
	require.NoError(t, set(s, "a", 1))
	require.NoError(t, set(s, "b", 1))
	result := during(g, acquire(s, "c")) // a is written
	g.FailCall(1, false, syscall.EIO)
	s.mu.Lock()
	require.ErrorIs(t, s.sync(), syscall.EIO)
	s.mu.Unlock()
	close(g.open)
	require.NoError(t, <-result)
	require.NoError(t, s.Release("c", false))
	require.NoError(t, s.Commit())
	requireCommitted(t, g.Dir, blobs(map[string]byte{"a": 1, "b": 1, "c": 0}))
	require.NoError(t, s.Close())
}

// TestSnapshotsAreConsistent begins a commit in every round, in which all pages get the number
// of the round, copies the files of the store at random moments, and finds in each copy all
// pages with one number, which is that of a commit that was under way or durable.
func TestSnapshotsAreConsistent(t *testing.T) {
	const keys, rounds = 24, 40
	for _, limit := range []int64{0, 6 * 64, 30 * 64} {
		dir := filestest.New()
		s, err := open(dir, Options{HostLimit: limit, PrefetchDepth: 3, Workers: 2})
		require.NoError(t, err)
		var durable, begun atomic.Int64
		stop := make(chan struct{})
		var looking sync.WaitGroup
		looking.Go(func() {
			for seed := uint64(0); ; seed++ {
				select {
				case <-stop:
					return
				default:
				}
				low := durable.Load()
				after, err := open(dir.Crash(rand.New(rand.NewPCG(seed, 1))), Options{})
				high := begun.Load()
				if err != nil || !consistent(after, keys, low, high) {
					t.Errorf("limit %d: a copy is not of commits %d to %d: %v", limit, low, high, err)
					return
				}
			}
		})
		var pending Commit
		for round := int64(1); round <= rounds; round++ {
			for i := range keys {
				require.NoError(t, set(s, fmt.Sprint(i), byte(round)))
			}
			require.NoError(t, pending.Wait())
			durable.Store(round - 1)
			begun.Store(round)
			pending, err = s.BeginCommit()
			require.NoError(t, err)
		}
		close(stop)
		looking.Wait()
		require.NoError(t, s.Close())
		requireWithin(t, s)
	}
}

// consistent reports whether all blobs of s have the number of one commit of low to high, and
// closes s.
func consistent(s *Store, keys int, low, high int64) bool {
	defer s.Close()
	if len(s.Keys()) == 0 {
		return low == 0
	}
	first := int64(-1)
	for i := range keys {
		b, err := s.Acquire(fmt.Sprint(i), 64)
		if err != nil || first >= 0 && int64(b[0]) != first || b[0] != b[63] {
			return false
		}
		first = int64(b[0])
	}
	return low <= first && first <= high
}

// TestCommitsOfAFile commits a store of the operating system in the background while pages
// change, with and without its cache, and opens copies of the files.
func TestCommitsOfAFile(t *testing.T) {
	for _, direct := range []bool{false, true} {
		src := t.TempDir()
		s, err := Open(src, Options{HostLimit: 6 * 4096, Direct: direct})
		require.NoError(t, err)
		x, err := Create[int32](s, "x", 20*1024, 1024)
		require.NoError(t, err)
		page := make([]int32, 1024)
		fill := func(value int32) {
			for i := range page {
				page[i] = value
			}
			for lo := 0; lo < x.Len(); lo += len(page) {
				require.NoError(t, x.WriteAt(page, lo))
			}
		}
		for round := range int32(5) {
			fill(round)
			c, err := s.BeginCommit()
			require.NoError(t, err)
			fill(100 + round)
			require.NoError(t, c.Wait())
			copied := t.TempDir()
			for _, name := range []string{dataName, indexName, openName} {
				content, err := os.ReadFile(filepath.Join(src, name))
				require.NoError(t, err)
				require.NoError(t, os.WriteFile(filepath.Join(copied, name), content, 0o600))
			}
			after, err := Open(copied, Options{})
			require.NoError(t, err)
			y, err := Lookup[int32](after, "x")
			require.NoError(t, err)
			all := make([]int32, y.Len())
			require.NoError(t, y.ReadAt(all, 0))
			for _, got := range all {
				if got != round {
					t.Fatalf("%d in the commit of round %d", got, round)
				}
			}
			require.NoError(t, after.Close())
		}
		require.NoError(t, s.Close())
		requireWithin(t, s)
	}
}
