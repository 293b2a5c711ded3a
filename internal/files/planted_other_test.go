//go:build !unix

package files_test

import "os"

// planted returns what somebody could put in the place of a file to reach elsewhere, or
// to stop the process.
func planted(elsewhere string) map[string]func(path string) error {
	return map[string]func(string) error{
		"symbolic link": func(path string) error { return os.Symlink(elsewhere, path) },
		"folder":        func(path string) error { return os.Mkdir(path, 0o700) },
	}
}
