package offload

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/files"
	"github.com/snug-ml/snug/internal/files/filestest"
)

// job is a small training run with three commits: pages of different sizes are
// changed in a host limit that holds a few, one is deleted, one comes back.
type job struct {
	dir       files.Dir
	retry     bool // repeat a call that failed
	s         *Store
	now       model // contents of the store
	committed []model
	commits   int // that returned nil
}

// try calls do, once more after an error if the job retries.
func (j *job) try(do func() error) error {
	err := do()
	if err != nil && j.retry {
		err = do()
	}
	return err
}

func (j *job) fill(key string, size int, x byte) error {
	var b []byte
	err := j.try(func() (err error) {
		b, err = j.s.Acquire(key, size)
		return err
	})
	if err != nil {
		return err
	}
	for i := range b {
		b[i] = x
	}
	j.now[key] = bytes.Clone(b)
	return j.s.Release(key, true)
}

func (j *job) run() error {
	o, err := Options{HostLimit: 3 * 5056, PrefetchDepth: 2}.check()
	if err != nil {
		return err
	}
	err = j.try(func() (err error) {
		j.s, err = open(j.dir, o)
		return err
	})
	if err != nil {
		return err
	}
	j.now, j.committed = model{}, []model{{}}
	for round := range 3 {
		for pass := range 2 {
			for i := range 6 {
				if err := j.fill(fmt.Sprint("page", i), 5000+i, byte(1+100*pass+10*round+i)); err != nil {
					return err
				}
			}
			// A page of zeros that is never written, and one now and then.
			if err := j.fill(fmt.Sprint("round", round), 100, byte(pass)); err != nil {
				return err
			}
		}
		if round == 1 {
			if err := j.s.Delete("page2"); err != nil {
				return err
			}
			delete(j.now, "page2")
		}
		j.committed = append(j.committed, j.now.clone())
		if err := j.try(j.s.Commit); err != nil {
			return err
		}
		j.commits++
	}
	return nil
}

// operations returns how many changes of files an undisturbed job makes, about:
// how many pages are written twice depends on the background.
func operations(t *testing.T) int {
	dir := filestest.New()
	j := job{dir: dir}
	require.NoError(t, j.run())
	require.NoError(t, j.s.Close())
	require.Positive(t, j.s.Stats().Evicted)
	_, changes, _ := dir.Counts()
	require.Greater(t, changes, 40)
	return changes + 5
}

// TestCrashAtEveryOperation stops the machine at each change of a file, lets
// the disk keep what it likes of the changes not synced, and opens the store
// again.
func TestCrashAtEveryOperation(t *testing.T) {
	for k := 1; k <= operations(t); k++ {
		dir := filestest.New()
		dir.FailChange(k, true, syscall.EIO)
		j := job{dir: dir}
		err := j.run()
		if j.s != nil {
			_ = j.s.Close()
		}
		for seed := range uint64(5) {
			s, openErr := open(dir.Crash(rand.New(rand.NewPCG(seed, uint64(k)))), Options{HostLimit: 1 << 20})
			require.NoError(t, openErr, "operation %d", k)
			want := model{}
			if j.s != nil {
				want = j.committed[j.commits]
				if err != nil && len(j.committed) > j.commits+1 && s.Has(fmt.Sprint("round", j.commits)) {
					want = j.committed[j.commits+1] // cut off after the renaming
				}
			}
			requireHolds(t, s, want)
			require.NoError(t, s.Close())
		}
	}
}

// TestFailureAtEveryOperation fails each change of a file once, as on a full
// disk; the call is repeated, and nothing must be lost.
func TestFailureAtEveryOperation(t *testing.T) {
	for k := 1; k <= operations(t); k++ {
		dir := filestest.New()
		dir.FailChange(k, false, syscall.ENOSPC)
		j := job{dir: dir, retry: true}
		require.NoError(t, j.run(), "operation %d", k)
		requireHolds(t, j.s, j.now)
		require.NoError(t, j.s.Close())
		s, err := open(dir.Crash(rand.New(rand.NewPCG(1, uint64(k)))), Options{})
		require.NoError(t, err)
		requireHolds(t, s, j.now)
		require.NoError(t, s.Close())
	}
}

func TestDiskFull(t *testing.T) {
	dir := filestest.New()
	s, err := open(dir, Options{HostLimit: 128})
	require.NoError(t, err)
	fill := func(key string) error {
		b, err := s.Acquire(key, 64)
		if err != nil {
			return err
		}
		copy(b, key)
		return s.Release(key, true)
	}
	require.NoError(t, fill("a"))
	require.NoError(t, fill("b"))
	require.NoError(t, s.Commit())
	require.NoError(t, fill("a"))
	dir.FailChange(1, true, syscall.ENOSPC)
	require.NoError(t, fill("b")) // both are in memory, dirty
	err = fill("c")
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.ErrorContains(t, err, `write blob "a"`)
	require.False(t, s.Has("c"))
	err = s.Commit()
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.EqualValues(t, 2*slotAlign, s.space.end, "failed writes give their slots back")
	dir.FailChange(0, false, nil) // there is room again
	require.NoError(t, fill("c"))
	require.NoError(t, s.Commit())
	pad := func(key string) []byte { return append([]byte(key), make([]byte, 63)...) }
	requireHolds(t, s, model{"a": pad("a"), "b": pad("b"), "c": pad("c")})
	require.NoError(t, s.Close())
}

