package offload

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/files/filestest"
	"github.com/snug-ml/snug/internal/kerneltest"
)

// memStore opens a store in memory with checked options.
func memStore(t testing.TB, o Options) *Store {
	o, err := o.check()
	require.NoError(t, err)
	s, err := open(filestest.New(), o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// touch acquires and releases a blob of 64 bytes.
func touch(t testing.TB, s *Store, key string, dirty bool) {
	t.Helper()
	_, err := s.Acquire(key, 64)
	require.NoError(t, err)
	require.NoError(t, s.Release(key, dirty))
}

func TestFilesAndReopening(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	s, err := Open(dir, Options{})
	require.NoError(t, err)
	key := "käse/../\x00" // no file name
	b, err := s.Acquire(key, 3)
	require.NoError(t, err)
	require.Equal(t, []byte{0, 0, 0}, b)
	copy(b, "abc")
	require.NoError(t, s.Release(key, true))
	require.NoError(t, s.Commit())
	b, err = s.Acquire(key, 3)
	require.NoError(t, err)
	copy(b, "xyz")
	require.NoError(t, s.Release(key, true))
	require.NoError(t, s.Close())
	require.NoError(t, s.Close(), "closing twice does nothing")

	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	var names []string
	for _, e := range entries {
		info, err := e.Info()
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), info.Mode())
		names = append(names, e.Name())
	}
	require.Equal(t, []string{indexName, lockName, dataName}, names)
	info, err := os.Stat(dir)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), info.Mode().Perm())

	s, err = Open(dir, Options{})
	require.NoError(t, err)
	require.Equal(t, []string{key}, s.Keys())
	b, err = s.Acquire(key, 3)
	require.NoError(t, err)
	require.Equal(t, "abc", string(b), "the last commit")
	require.NoError(t, s.Release(key, false))
	require.NoError(t, s.Close())
}

func TestTwoOpens(t *testing.T) {
	dir := t.TempDir()
	s, err := Open(dir, Options{})
	require.NoError(t, err)
	_, err = Open(dir, Options{})
	require.ErrorIs(t, err, snug.ErrConfig)
	require.ErrorContains(t, err, "in another process")
	require.NoError(t, s.Close())
	s, err = Open(dir, Options{})
	require.NoError(t, err)
	require.NoError(t, s.Close())
}

func TestOpenErrors(t *testing.T) {
	for _, o := range []Options{{HostLimit: -1}, {DiskLimit: -1}, {PrefetchDepth: -1}, {PrefetchDepth: maxDepth + 1}, {Workers: -1}, {Workers: maxWorkers + 1}} {
		_, err := Open(t.TempDir(), o)
		require.ErrorIs(t, err, snug.ErrConfig)
	}
	plain := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(plain, nil, 0o600))
	_, err := Open(plain, Options{})
	require.Error(t, err)
	_, err = Open(filepath.Join(plain, "below"), Options{})
	require.Error(t, err)
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, dataName), 0o700))
	_, err = Open(dir, Options{})
	require.Error(t, err)
	require.NoError(t, os.Remove(filepath.Join(dir, dataName)))
	s, err := Open(dir, Options{})
	require.NoError(t, err, "the failed Open left no lock")
	require.NoError(t, s.Close())
}

