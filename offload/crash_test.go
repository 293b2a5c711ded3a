package offload

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
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
	async     bool // commit in the background
	s         *Store
	now       model // contents of the store
	committed []model
	commits   int // that returned nil
	pending   *Commit
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
		if err := j.commit(); err != nil {
			return err
		}
	}
	return j.wait()
}

// commit makes what the store holds durable, in the background if the job is async.
func (j *job) commit() error {
	if err := j.wait(); err != nil {
		return err
	}
	j.committed = append(j.committed, j.now.clone())
	if j.async {
		c, err := j.s.BeginCommit()
		j.pending = &c
		return err
	}
	if err := j.try(j.s.Commit); err != nil {
		return err
	}
	j.commits++
	return nil
}

// wait waits for a commit in the background. A job that retries commits what the store holds
// now if that failed.
func (j *job) wait() error {
	if j.pending == nil {
		return nil
	}
	err := j.pending.Wait()
	if err != nil && j.retry {
		j.committed[len(j.committed)-1] = j.now.clone()
		err = j.s.Commit()
	}
	if err == nil {
		j.pending = nil
		j.commits++
	}
	return err
}

// calls returns how many calls of the file system an undisturbed job makes, about: what
// is read ahead and written twice depends on the background.
func calls(t *testing.T) int {
	dir := filestest.New()
	j := job{dir: dir}
	require.NoError(t, j.run())
	require.NoError(t, j.s.Close())
	require.Positive(t, j.s.Stats().Evicted)
	_, changes, calls := dir.Counts()
	require.Greater(t, changes, 40)
	require.Greater(t, calls, changes+10)
	return calls + 5
}

