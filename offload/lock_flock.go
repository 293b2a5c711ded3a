//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package offload

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"

	"github.com/snug-ml/snug"
)

// lockFile locks path with flock(2), which ends with the process. The file
// itself stays.
func lockFile(path string) (io.Closer, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	switch {
	case err == nil:
		return f, nil
	case errors.Is(err, syscall.EWOULDBLOCK):
		err = fmt.Errorf("%s is locked: the store is open already, here or in another process: %w", path, snug.ErrConfig)
	default:
		err = fmt.Errorf("lock %s: %w", path, err)
	}
	return nil, errors.Join(err, f.Close())
}
