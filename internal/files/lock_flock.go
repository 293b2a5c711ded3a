//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package files

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
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
	return locked(f)
}

// locked locks an open file, and closes it if somebody else has.
func locked(f *os.File) (*os.File, error) {
	err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
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

// holdTries is how often Hold begins again because others made or removed the file meanwhile.
const holdTries = 8

// Hold locks the file itself. What a killed process left is removed rather than written, since it may have a second name.
func (d osDir) Hold(name string, perm fs.FileMode) (File, error) {
	path, err := d.valid(name)
	if err != nil {
		return nil, err
	}
	for range holdTries {
		fresh := true
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, perm)
		if errors.Is(err, fs.ErrExist) {
			fresh = false
			f, err = d.open(name, os.O_RDONLY)
		}
		if errors.Is(err, fs.ErrNotExist) && !fresh {
			continue
		}
		if err != nil {
			return nil, err
		}
		if f, err = locked(f); err != nil {
			return nil, err
		}
		same, err := named(f, path)
		switch {
		case err != nil:
			return nil, errors.Join(err, f.Close())
		case same && fresh:
			return osFile{f}, nil
		case same:
			err = os.Remove(path)
		}
		if err = errors.Join(err, f.Close()); err != nil {
			return nil, err
		}
	}
	return nil, fmt.Errorf("%s is locked: %w", path, ErrLocked)
}

// named reports whether an open file still has its name.
func named(f *os.File, path string) (bool, error) {
	opened, err := f.Stat()
	if err != nil {
		return false, err
	}
	there, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil && os.SameFile(opened, there), err
}

// Place gives the file its new name beside the old one, which a system call refuses where the name is taken, and then takes the
// old one away. A file system without hard links has no such call: there a file may come between.
func (d osDir) Place(from, to string) error {
	err := os.Link(d.Path(from), d.Path(to))
	if err == nil {
		return os.Remove(d.Path(from))
	}
	if errors.Is(err, fs.ErrExist) {
		return taken(d.Path(to))
	}
	return d.placeUnlinked(from, to)
}
