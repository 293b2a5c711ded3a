package files_test

import (
	"errors"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
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
		p, err := files.Begin(path, false)
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
	_, err = files.Begin(dir, false)
	require.ErrorIs(t, err, snug.ErrConfig)
	_, err = files.Begin(filepath.Join(dir, "none", "file"), false)
	require.ErrorIs(t, err, os.ErrNotExist)
}

// TestBeginWithFailingCalls: whichever call fails, the file is what it was or what it should become, and nothing else is left.
func TestBeginWithFailingCalls(t *testing.T) {
	before, after := []byte("old"), []byte("new!")
	fresh := false
	write := func(dir *filestest.Dir) error {
		p, err := files.BeginIn(dir, "file", fresh)
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

// TestBeginFresh: a file that is there, and one that appears while another is written, stay.
func TestBeginFresh(t *testing.T) {
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
	p, err := files.Begin(path, true)
	require.NoError(t, err)
	_, err = p.WriteAt([]byte("new"), 0)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, []byte("theirs"), 0o600))
	err = p.Commit()
	require.ErrorIs(t, err, fs.ErrExist)
	require.NotContains(t, err.Error(), "unfinished")
	is("theirs")
	_, err = files.Begin(path, true)
	require.ErrorIs(t, err, fs.ErrExist)
	is("theirs")
	require.NoError(t, os.Remove(path))
	p, err = files.Begin(path, true)
	require.NoError(t, err)
	_, err = p.WriteAt([]byte("new"), 0)
	require.NoError(t, err)
	require.NoError(t, p.Commit())
	is("new")
}

// TestBeginAlone: a file is written once at a time, and what a killed process left gives way, also where it has become the
// second name of a file.
func TestBeginAlone(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	first, err := files.Begin(path, true)
	require.NoError(t, err)
	_, err = files.Begin(path, true)
	require.ErrorIs(t, err, files.ErrLocked)
	require.ErrorIs(t, err, snug.ErrConfig)
	require.ErrorContains(t, err, path+" is being written")
	require.NoError(t, first.Abort())

	other := filepath.Join(dir, "other")
	require.NoError(t, os.WriteFile(other, []byte("precious"), 0o600))
	require.NoError(t, os.Link(other, path+".unfinished"))
	p, err := files.Begin(path, true)
	require.NoError(t, err)
	_, err = p.WriteAt([]byte("x"), 0)
	require.NoError(t, err)
	require.NoError(t, p.Commit())
	got, err := os.ReadFile(other)
	require.NoError(t, err)
	require.Equal(t, "precious", string(got))
	got, err = os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "x", string(got))
}

// TestBeginTogether: of many that begin at once, those that are let in write one after the other.
func TestBeginTogether(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	var inside, wrote atomic.Int32
	var wait sync.WaitGroup
	for range 8 {
		wait.Go(func() {
			for range 50 {
				p, err := files.Begin(path, false)
				if err != nil {
					assert.ErrorIs(t, err, files.ErrLocked)
					continue
				}
				assert.EqualValues(t, 1, inside.Add(1))
				_, err = p.WriteAt([]byte("whole"), 0)
				assert.NoError(t, err)
				inside.Add(-1)
				wrote.Add(1)
				assert.NoError(t, p.Commit())
				got, err := os.ReadFile(path)
				assert.NoError(t, err)
				assert.Equal(t, "whole", string(got))
			}
		})
	}
	wait.Wait()
	require.Positive(t, wrote.Load())
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 1)
}

// TestErrorsNameTheFile: errors have the name that a file is to get, and not the one that it has meanwhile.
func TestErrorsNameTheFile(t *testing.T) {
	for name, write := range map[string]func(d *filestest.Dir) error{
		"Replace": func(d *filestest.Dir) error {
			return files.ReplaceIn(d, "file", func(w io.Writer) error {
				_, err := w.Write([]byte("x"))
				return err
			})
		},
		"Begin": func(d *filestest.Dir) error {
			p, err := files.BeginIn(d, "file", false)
			if err != nil {
				return err
			}
			if _, err := p.WriteAt([]byte("x"), 0); err != nil {
				return errors.Join(err, p.Abort())
			}
			return p.Commit()
		},
	} {
		t.Run(name, func(t *testing.T) {
			for k := 1; ; k++ {
				d := filestest.New()
				d.SetBytes("file", []byte("old"))
				d.FailCall(k, false, syscall.ENOSPC)
				err := write(d)
				if err == nil {
					require.Greater(t, k, 5)
					break
				}
				require.ErrorIs(t, err, syscall.ENOSPC)
				require.NotRegexp(t, `unfinished|\.tmp`, err.Error(), "call %d", k)
			}
		})
	}
}
