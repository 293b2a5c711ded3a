//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd || windows)

package files

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
)

// exclusive is a lock that consists in the existence of its file.
type exclusive struct{ *os.File }

// Lock makes a file, which must not exist. A killed process leaves it.
func (d osDir) Lock(name string) (io.Closer, error) {
	path, err := d.valid(name)
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, os.ErrExist) {
		return nil, fmt.Errorf("%s exists; if its process was killed, remove the file: %w", path, ErrLocked)
	}
	if err != nil {
		return nil, err
	}
	return exclusive{f}, nil
}

func (e exclusive) Close() error { return errors.Join(e.File.Close(), os.Remove(e.Name())) }

// Hold makes a file, which must not exist. A killed process leaves it.
func (d osDir) Hold(name string, perm fs.FileMode) (File, error) {
	f, err := d.Create(name, perm)
	if errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("%s exists; if its process was killed, remove the file: %w", d.Path(name), ErrLocked)
	}
	return f, err
}

// Place leaves a moment in which a file may come between.
func (d osDir) Place(from, to string) error { return d.placeUnlinked(from, to) }