func TestBlobErrors(t *testing.T) {
	s := memStore(t, Options{HostLimit: 256})
	touch(t, s, "a", false)
	_, err := Create[float32](s, "tensor", 4, 4)
	require.NoError(t, err)
	for _, c := range []struct {
		key  string
		size int
		want error
	}{
		{"a", 63, snug.ErrShape}, {"a", 65, snug.ErrShape}, {"b", -1, snug.ErrShape}, {"b", maxPage + 1, snug.ErrShape},
		{"", 64, snug.ErrConfig}, {strings.Repeat("x", maxKey+1), 64, snug.ErrConfig}, {"\xff", 64, snug.ErrConfig},
		{"tensor", 16, snug.ErrConfig}, {"big", 257, snug.ErrNoMemory},
	} {
		_, err := s.Acquire(c.key, c.size)
		require.ErrorIs(t, err, c.want, "%q of %d", c.key, c.size)
	}
	for _, key := range []string{"a", "tensor", "missing"} {
		require.ErrorIs(t, s.Release(key, true), snug.ErrConfig, key)
	}
	require.ErrorIs(t, s.Delete("missing"), snug.ErrConfig)
	require.Equal(t, []string{"a", "tensor"}, s.Keys())
	require.NoError(t, s.Delete("tensor"))
	require.NoError(t, s.Delete("a"))
	require.Empty(t, s.Keys())
	_, err = s.Acquire(strings.Repeat("x", maxKey), 64)
	require.NoError(t, err)
	require.ErrorIs(t, s.Delete(strings.Repeat("x", maxKey)), snug.ErrConfig, "pinned")
}

func TestPinnedPagesLeaveNoRoom(t *testing.T) {
	s := memStore(t, Options{HostLimit: 192})
	for _, key := range []string{"a", "b", "c"} {
		_, err := s.Acquire(key, 50)
		require.NoError(t, err)
	}
	_, err := s.Acquire("d", 1)
	require.ErrorIs(t, err, snug.ErrNoMemory)
	require.ErrorContains(t, err, "192 of the host limit of 192 are pinned")
	require.ErrorIs(t, s.Commit(), snug.ErrConfig)
	require.NoError(t, s.Release("b", false))
	_, err = s.Acquire("d", 1)
	require.NoError(t, err)
	require.EqualValues(t, 192, s.Stats().HostPeak)
}

func TestClosedStore(t *testing.T) {
	s := memStore(t, Options{})
	x, err := Create[float32](s, "x", 4, 4)
	require.NoError(t, err)
	page, err := x.Pin(context.Background(), 0)
	require.NoError(t, err)
	require.NoError(t, s.Close())
	page.Data[3] = 1 // still memory
	require.ErrorIs(t, page.Unpin(true), snug.ErrConfig)
	_, err = s.Acquire("a", 1)
	require.ErrorIs(t, err, snug.ErrConfig)
	_, err = x.Pin(context.Background(), 0)
	require.ErrorIs(t, err, snug.ErrConfig)
	_, err = Create[float32](s, "y", 1, 1)
	require.ErrorIs(t, err, snug.ErrConfig)
	_, err = Lookup[float32](s, "x")
	require.ErrorIs(t, err, snug.ErrConfig)
	require.ErrorIs(t, s.Commit(), snug.ErrConfig)
	require.ErrorIs(t, s.Delete("x"), snug.ErrConfig)
	require.ErrorIs(t, s.Release("a", false), snug.ErrConfig)
	s.Prefetch("a")
	require.Zero(t, s.Stats().HostBytes)
}

func TestAlignment(t *testing.T) {
	s := memStore(t, Options{})
	for size := 1; size < 300; size += 7 {
		b, err := s.Acquire(fmt.Sprint(size), size)
		require.NoError(t, err)
		require.Len(t, b, size)
		require.Equal(t, size, cap(b))
		require.Zero(t, uintptr(unsafe.Pointer(&b[0]))%64)
	}
}

func TestNoGoroutineLeak(t *testing.T) {
	before := runtime.NumGoroutine()
	for range 5 {
		s, err := Open(t.TempDir(), Options{HostLimit: 256})
		require.NoError(t, err)
		for i := range 40 {
			touch(t, s, fmt.Sprint(i%13), true)
		}
		s.Prefetch("1", "2", "3")
		require.NoError(t, s.Close())
	}
	kerneltest.AtMostGoroutines(t, before)
}

