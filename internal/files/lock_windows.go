package files

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/windows"
)

// errSharing is ERROR_SHARING_VIOLATION: the file is open elsewhere.
const errSharing = syscall.Errno(32)

// Lock opens a file that nobody else may open at the same time, which ends with the
// process.
func (d osDir) Lock(name string) (io.Closer, error) {
	return d.alone(name, 0)
}

// alone opens a file that nobody else may read or write at the same time. share is what others may do.
func (d osDir) alone(name string, share uint32) (*os.File, error) {
	path, err := d.valid(name)
	if err != nil {
		return nil, err
	}
	if info, err := os.Lstat(path); err == nil && !info.Mode().IsRegular() {
		return nil, notRegular(path, info.Mode())
	}
	p, err := syscall.UTF16PtrFromString(path)
	if err != nil {
		return nil, err
	}
	h, err := syscall.CreateFile(p, syscall.GENERIC_READ|syscall.GENERIC_WRITE, share, nil,
		syscall.OPEN_ALWAYS, syscall.FILE_ATTRIBUTE_NORMAL, 0)
	switch {
	case errors.Is(err, errSharing):
		return nil, fmt.Errorf("%s is locked: %w", path, ErrLocked)
	case err != nil:
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return os.NewFile(uintptr(h), path), nil
}

// Hold opens a file that nobody else may read or write at the same time. It may be renamed, and is emptied.
func (d osDir) Hold(name string, _ fs.FileMode) (File, error) {
	f, err := d.alone(name, syscall.FILE_SHARE_DELETE)
	if err != nil {
		return nil, err
	}
	if err := f.Truncate(0); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return osFile{f}, nil
}

// Place renames without replacing.
func (d osDir) Place(from, to string) error {
	a, err := windows.UTF16PtrFromString(d.Path(from))
	if err != nil {
		return err
	}
	b, err := windows.UTF16PtrFromString(d.Path(to))
	if err != nil {
		return err
	}
	if err = windows.MoveFileEx(a, b, windows.MOVEFILE_WRITE_THROUGH); errors.Is(err, fs.ErrExist) {
		return taken(d.Path(to))
	}
	if err != nil {
		return &os.LinkError{Op: "rename", Old: d.Path(from), New: d.Path(to), Err: err}
	}
	return nil
}
