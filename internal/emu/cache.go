//go:build emu

package emu

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
)

// The emulator runs what lies in its cache, so the folder is one that nobody else can write:
// snug-emu in the user's cache, or, without a home, a folder with the user's number among the
// system's temporary files. Where that is not the user's alone, the programs of this process
// go to a new temporary folder, which stays behind.
func cacheDir() (string, error) {
	if base, err := os.UserCacheDir(); err == nil {
		dir := filepath.Join(base, "snug-emu")
		if err := os.MkdirAll(base, 0o700); err == nil && makePrivate(dir, os.Geteuid()) == nil {
			return dir, nil
		}
	}
	dir := filepath.Join(os.TempDir(), fmt.Sprintf("snug-emu-%d", os.Geteuid()))
	if makePrivate(dir, os.Geteuid()) == nil {
		return dir, nil
	}
	return freshDir()
}

// freshDir makes a folder for the programs of this process.
var freshDir = sync.OnceValues(func() (string, error) { return os.MkdirTemp("", "snug-emu-") })

// makePrivate makes a folder, or reports why the one that is there is not a folder that only
// the user can write.
func makePrivate(dir string, user int) error {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	info, err := os.Lstat(dir)
	switch {
	case err != nil:
		return err
	case !info.IsDir():
		return fmt.Errorf("%s is no folder but %v", dir, info.Mode().Type())
	case !ownedBy(info, user):
		return fmt.Errorf("%s is another user's", dir)
	case !onlyOwnerWrites(info):
		return fmt.Errorf("%s can be written by others: %v", dir, info.Mode())
	}
	return nil
}
