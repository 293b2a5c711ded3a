package files_test

import (
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/files"
	"github.com/snug-ml/snug/internal/files/filestest"
)

// TestBegin: until it is committed a file is beside the one whose place it takes, which keeps its permissions.
func TestBegin(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(path, []byte("old"), 0o600))
	for _, commit := range []bool{false, true} {
		p, err := files.Begin(path)
		require.NoError(t, err)
		_, err = p.WriteAt([]byte("new"), 0)
		require.NoError(t, err)
		got, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, "old", string(got))
		want := "old"
		if commit {
			want = "new"
			require.NoError(t, p.Commit())
		} else {
			require.NoError(t, p.Abort())
		}
		got, err = os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, want, string(got))
		entries, err := os.ReadDir(dir)
		require.NoError(t, err)
		require.Len(t, entries, 1)
	}
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.EqualValues(t, 0o600, info.Mode().Perm()&0o600)
	_, err = files.Begin(dir)
	require.ErrorIs(t, err, snug.ErrConfig)
	_, err = files.Begin(filepath.Join(dir, "none", "file"))
	require.ErrorIs(t, err, os.ErrNotExist)
}

// TestBeginWithFailingCalls: whichever call fails, the file is what it was or what it should become, and nothing else is left.
func TestBeginWithFailingCalls(t *testing.T) {
	before, after := []byte("old"), []byte("new!")
	write := func(dir *filestest.Dir) error {
		p, err := files.BeginIn(dir, "file")
		if err != nil {
			return err
		}
		if _, err := p.WriteAt(after, 0); err != nil {
			return errors.Join(err, p.Abort())
		}
		return p.Commit()
	}
	for k := 1; ; k++ {
		dir := filestest.New()
		dir.SetBytes("file", before)
		dir.FailCall(k, false, syscall.EIO)
		err := write(dir)
		dir.FailCall(0, false, nil)
		if err == nil {
			require.Greater(t, k, 7)
			require.Equal(t, after, dir.Bytes("file"))
			break
		}
		require.ErrorIs(t, err, syscall.EIO)
		require.Contains(t, [][]byte{before, after}, dir.Bytes("file"), "call %d", k)
		require.Equal(t, []string{"file"}, dir.Names(), "call %d", k)
		for seed := range uint64(10) {
			survivor := dir.Crash(rand.New(rand.NewPCG(seed, uint64(k))))
			require.Contains(t, [][]byte{before, after}, survivor.Bytes("file"), "call %d, then the power", k)
		}
	}
}
