package files

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// Space is the room on the file system of a folder.
type Space struct {
	Free   int64  // bytes that this process may still write
	Volume string // names the file system
}

// SpaceOf returns the room for files in a folder, or in the folder that exists above a missing one. The error wraps
// [errors.ErrUnsupported] on a system that does not say.
func SpaceOf(dir string) (Space, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return Space{}, err
	}
	for {
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) || filepath.Dir(dir) == dir {
			return spaceOf(dir)
		}
		dir = filepath.Dir(dir)
	}
}

// IsFull reports whether an error says that a disk, or a user's part of it, is full.
func IsFull(err error) bool {
	for _, full := range errsFull {
		if errors.Is(err, full) {
			return true
		}
	}
	return false
}