func TestNoAllocations(t *testing.T) {
	s := memStore(t, Options{HostLimit: 20 * 64})
	x, err := Create[float32](s, "tensor", 48, 16)
	require.NoError(t, err)
	keys := []string{"a", "b", "c", "d"}
	pass := func() {
		for i, key := range keys {
			if _, err := s.Acquire(key, 64); err != nil {
				t.Error(err)
			}
			page, err := x.Pin(context.Background(), i%3)
			if err != nil {
				t.Error(err)
			}
			if err := page.Unpin(true); err != nil {
				t.Error(err)
			}
			if err := s.Release(key, true); err != nil {
				t.Error(err)
			}
		}
	}
	pass()
	require.Zero(t, testing.AllocsPerRun(100, pass))
}

// TestSpaceIsReused checks that commits do not let the page file grow beyond
// twice the state, and that deleted pages are given back.
func TestSpaceIsReused(t *testing.T) {
	s := memStore(t, Options{HostLimit: 3 * 4096})
	const n = 10
	for range 6 {
		for i := range n {
			_, err := s.Acquire(fmt.Sprint(i), 4096)
			require.NoError(t, err)
			require.NoError(t, s.Release(fmt.Sprint(i), true))
		}
		require.NoError(t, s.Commit())
		require.LessOrEqual(t, s.Stats().DiskBytes, int64(2*n*4096))
	}
	for i := range n {
		require.NoError(t, s.Delete(fmt.Sprint(i)))
	}
	require.NoError(t, s.Commit())
	require.Zero(t, s.Stats().DiskBytes)
}

func TestContext(t *testing.T) {
	s := memStore(t, Options{HostLimit: 64})
	x, err := Create[float32](s, "x", 32, 16)
	require.NoError(t, err)
	done, cancel := context.WithCancel(context.Background())
	page, err := x.Pin(done, 0)
	require.NoError(t, err)
	cancel()
	_, err = x.Pin(done, 1)
	require.ErrorIs(t, err, context.Canceled)
	require.NoError(t, page.Unpin(false))

	// A goroutine that waits for a transfer of the page gives up.
	s.mu.Lock()
	s.begin(&x.obj.pages[1])
	s.mu.Unlock()
	waiting, cancel := context.WithCancel(context.Background())
	result := make(chan error)
	go func() {
		_, err := x.Pin(waiting, 1)
		result <- err
	}()
	time.Sleep(5 * time.Millisecond)
	cancel()
	require.ErrorIs(t, <-result, context.Canceled)
	s.mu.Lock()
	s.end(&x.obj.pages[1])
	s.mu.Unlock()
}

// TestConcurrentUsers lets goroutines count in pages under a lock of their
// own, with evictions, hints and commits in between, and adds up.
func TestConcurrentUsers(t *testing.T) {
	const workers, rounds, keys = 4, 300, 12
	s := memStore(t, Options{HostLimit: 6 * 1024, PrefetchDepth: 2})
	var locks [keys]sync.Mutex
	var wg sync.WaitGroup
	work := func(seed uint64) {
		defer wg.Done()
		rng := rand.New(rand.NewPCG(seed, 0))
		for range rounds {
			i := rng.IntN(keys)
			s.Prefetch(fmt.Sprint(rng.IntN(keys)))
			locks[i].Lock()
			b, err := s.Acquire(fmt.Sprint(i), 1000)
			if err == nil {
				for w := 0; w < 1000; w += 8 {
					word := b[w : w+8]
					binary.LittleEndian.PutUint64(word, binary.LittleEndian.Uint64(word)+1)
				}
				err = s.Release(fmt.Sprint(i), true)
			}
			locks[i].Unlock()
			if err != nil {
				t.Error(err)
				return
			}
			if rng.IntN(20) == 0 {
				_ = s.Commit() // refused when another worker has a pin
			}
		}
	}
	wg.Add(workers)
	for w := range workers {
		go work(uint64(w))
	}
	wg.Wait()
	require.NoError(t, s.Commit())
	total := uint64(0)
	for i := range keys {
		b, err := s.Acquire(fmt.Sprint(i), 1000)
		require.NoError(t, err)
		count := binary.LittleEndian.Uint64(b)
		for w := 0; w < 1000; w += 8 {
			require.Equal(t, count, binary.LittleEndian.Uint64(b[w:]))
		}
		total += count
		require.NoError(t, s.Release(fmt.Sprint(i), false))
	}
	require.EqualValues(t, workers*rounds, total)
	requireWithin(t, s)
}

