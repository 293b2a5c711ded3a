// Package files has folders that hold only what their owner put there, files that are
// replaced as a whole, and locks that end with their process.
package files

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"

	"github.com/snug-ml/snug"
)

// Open opens a regular file, through links, and returns its size. The error for any
// other kind of file, which could block, wraps [snug.ErrConfig].
func Open(path string) (*os.File, int64, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, 0, missing(path, err)
	}
	if !info.Mode().IsRegular() { // opening a device can have an effect
		return nil, 0, notRegular(path, info.Mode())
	}
	f, err := os.OpenFile(path, os.O_RDONLY|nonBlock, 0)
	if err != nil {
		return nil, 0, err
	}
	info, err = f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = notRegular(path, info.Mode())
	}
	if err != nil {
		return nil, 0, errors.Join(err, f.Close())
	}
	return f, info.Size(), nil
}

func notRegular(path string, mode fs.FileMode) error {
	what := "is not a regular file"
	switch {
	case mode.IsDir():
		what = "is a folder, want a file"
	case mode&fs.ModeNamedPipe != 0:
		what = "is a pipe, want a regular file"
	case mode&fs.ModeDevice != 0:
		what = "is a device, want a regular file"
	case mode&fs.ModeSocket != 0:
		what = "is a socket, want a regular file"
	case mode&fs.ModeSymlink != 0:
		what = "is a symbolic link, want a regular file"
	}
	return fmt.Errorf("%s %s: %w", path, what, snug.ErrConfig)
}

// Replace writes a file and puts it in the place of path, durably and with the
// permissions of the file that was there. When it fails, the old file stays and nothing
// else is left. Only regular files are replaced.
func Replace(path string, write func(io.Writer) error) error {
	return ReplaceIn(OS(filepath.Dir(path)), filepath.Base(path), write)
}

// ReplaceIn is [Replace] for a file of a folder.
func ReplaceIn(d Dir, name string, write func(io.Writer) error) error {
	temp, err := Stage(d, name, write)
	if err != nil {
		return err
	}
	if err := d.Rename(temp, name); err != nil {
		return errors.Join(shown{has: d.Path(temp), gets: d.Path(name)}.as(err), d.Remove(temp))
	}
	return d.Sync()
}

// Stage is the first half of [ReplaceIn]: it writes the file that is to be renamed to
// name, and returns its name. When it fails, nothing is left.
func Stage(d Dir, name string, write func(io.Writer) error) (temp string, err error) {
	perm, old, err := modeOf(d, name)
	if err != nil {
		return "", err
	}
	temp = fmt.Sprintf("%s.%d.tmp", name, rand.Uint64())
	at := shown{has: d.Path(temp), gets: d.Path(name)}
	err = Write(d, temp, perm, func(f File) error {
		at.File = f
		if old { // Create gave it these permissions or fewer
			if err := at.Chmod(perm); err != nil {
				return err
			}
		}
		return write(io.NewOffsetWriter(at, 0))
	})
	return temp, at.as(err)
}

// modeOf returns the permissions for the file that is to be renamed to name, and whether they are those of a file that is there.
func modeOf(d Dir, name string) (perm fs.FileMode, old bool, err error) {
	perm, err = d.Mode(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		perm = 0o666
	case err != nil:
		return 0, false, err
	case !perm.IsRegular():
		return 0, false, notRegular(d.Path(name), perm)
	}
	return perm.Perm(), err == nil, nil
}

// Write makes a new file, calls write with it, and syncs it. When that fails, or write
// panics, the file is gone again.
func Write(d Dir, name string, perm fs.FileMode, write func(File) error) (err error) {
	f, err := d.Create(name, perm)
	if err != nil {
		return err
	}
	whole := false
	defer func() {
		if !whole {
			err = errors.Join(err, f.Close(), d.Remove(name))
		}
	}()
	if err := write(f); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	whole = true
	if err := f.Close(); err != nil {
		return errors.Join(err, d.Remove(name))
	}
	return nil
}