// TestUncommittedSpace checks that what was evicted after the last commit is
// cut off when the store is opened again.
func TestUncommittedSpace(t *testing.T) {
	dir := filestest.New()
	o := Options{HostLimit: 64}
	s, err := open(dir, o)
	require.NoError(t, err)
	touch(t, s, "a", true)
	require.NoError(t, s.Commit())
	for i := range 9 {
		touch(t, s, fmt.Sprint(i), true)
	}
	require.Greater(t, s.Stats().DiskBytes, int64(8*slotAlign))
	require.NoError(t, s.Close())
	s, err = open(dir, o)
	require.NoError(t, err)
	size, err := s.data.Size()
	require.NoError(t, err)
	require.LessOrEqual(t, size, int64(slotAlign))
	require.Equal(t, size, s.Stats().DiskBytes)
	require.Equal(t, []string{"a"}, s.Keys())
	require.NoError(t, s.Close())
}

// TestBackgroundGivesUp checks that the background tries a read or a write that
// fails once, leaves the error to Acquire, and goes on when that succeeds.
func TestBackgroundGivesUp(t *testing.T) {
	dir := filestest.New()
	s, err := open(dir, Options{HostLimit: 3 * 64, PrefetchDepth: 2, Workers: 1})
	require.NoError(t, err)
	keys := []string{"a", "b", "c", "d", "e"}
	scan := func(keys ...string) {
		for _, key := range keys {
			touch(t, s, key, true)
			time.Sleep(time.Millisecond) // for the background
		}
	}
	scan(keys...)
	scan(keys...)
	scan("a", "b") // d is evicted or will be; the next pass is foreseen
	require.NoError(t, s.Commit())
	p := &s.objects["d"].pages[0]
	s.mu.Lock()
	if p.buf != nil {
		s.discard(p)
	}
	dir.Flip(dataName, p.slot.off)
	s.mu.Unlock()
	reads, _, _ := dir.Counts()
	scan("c")
	time.Sleep(5 * time.Millisecond)
	again, _, _ := dir.Counts()
	require.LessOrEqual(t, again-reads, 4)
	_, err = s.Acquire("d", 64)
	require.ErrorIs(t, err, snug.ErrCorrupt)
	dir.Flip(dataName, p.slot.off)
	scan("d")
	s.mu.Lock()
	require.False(t, p.bad)
	s.mu.Unlock()

	dir.FailChange(1, true, syscall.ENOSPC)
	_, changes, _ := dir.Counts()
	time.Sleep(5 * time.Millisecond)
	var inMemory []string
	s.mu.Lock()
	for _, p := range s.victims {
		inMemory = append(inMemory, p.obj.name)
	}
	s.mu.Unlock()
	for _, key := range inMemory {
		touch(t, s, key, true)
	}
	s.Prefetch(keys...)
	time.Sleep(5 * time.Millisecond)
	_, after, _ := dir.Counts()
	require.LessOrEqual(t, after-changes, 1)
	require.NoError(t, s.Close())
}

// TestCopiesOfTheDirectory copies the files of a real store between
// operations, as a backup or a kill would find them.
func TestCopiesOfTheDirectory(t *testing.T) {
	src := t.TempDir()
	s, err := Open(src, Options{HostLimit: 2 * 4096})
	require.NoError(t, err)
	now, committed := model{}, model{}
	rng := rand.New(rand.NewPCG(3, 4))
	for step := range 60 {
		key := fmt.Sprint(rng.IntN(7))
		b, err := s.Acquire(key, 4096)
		require.NoError(t, err)
		for i := range b {
			b[i] = byte(step)
		}
		now[key] = bytes.Clone(b)
		require.NoError(t, s.Release(key, true))
		if step%9 == 8 {
			require.NoError(t, s.Commit())
			committed = now.clone()
		}
		backup := t.TempDir()
		for _, name := range []string{dataName, indexName} {
			content, err := os.ReadFile(filepath.Join(src, name))
			if step < 8 && name == indexName {
				require.ErrorIs(t, err, os.ErrNotExist)
				continue
			}
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(filepath.Join(backup, name), content, 0o600))
		}
		copied, err := Open(backup, Options{})
		require.NoError(t, err)
		requireHolds(t, copied, committed)
		require.NoError(t, copied.Close())
	}
	require.NoError(t, s.Close())
}
