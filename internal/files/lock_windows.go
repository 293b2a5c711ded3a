package files

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
)

// errSharing is ERROR_SHARING_VIOLATION: the file is open elsewhere.
const errSharing = syscall.Errno(32)

// Lock opens a file that nobody else may open at the same time, which ends with the
// process.
func (d osDir) Lock(name string) (io.Closer, error) {
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
	h, err := syscall.CreateFile(p, syscall.GENERIC_READ|syscall.GENERIC_WRITE, 0, nil,
		syscall.OPEN_ALWAYS, syscall.FILE_ATTRIBUTE_NORMAL, 0)
	switch {
	case errors.Is(err, errSharing):
		return nil, fmt.Errorf("%s is locked: %w", path, ErrLocked)
	case err != nil:
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return os.NewFile(uintptr(h), path), nil
}
