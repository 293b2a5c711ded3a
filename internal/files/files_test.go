package files

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
)

func writing(text string) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := w.Write([]byte(text))
		return err
	}
}

// TestReplace: a file is there as a whole, or it is what it was and nothing else is
// there.
func TestReplace(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	is := func(want string) {
		got, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, want, string(got))
		entries, err := os.ReadDir(dir)
		require.NoError(t, err)
		require.Len(t, entries, 1)
	}
	require.NoError(t, Replace(path, writing("first")))
	is("first")
	require.NoError(t, os.Chmod(path, 0o600))
	require.NoError(t, Replace(path, writing("second")))
	is("second")
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.EqualValues(t, 0o600, info.Mode().Perm()&0o600)

	errFull := errors.New("no room")
	require.ErrorIs(t, Replace(path, func(w io.Writer) error {
		_, err := w.Write(make([]byte, 1000))
		return errors.Join(err, errFull)
	}), errFull)
	is("second")

	other := filepath.Join(dir, "other")
	require.Error(t, Replace(other, func(io.Writer) error { return os.Mkdir(other, 0o700) }), "the renaming fails")
	require.ErrorIs(t, Replace(other, writing("")), snug.ErrConfig, "a folder")
	require.ErrorIs(t, Replace(filepath.Join(dir, "none", "file"), writing("")), os.ErrNotExist)
}

func TestOpen(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(path, []byte("text"), 0o600))
	f, size, err := Open(path)
	require.NoError(t, err)
	require.EqualValues(t, 4, size)
	require.NoError(t, f.Close())
	_, _, err = Open(dir)
	require.ErrorIs(t, err, snug.ErrConfig)
	_, _, err = Open(filepath.Join(dir, "none"))
	require.ErrorIs(t, err, os.ErrNotExist)
}
