//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd)

package offload

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/snug-ml/snug"
)

// exclusive is a lock that consists in the existence of its file.
type exclusive struct{ *os.File }

// lockFile makes path, which must not exist. A killed process leaves it.
func lockFile(path string) (io.Closer, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, os.ErrExist) {
		return nil, fmt.Errorf("%s exists: the store is open already, here or in another process, or its process was killed; in that case remove the file: %w", path, snug.ErrConfig)
	}
	if err != nil {
		return nil, err
	}
	return exclusive{f}, nil
}

func (e exclusive) Close() error { return errors.Join(e.File.Close(), os.Remove(e.Name())) }
