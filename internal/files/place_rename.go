//go:build !windows

package files

import (
	"errors"
	"io/fs"
	"os"
)

// placeUnlinked renames where nothing is found under the new name.
func (d osDir) placeUnlinked(from, to string) error {
	if _, err := os.Lstat(d.Path(to)); !errors.Is(err, fs.ErrNotExist) {
		if err == nil {
			err = taken(d.Path(to))
		}
		return err
	}
	return d.Rename(from, to)
}
