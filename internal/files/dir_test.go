package files_test

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
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

// TestReplaceWithFailingCalls: whichever call fails, once or with all that follow, the
// file is what it was or what it should become, and nothing else is left.
func TestReplaceWithFailingCalls(t *testing.T) {
	before, after := bytes.Repeat([]byte("old"), 100), bytes.Repeat([]byte("new!"), 200)
	failed := 0
	for _, stop := range []bool{false, true} {
		for k := 1; ; k++ {
			dir := filestest.New()
			dir.SetBytes("file", before)
			dir.FailCall(k, stop, syscall.EIO)
			err := files.ReplaceIn(dir, "file", func(w io.Writer) error {
				for part := range bytes.Lines(after) {
					if _, err := w.Write(part); err != nil {
						return err
					}
				}
				return nil
			})
			_, _, calls := dir.Counts()
			dir.FailCall(0, false, nil)
			if err == nil {
				require.Less(t, calls, k)
				require.Equal(t, after, dir.Bytes("file"))
				break
			}
			failed++
			require.ErrorIs(t, err, syscall.EIO)
			require.Contains(t, [][]byte{before, after}, dir.Bytes("file"), "call %d", k)
			if !stop { // else the removal of the other file fails too
				require.Equal(t, []string{"file"}, dir.Names(), "call %d", k)
			}
			for seed := range uint64(10) {
				survivor := dir.Crash(rand.New(rand.NewPCG(seed, uint64(k))))
				require.Contains(t, [][]byte{before, after}, survivor.Bytes("file"), "call %d, then the power", k)
			}
		}
	}
	require.Greater(t, failed, 10)
}

// TestReplaceWithAPanic: nothing is left of a file whose writer panics.
func TestReplaceWithAPanic(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	require.PanicsWithValue(t, "writer", func() {
		_ = files.Replace(path, func(w io.Writer) error {
			_, _ = w.Write([]byte("half"))
			panic("writer")
		})
	})
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, entries)
}

// TestReplaceIsPrivateThroughout: while it is written, a file is not more readable than
// the one that it replaces.
func TestReplaceIsPrivateThroughout(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(path, []byte("secret"), 0o600))
	require.NoError(t, files.Replace(path, func(w io.Writer) error {
		entries, err := os.ReadDir(dir)
		require.NoError(t, err)
		require.Len(t, entries, 2)
		for _, e := range entries {
			info, err := e.Info()
			require.NoError(t, err)
			require.EqualValues(t, 0o600, info.Mode().Perm(), e.Name())
		}
		return nil
	}))
	created := filestest.New()
	created.SetBytes("file", nil)
	require.NoError(t, files.ReplaceIn(spy{created, func(perm fs.FileMode) { require.EqualValues(t, 0o600, perm) }}, "file",
		func(io.Writer) error { return nil }))
}

// spy sees the permissions with which files are created.
type spy struct {
	files.Dir
	created func(fs.FileMode)
}

func (s spy) Create(name string, perm fs.FileMode) (files.File, error) {
	s.created(perm)
	return s.Dir.Create(name, perm)
}

// TestPlantedEntries: links, pipes and folders in the place of files are refused at
// once, and what they lead to stays.
func TestPlantedEntries(t *testing.T) {
	elsewhere := filepath.Join(t.TempDir(), "elsewhere")
	for name, plant := range filestest.Planted(elsewhere) {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, os.WriteFile(elsewhere, []byte("precious"), 0o600))
			dir := t.TempDir()
			if err := plant(filepath.Join(dir, "file")); errors.Is(err, errors.ErrUnsupported) || errors.Is(err, fs.ErrPermission) {
				t.Skip(err) // such as links on Windows
			} else {
				require.NoError(t, err)
			}
			d := files.OS(dir)
			for _, flag := range []int{os.O_RDWR, os.O_RDWR | os.O_CREATE, os.O_RDWR | os.O_CREATE | os.O_TRUNC} {
				_, err := d.Open("file", flag)
				require.ErrorIs(t, err, snug.ErrConfig)
				require.ErrorContains(t, err, filepath.Join(dir, "file"))
			}
			_, err := d.Create("file", 0o600)
			require.ErrorIs(t, err, fs.ErrExist)
			_, err = d.Folder("file")
			if name != "folder" {
				require.ErrorIs(t, err, snug.ErrConfig)
			}
			_, err = d.Lock("file")
			require.Error(t, err)
			got, err := os.ReadFile(elsewhere)
			require.NoError(t, err)
			require.Equal(t, "precious", string(got))
		})
	}
}

// TestNames: names that lead out of the folder are refused.
func TestNames(t *testing.T) {
	d := files.OS(t.TempDir())
	for _, name := range []string{"", ".", "..", "../x", "a/b", `a\b`, "/etc/hostname"} {
		_, err := d.Open(name, os.O_RDWR|os.O_CREATE)
		require.ErrorIs(t, err, snug.ErrConfig, name)
		require.ErrorIs(t, d.Remove(name), snug.ErrConfig, name)
		require.ErrorIs(t, d.Mkdir(name), snug.ErrConfig, name)
	}
}

// TestMake: folders are made at every level, for their owner alone.
func TestMake(t *testing.T) {
	dir := t.TempDir()
	d, err := files.Make(filepath.Join(dir, "a", "b"))
	require.NoError(t, err)
	require.NoError(t, files.Write(d, "file", 0o600, func(f files.File) error {
		_, err := f.WriteAt([]byte("x"), 3)
		return err
	}))
	require.NoError(t, d.Mkdir("c"))
	list, err := d.List()
	require.NoError(t, err)
	require.Equal(t, []files.Entry{{Name: "c", Type: fs.ModeDir}, {Name: "file"}}, list)
	_, err = files.Make(filepath.Join(dir, "a", "b", "file"))
	require.ErrorIs(t, err, snug.ErrConfig)
	sub, err := d.Folder("c")
	require.NoError(t, err)
	require.NoError(t, files.Write(sub, "deep", 0o600, func(files.File) error { return nil }))
	require.NoError(t, files.RemoveAll(d, "c"))
	require.NoError(t, files.RemoveAll(d, "file"))
	list, err = d.List()
	require.NoError(t, err)
	require.Empty(t, list)
}

// TestLock: a lock is held once and can be taken again after it was closed.
func TestLock(t *testing.T) {
	for name, d := range map[string]files.Dir{"system": files.OS(t.TempDir()), "memory": filestest.New()} {
		first, err := d.Lock("lock")
		require.NoError(t, err, name)
		_, err = d.Lock("lock")
		require.ErrorIs(t, err, files.ErrLocked, name)
		require.ErrorIs(t, err, snug.ErrConfig, name)
		require.NoError(t, first.Close())
		again, err := d.Lock("lock")
		require.NoError(t, err, name)
		require.NoError(t, again.Close())
	}
}
