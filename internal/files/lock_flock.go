//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package files

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
)

// Lock locks with flock(2), which ends with the process. The file itself stays: if it
// were removed, two processes could lock two files of the same name.
func (d osDir) Lock(name string) (io.Closer, error) {
	f, err := d.open(name, os.O_RDWR|os.O_CREATE)
	if err != nil {
		return nil, err
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	switch {
	case err == nil:
		return f, nil
	case errors.Is(err, syscall.EWOULDBLOCK):
		err = fmt.Errorf("%s is locked: %w", f.Name(), ErrLocked)
	default:
		err = fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	return nil, errors.Join(err, f.Close())
}
