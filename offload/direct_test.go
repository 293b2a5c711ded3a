package offload

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/files/filestest"
)

// TestDirect writes a store past the cache and reads it with and without, pages of
// whole sectors and others. Where there is no direct I/O the plain files do the same.
func TestDirect(t *testing.T) {
	dir := t.TempDir()
	want := normals(10*1024+77, 1)
	for _, pageLen := range []int{1024, 1500, 30} {
		o := Options{HostLimit: 4 * 2 * 4096, Direct: true}
		sub := filepath.Join(dir, fmt.Sprint(pageLen))
		s, err := Open(sub, o)
		require.NoError(t, err)
		if runtime.GOOS != "linux" {
			require.False(t, s.Stats().Direct)
		}
		x, err := Create[float32](s, "x", len(want), pageLen)
		require.NoError(t, err)
		for range 3 {
			require.NoError(t, x.WriteAt(want, 0))
		}
		touch(t, s, "blob", true)
		require.NoError(t, s.Commit())
		requireWithin(t, s)
		require.Positive(t, s.Stats().Evicted)
		require.NoError(t, s.Close())
		for _, past := range []bool{true, false} {
			s, err := Open(sub, Options{HostLimit: o.HostLimit, Direct: past})
			require.NoError(t, err)
			x, err := Lookup[float32](s, "x")
			require.NoError(t, err)
			got := make([]float32, len(want))
			require.NoError(t, x.ReadAt(got, 0))
			requireSameBits(t, want, got)
			page := must(t, s, "blob")
			require.Equal(t, past && s.Stats().Direct, uintptr(unsafe.Pointer(unsafe.SliceData(page)))%directAlignment == 0 && s.buffers.align == directAlignment)
			require.NoError(t, s.Release("blob", false))
			require.NoError(t, s.Close())
		}
		_, err = Verify(sub)
		require.NoError(t, err)
	}
}

// must acquires a blob of 64 bytes.
func must(t testing.TB, s *Store, key string) []byte {
	b, err := s.Acquire(key, 64)
	require.NoError(t, err)
	return b
}

// refusing is a direct file whose file system refuses unaligned and direct transfers.
func refusing(t *testing.T) (*direct, *filestest.File) {
	dir := filestest.New()
	plain, err := dir.Open(dataName, create)
	require.NoError(t, err)
	past, err := os.OpenFile(filepath.Join(t.TempDir(), "x"), os.O_RDONLY|os.O_CREATE, 0o600)
	require.NoError(t, err)
	return &direct{File: plain, past: past}, plain.(*filestest.File)
}

func TestDirectFallsBack(t *testing.T) {
	d, plain := refusing(t)
	b := heapMemory(directAlignment, directAlignment)[:100]
	copy(b, "page")
	require.NotNil(t, d.whole(b, 4096))
	require.Len(t, d.whole(b, 4096), directAlignment)
	require.Nil(t, d.whole(b, 4097), "offset")
	require.Nil(t, d.whole(b[1:], 4096), "memory")
	require.Nil(t, d.whole(b[:100:100], 4096), "room")
	require.False(t, d.refuses(syscall.EIO))
	require.False(t, d.refuses(io.EOF))
	require.False(t, d.refused.Load())
	require.Equal(t, maxPage, piece(d))
	require.True(t, d.refuses(&os.PathError{Err: syscall.EINVAL}))
	require.Equal(t, pieceBytes, piece(d))
	n, err := d.WriteAt(b, 4096)
	require.NoError(t, err)
	require.Equal(t, 100, n)
	require.True(t, bytes.Equal(b, plain.Bytes()[4096:]), "from now on through the plain file")
	got := heapMemory(directAlignment, directAlignment)[:100]
	n, err = d.ReadAt(got, 4096)
	require.NoError(t, err)
	require.Equal(t, 100, n)
	require.Equal(t, b, got)
	require.NoError(t, d.Close())
}

// TestDirectErrors checks that an error that is not a refusal is one.
func TestDirectErrors(t *testing.T) {
	d, plain := refusing(t) // past the cache it is open for reading only, and empty
	b := heapMemory(directAlignment, directAlignment)[:100]
	_, err := d.WriteAt(b, 0)
	require.ErrorIs(t, err, syscall.EBADF)
	require.False(t, d.refused.Load())
	require.Empty(t, plain.Bytes())
	n, err := d.ReadAt(b, 0)
	require.ErrorIs(t, err, io.EOF)
	require.Zero(t, n)
	require.NoError(t, d.Close())
}

func TestOverlap(t *testing.T) {
	require.Equal(t, 1.0, Stats{}.Overlap())
	require.Equal(t, 0.75, Stats{ReadTime: 3, WriteTime: 1, Stall: 1}.Overlap())
	require.Equal(t, 0.0, Stats{ReadTime: 1, Stall: 5}.Overlap())
	s := memStore(t, Options{HostLimit: 64})
	for _, key := range []string{"a", "b", "a"} {
		touch(t, s, key, true)
	}
	st := s.Stats()
	require.Positive(t, st.ReadTime)
	require.Positive(t, st.WriteTime)
	require.Less(t, st.Overlap(), 0.5, "nothing is read ahead")
	_, err := Options{Workers: maxWorkers + 1}.check()
	require.ErrorIs(t, err, snug.ErrConfig)
}
