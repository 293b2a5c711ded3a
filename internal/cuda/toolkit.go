//go:build (cuda || hip) && (linux || windows) && (amd64 || arm64)

package cuda

import (
	"os"
	"path/filepath"
)

// inToolkit returns folders of the toolkit that an environment variable names. A path that is
// not absolute names none: libraries of the current folder are not opened.
func inToolkit(variable string, folders ...string) (dirs []string) {
	home := os.Getenv(variable)
	if !filepath.IsAbs(home) {
		return nil
	}
	for _, folder := range folders {
		dirs = append(dirs, filepath.Join(home, folder))
	}
	return dirs
}