// TestCrashAtEveryCall stops the machine at each call of the file system, opening,
// listing, reading and closing too, lets the disk keep what it likes of the changes not
// synced, and opens the store again.
func TestCrashAtEveryCall(t *testing.T) {
	for k := 1; k <= 2*calls(t); k++ {
		dir := filestest.New()
		dir.FailCall(k/2, true, syscall.EIO)
		j := job{dir: dir, async: k%2 == 1}
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

// TestFailureAtEveryCall fails each call of the file system once; the call of the store is
// repeated, nothing must be lost, and nothing is left beside the store.
func TestFailureAtEveryCall(t *testing.T) {
	for k := 1; k <= 2*calls(t); k++ {
		dir := filestest.New()
		dir.FailCall(k/2, false, syscall.ENOSPC)
		j := job{dir: dir, retry: true, async: k%2 == 1}
		require.NoError(t, j.run(), "call %d", k)
		require.NotContains(t, dir.Names(), tempName, "call %d", k)
		survivor := dir.Crash(rand.New(rand.NewPCG(1, uint64(k))))
		dir.FailCall(0, false, nil)
		requireHolds(t, j.s, j.now)
		require.NoError(t, j.s.Close())
		require.Equal(t, []string{indexName, dataName}, dir.Names())
		s, err := open(survivor, Options{})
		require.NoError(t, err)
		requireHolds(t, s, j.now)
		require.NoError(t, s.Close())
	}
}

// TestFailureOfEveryCallOfOpenAndVerify fails each call of the file system while a store
// that was not closed is opened, listed, verified and closed: the error is the system's and no
// damage, and nobody keeps the lock.
func TestFailureOfEveryCallOfOpenAndVerify(t *testing.T) {
	left, want := smallStore(t)
	left.SetBytes(openName, nil)
	uses := map[string]func(dir *filestest.Dir) error{
		"open":     func(dir *filestest.Dir) error { return readSmall(t, dir, want) },
		"contents": func(dir *filestest.Dir) error { return second(inspect(dir)) },
		"verify": func(dir *filestest.Dir) error {
			v, err := verify(dir)
			require.Empty(t, v.Damaged)
			return err
		},
	}
	for name, use := range uses {
		for _, stop := range []bool{false, true} {
			failed := 0
			for k := 1; ; k++ {
				dir := left.Crash(rand.New(rand.NewPCG(1, 1)))
				dir.FailCall(k, stop, syscall.EIO)
				err := use(dir)
				_, _, calls := dir.Counts()
				dir.FailCall(0, false, nil)
				if calls < k {
					require.NoError(t, err)
					break
				}
				if err != nil {
					failed++
					require.ErrorIs(t, err, syscall.EIO, "%s: call %d", name, k)
				}
				require.NoError(t, readSmall(t, dir, want), "%s: call %d", name, k)
			}
			require.Greater(t, failed, 2, name)
		}
	}
}

// TestRecoveredIsNotForgotten: an Open that fails leaves what says that the process
// before did not close the store.
func TestRecoveredIsNotForgotten(t *testing.T) {
	left, _ := smallStore(t)
	left.SetBytes(openName, nil)
	failed := 0
	for k := 1; ; k++ {
		dir := left.Crash(rand.New(rand.NewPCG(1, 1)))
		dir.FailCall(k, false, syscall.EIO)
		s, err := open(dir, Options{})
		_, _, calls := dir.Counts()
		dir.FailCall(0, false, nil)
		if err != nil {
			failed++
			s, err = open(dir, Options{})
		}
		require.NoError(t, err)
		require.True(t, s.Recovered(), "call %d", k)
		require.NoError(t, s.Close())
		if calls < k {
			break
		}
	}
	require.Greater(t, failed, 3)
}

// TestSecondStore: what cannot have the lock changes nothing of a store that is open, and
// the first goes on.
func TestSecondStore(t *testing.T) {
	dir, want := smallStore(t)
	s, err := open(dir, Options{})
	require.NoError(t, err)
	touch(t, s, "new", true)
	_, before, _ := dir.Counts()
	names := dir.Names()
	for range 3 {
		for _, err := range []error{second(open(dir, Options{})), second(verify(dir))} {
			require.ErrorIs(t, err, files.ErrLocked)
		}
		require.NoError(t, second(inspect(dir)))
	}
	_, after, _ := dir.Counts()
	require.Equal(t, before, after)
	require.Equal(t, names, dir.Names())
	require.NoError(t, s.Commit())
	require.NoError(t, s.Close())
	require.NoError(t, readSmall(t, dir, want))
}

// TestFolderReplacedWhileOpen: a store whose folder or files were moved, removed or
// replaced does not commit, and leaves what is there alone; when all is back it goes on.
func TestFolderReplacedWhileOpen(t *testing.T) {
	for _, direct := range []bool{false, true} {
		parent := t.TempDir()
		dir, away := filepath.Join(parent, "store"), filepath.Join(parent, "away")
		s, err := Open(dir, Options{Direct: direct})
		require.NoError(t, err)
		touch(t, s, "a", true)
		require.NoError(t, s.Commit())
		touch(t, s, "b", true)
		refused := func(what string) {
			t.Helper()
			err := s.Commit()
			require.ErrorIs(t, err, snug.ErrConfig, what)
			require.ErrorContains(t, err, "moved, removed or replaced", what)
		}
		if runtime.GOOS != "windows" { // there nothing of an open store can be moved
			require.NoError(t, os.Rename(dir, away))
			refused("the folder is gone")
			other, err := Open(dir, Options{})
			require.NoError(t, err)
			touch(t, other, "c", true)
			require.NoError(t, other.Commit())
			refused("there is another store")
			_, err = os.Stat(filepath.Join(dir, openName))
			require.NoError(t, err)
			require.NoError(t, other.Close())
			list, err := Contents(dir)
			require.NoError(t, err)
			require.Len(t, list, 1)
			require.Equal(t, "c", list[0].Name)
			require.NoError(t, os.RemoveAll(dir))
			require.NoError(t, os.Rename(away, dir))
			for _, name := range []string{lockName, dataName} {
				path := filepath.Join(dir, name)
				require.NoError(t, os.Rename(path, away))
				refused(name + " is gone")
				require.NoError(t, os.Rename(away, path))
			}
		}
		require.NoError(t, s.Commit())
		require.NoError(t, s.Close())
		list, err := Contents(dir)
		require.NoError(t, err)
		require.Len(t, list, 2)
	}
}

// TestMarkOfAnotherStore: a store whose folder was moved does not remove the mark of the
// store that has taken its place.
func TestMarkOfAnotherStore(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("nothing of an open store can be moved here")
	}
	dir := filepath.Join(t.TempDir(), "store")
	first, err := Open(dir, Options{})
	require.NoError(t, err)
	require.NoError(t, os.Rename(dir, dir+"2"))
	second, err := Open(dir, Options{})
	require.NoError(t, err)
	require.NoError(t, first.Close())
	_, err = os.Stat(filepath.Join(dir, openName))
	require.NoError(t, err)
	require.NoError(t, second.Close())
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
		for _, name := range []string{dataName, indexName, openName} {
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
