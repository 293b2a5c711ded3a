package offload

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/crc32c"
	"github.com/stretchr/testify/require"
)

// inspected is a committed store on disk of a blob, a tensor of three pages whose
// middle was never written, and an empty tensor.
func inspected(t *testing.T) string {
	dir := t.TempDir()
	s, err := Open(dir, Options{})
	require.NoError(t, err)
	b, err := s.Acquire("blob", 5)
	require.NoError(t, err)
	copy(b, "hello")
	require.NoError(t, s.Release("blob", true))
	x, err := Create[uint8](s, "x", 25, 10)
	require.NoError(t, err)
	require.NoError(t, x.WriteAt([]uint8{1, 2, 3}, 2))
	require.NoError(t, x.WriteAt([]uint8{4, 5}, 23))
	_, err = Create[float32](s, "empty", 0, 7)
	require.NoError(t, err)
	require.NoError(t, s.Commit())
	require.NoError(t, s.Close())
	return dir
}

func TestContents(t *testing.T) {
	dir := inspected(t)
	want := []Info{
		{Name: "blob", Len: 5, PageLen: 5, Pages: 1, Bytes: 5, DiskBytes: 5, CRC: crc32c.Checksum([]byte("hello"))},
		{Name: "empty", DType: snug.F32, PageLen: 7},
		{
			Name: "x", DType: snug.U8, Len: 25, PageLen: 10, Pages: 3, Bytes: 25, DiskBytes: 15,
			CRC: crc32c.Checksum([]byte{2: 1, 2, 3, 23: 4, 5}),
		},
	}
	got, err := Contents(dir)
	require.NoError(t, err)
	require.Equal(t, want, got)

	s, err := Open(dir, Options{})
	require.NoError(t, err)
	require.NoError(t, s.Delete("x"))
	got, err = Contents(dir)
	require.NoError(t, err, "also of a store in use")
	require.Equal(t, want, got, "as of the last commit")
	require.NoError(t, s.Close())
}

func TestVerify(t *testing.T) {
	dir := inspected(t)
	v, err := Verify(dir)
	require.NoError(t, err)
	require.Equal(t, Verified{Pages: 3, Bytes: 20}, v)

	s, err := Open(dir, Options{})
	require.NoError(t, err)
	slots := []extent{s.objects["blob"].pages[0].slot, s.objects["x"].pages[2].slot}
	_, err = Verify(dir)
	require.ErrorIs(t, err, snug.ErrConfig, "in use")
	require.NoError(t, s.Close())

	path := filepath.Join(dir, dataName)
	pages, err := os.ReadFile(path)
	require.NoError(t, err)
	for _, slot := range slots {
		pages[slot.off+1] ^= 8
	}
	require.NoError(t, os.WriteFile(path, pages, 0o600))
	v, err = Verify(dir)
	require.ErrorIs(t, err, snug.ErrCorrupt)
	require.Equal(t, 3, v.Pages)
	require.Len(t, v.Damaged, 2)
	var first *PageError
	require.True(t, errors.As(err, &first))
	require.Equal(t, v.Damaged[0], first)
	require.Equal(t, PageError{File: path, Name: "blob", Offset: slots[0].off, Reason: first.Reason}, *first)
	require.Equal(t, 2, v.Damaged[1].Page)
	require.ErrorContains(t, err, `page 2 of tensor "x"`)

	require.NoError(t, os.Truncate(path, slots[1].off+1))
	v, err = Verify(dir)
	require.ErrorIs(t, err, snug.ErrCorrupt)
	require.ErrorContains(t, err, "ends after")
	require.NotEmpty(t, v.Damaged)
}

func TestInspectErrors(t *testing.T) {
	for name, do := range map[string]func(dir string) error{
		"contents": func(dir string) error {
			list, err := Contents(dir)
			require.Empty(t, list)
			return err
		},
		"verify": func(dir string) error {
			_, err := Verify(dir)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			empty := t.TempDir()
			require.ErrorIs(t, do(empty), snug.ErrConfig, "no store")
			require.ErrorIs(t, do(filepath.Join(empty, "missing")), snug.ErrConfig)
			left, err := os.ReadDir(empty)
			require.NoError(t, err)
			require.Empty(t, left, "nothing is made")

			s, err := Open(empty, Options{})
			require.NoError(t, err)
			require.NoError(t, s.Close())
			require.NoError(t, do(empty), "a store without a commit")

			dir := inspected(t)
			require.NoError(t, os.WriteFile(filepath.Join(dir, indexName), []byte("foreign"), 0o600))
			require.ErrorIs(t, do(dir), snug.ErrCorrupt)
			require.NoError(t, os.Remove(filepath.Join(dir, indexName)))
			require.NoError(t, os.Mkdir(filepath.Join(dir, indexName), 0o700))
			require.Error(t, do(dir), "a folder in the place of the index")
		})
	}
}
