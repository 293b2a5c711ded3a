//go:build !unix

package filestest

import "os"

// Planted returns ways to put something in the place of a file, by which somebody would
// reach the file elsewhere, or stop the process.
func Planted(elsewhere string) map[string]func(path string) error {
	return map[string]func(string) error{
		"symbolic link": func(path string) error { return os.Symlink(elsewhere, path) },
		"folder":        func(path string) error { return os.Mkdir(path, 0o700) },
	}
}