// TestConcurrentNewKey lets goroutines make one key at a time when there is
// room for it in the end only.
func TestConcurrentNewKey(t *testing.T) {
	s := memStore(t, Options{HostLimit: 128})
	var wg sync.WaitGroup
	for range 4 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := range 200 {
				key := fmt.Sprint(i % 3)
				if _, err := s.Acquire(key, 64); err != nil {
					if !isNoMemory(err) {
						t.Error(err)
					}
					continue
				}
				if err := s.Release(key, false); err != nil {
					t.Error(err)
				}
				_ = s.Delete(key) // refused when pinned or gone
			}
		}()
	}
	wg.Wait()
	requireWithin(t, s)
}

func isNoMemory(err error) bool { return errors.Is(err, snug.ErrNoMemory) }

// TestRecovered checks that a store says whether the one before it was closed.
func TestRecovered(t *testing.T) {
	dir := filestest.New()
	s, err := open(dir, Options{})
	require.NoError(t, err)
	require.False(t, s.Recovered())
	touch(t, s, "a", true)
	require.NoError(t, s.Commit())
	require.NoError(t, s.Close())
	s, err = open(dir, Options{})
	require.NoError(t, err)
	require.False(t, s.Recovered(), "it was closed")
	dir.Unlock() // as when the process ends
	again, err := open(dir, Options{})
	require.NoError(t, err)
	require.True(t, again.Recovered())
	require.NoError(t, again.Close())
	require.NoError(t, s.Close())

	dir.FailChange(1, true, syscall.ENOSPC) // a full disk
	s, err = open(dir, Options{})
	require.NoError(t, err)
	b, err := s.Acquire("a", 64)
	require.NoError(t, err)
	require.Len(t, b, 64)
	require.NoError(t, s.Close())
}

// TestDiskLimit fills a page file: an error, the last commit as it was, and space again after
// a page is deleted or with a higher limit.
func TestDiskLimit(t *testing.T) {
	const slots = 5
	for _, none := range []bool{true, false} {
		dir := t.TempDir()
		o := Options{HostLimit: 2 * 64, DiskLimit: slots * slotAlign, PrefetchDepth: 4, NoPrefetch: none}
		s, err := Open(dir, o)
		require.NoError(t, err)
		set := func(key string, value byte) error {
			b, err := s.Acquire(key, 64)
			if err != nil {
				return err
			}
			b[0] = value
			return s.Release(key, true)
		}
		within := func() { require.LessOrEqual(t, s.Stats().DiskBytes, o.DiskLimit) }
		for _, key := range []string{"a", "b", "c"} {
			require.NoError(t, set(key, 1))
		}
		require.NoError(t, s.Commit())
		for _, key := range []string{"a", "b", "c"} { // two of them find places beside the old ones
			require.NoError(t, set(key, 2))
			within()
		}
		err = s.Commit()
		require.ErrorIs(t, err, snug.ErrNoMemory)
		require.ErrorContains(t, err, "disk limit")
		within()
		require.NoError(t, s.Close())

		s, err = Open(dir, o)
		require.NoError(t, err)
		for _, key := range []string{"a", "b", "c"} {
			b, err := s.Acquire(key, 64)
			require.NoError(t, err)
			require.Equal(t, byte(1), b[0])
			require.NoError(t, s.Release(key, false))
		}
		require.NoError(t, s.Delete("a"))
		require.NoError(t, s.Commit())
		for _, key := range []string{"b", "c"} {
			require.NoError(t, set(key, 3))
		}
		require.NoError(t, s.Commit())
		within()
		require.NoError(t, s.Close())
	}
}
