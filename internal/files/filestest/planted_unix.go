//go:build unix

package filestest

import (
	"os"
	"syscall"
)

// Planted returns ways to put something in the place of a file, by which somebody would
// reach the file elsewhere, or stop the process.
func Planted(elsewhere string) map[string]func(path string) error {
	return map[string]func(string) error{
		"symbolic link": func(path string) error { return os.Symlink(elsewhere, path) },
		"dangling link": func(path string) error { return os.Symlink(elsewhere+"2", path) },
		"hard link":     func(path string) error { return os.Link(elsewhere, path) },
		"pipe":          func(path string) error { return syscall.Mkfifo(path, 0o600) },
		"folder":        func(path string) error { return os.Mkdir(path, 0o700) },
		"open to all": func(path string) error {
			if err := os.WriteFile(path, nil, 0o600); err != nil {
				return err
			}
			return os.Chmod(path, 0o622)
		},
	}
}
