package offload

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
)

// The files of a store.
const (
	dataName  = "snug.pages"
	indexName = "snug.index"
	tempName  = "snug.index.tmp"
	lockName  = "snug.lock"
	openName  = "snug.open" // there while a store is open, and after one that was not closed
)

// Modes of fileSystem.Open.
const (
	readOnly = os.O_RDONLY
	create   = os.O_RDWR | os.O_CREATE
	truncate = os.O_RDWR | os.O_CREATE | os.O_TRUNC
)

// fileSystem is one directory, as the store uses it. Tests put one between
// that fails or loses what was not synced.
type fileSystem interface {
	Open(name string, flag int) (file, error)
	Rename(from, to string) error
	Remove(name string) error
	// SyncDir makes creations and renames durable.
	SyncDir() error
	// Lock keeps other stores out of the directory until it is closed.
	Lock() (io.Closer, error)
	// Path returns the name of a file for messages.
	Path(name string) string
}

type file interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	Size() (int64, error)
	Truncate(size int64) error
	Sync() error
}

// osDir is a directory of the operating system.
type osDir string

// openDir returns the directory dir, which it makes durably if it is missing.
func openDir(dir string) (fileSystem, error) {
	if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, err
		}
		if err := osDir(filepath.Dir(filepath.Clean(dir))).SyncDir(); err != nil {
			return nil, err
		}
	}
	return osDir(dir), nil
}

func (d osDir) Path(name string) string { return filepath.Join(string(d), name) }

func (d osDir) Open(name string, flag int) (file, error) {
	f, err := os.OpenFile(d.Path(name), flag, 0o600)
	if err != nil {
		return nil, err
	}
	return osFile{f}, nil
}

func (d osDir) Rename(from, to string) error { return os.Rename(d.Path(from), d.Path(to)) }

func (d osDir) Remove(name string) error { return os.Remove(d.Path(name)) }

func (d osDir) SyncDir() error {
	if runtime.GOOS == "windows" {
		return nil // directories cannot be synced, and need not be
	}
	f, err := os.Open(string(d))
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

func (d osDir) Lock() (io.Closer, error) { return lockFile(d.Path(lockName)) }

type osFile struct{ *os.File }

func (f osFile) Size() (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}
