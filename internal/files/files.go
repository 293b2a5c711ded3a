// Package files opens regular files and replaces them as a whole.
package files

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"syscall"

	"github.com/snug-ml/snug"
)

// Open opens a regular file, of which it returns the size. Others, which can block,
// are errors that wrap [snug.ErrConfig].
func Open(path string) (*os.File, int64, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, 0, err
	}
	if !info.Mode().IsRegular() {
		return nil, 0, notRegular(path, info)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, 0, err
	}
	if info, err = f.Stat(); err != nil {
		return nil, 0, errors.Join(err, f.Close())
	}
	return f, info.Size(), nil
}

func notRegular(path string, info os.FileInfo) error {
	what := "is not a regular file"
	if info.IsDir() {
		what = "is a folder, want a file"
	}
	return fmt.Errorf("%s %s: %w", path, what, snug.ErrConfig)
}

// Replace puts a file that write writes in the place of path, with the permissions of
// what was there, and makes that durable. It leaves nothing behind when that fails,
// and refuses what is not a regular file.
func Replace(path string, write func(io.Writer) error) error {
	f, err := createBeside(path)
	if err != nil {
		return err
	}
	err = write(f)
	if err == nil {
		err = f.Sync()
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return syncFolder(filepath.Dir(path))
}

// createBeside creates a file of a new name in the folder of path, with the
// permissions of path if that is there.
func createBeside(path string) (*os.File, error) {
	info, err := os.Stat(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if info != nil && !info.Mode().IsRegular() {
		return nil, notRegular(path, info)
	}
	name := fmt.Sprintf("%s.%d.tmp", path, rand.Uint64())
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil || info == nil {
		return f, err
	}
	if err := f.Chmod(info.Mode().Perm()); err != nil {
		return nil, errors.Join(err, f.Close(), os.Remove(name))
	}
	return f, nil
}

// syncFolder makes a rename in a folder durable, where the system can.
func syncFolder(dir string) error {
	if runtime.GOOS == "windows" {
		return nil // folders cannot be synced, and need not be
	}
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	err = f.Sync()
	if errors.Is(err, errors.ErrUnsupported) || errors.Is(err, syscall.EINVAL) {
		err = nil // not every file system can
	}
	return errors.Join(err, f.Close())
}
