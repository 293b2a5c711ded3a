package offload

import (
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug/internal/files"
	"github.com/snug-ml/snug/internal/files/filestest"
	"github.com/snug-ml/snug/internal/kerneltest"
)

// slow is a directory whose page file takes delay for each read and each write.
type slow struct {
	*filestest.Dir
	delay time.Duration
}

type slowFile struct {
	files.File
	delay time.Duration
}

func (d slow) Open(name string, flag int) (files.File, error) {
	f, err := d.Dir.Open(name, flag)
	if name == dataName {
		f = slowFile{f, d.delay}
	}
	return f, err
}

func (f slowFile) ReadAt(b []byte, off int64) (int, error) {
	time.Sleep(f.delay)
	return f.File.ReadAt(b, off)
}

func (f slowFile) WriteAt(b []byte, off int64) (int, error) {
	time.Sleep(f.delay)
	return f.File.WriteAt(b, off)
}

// TestTrafficIsHidden changes all of a tensor again and again, in a limit of a quarter
// of its pages, on a disk whose every transfer takes as long. A plain reader and a plain
// writer side by side set the pace; with a computation that is long enough four fifths of
// the transfers are behind it. On a busy machine one of some tries shows that.
func TestTrafficIsHidden(t *testing.T) {
	const pages, pageLen, delay, tries = 64, 16, 2 * time.Millisecond, 8
	dir := slow{filestest.New(), delay}
	s, err := open(dir, Options{HostLimit: pages / 4 * 4 * pageLen, PrefetchDepth: defaultDepth, Workers: 1})
	require.NoError(t, err)
	x, err := Create[float32](s, "x", pages*pageLen, pageLen)
	require.NoError(t, err)
	pageThrough(t, x, 0)
	pageThrough(t, x, 0) // the order is known from here on

	pass := func(compute time.Duration) (st Stats, took time.Duration) {
		before, start := s.Stats(), time.Now()
		pageThrough(t, x, compute)
		took, st = time.Since(start), s.Stats()
		st.ReadTime, st.WriteTime, st.Stall = st.ReadTime-before.ReadTime, st.WriteTime-before.WriteTime, st.Stall-before.Stall
		st.ReadBytes, st.WriteBytes = st.ReadBytes-before.ReadBytes, st.WriteBytes-before.WriteBytes
		return st, took
	}
	plain := func(reads, writes int64) time.Duration {
		start, written := time.Now(), make(chan struct{})
		go func() {
			defer close(written)
			for range writes {
				time.Sleep(delay)
			}
		}()
		for range reads {
			time.Sleep(delay)
		}
		<-written
		return time.Since(start)
	}
	fastest, hidden := 0.0, 0.0
	for range tries {
		st, took := pass(0)
		fastest = max(fastest, plain(st.ReadBytes/(4*pageLen), st.WriteBytes/(4*pageLen)).Seconds()/took.Seconds())
		st, _ = pass(3 * delay)
		hidden = max(hidden, st.Overlap())
		if fastest > 0.8 && hidden > 0.8 {
			break
		}
	}
	require.Greater(t, fastest, 0.8)
	require.Greater(t, hidden, 0.8)
	require.NoError(t, s.Close())
}

// TestNothingIsLeft checks that closed stores leave no files open and no goroutines.
func TestNothingIsLeft(t *testing.T) {
	openFiles := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			return 0 // not on this system
		}
		return len(entries)
	}
	dir := t.TempDir()
	use := func() {
		s, err := Open(dir, Options{HostLimit: 4096 * 3, Direct: true, Workers: 3})
		require.NoError(t, err)
		for _, key := range []string{"a", "b", "c", "d"} {
			touch(t, s, key, true)
		}
		require.NoError(t, s.Commit())
		require.NoError(t, s.Close())
		_, err = Verify(dir)
		require.NoError(t, err)
		_, err = Contents(dir)
		require.NoError(t, err)
	}
	use()
	files, goroutines := openFiles(), runtime.NumGoroutine()
	for range 20 {
		use()
	}
	require.LessOrEqual(t, openFiles(), files)
	kerneltest.AtMostGoroutines(t, goroutines)
}
