package gguf

import (
	"io"
	"os"

	"github.com/snug-ml/snug/internal/files"
)

// IsFile reports whether a path is that of a regular file, or of a link to one, that begins as a GGUF file does.
func IsFile(path string) bool {
	info, err := os.Stat(path)
	if err != nil || !info.Mode().IsRegular() {
		return false
	}
	f, _, err := files.OpenInput(path, files.Weights)
	if err != nil {
		return false
	}
	defer f.Close()
	var b [len(magic)]byte
	_, err = io.ReadFull(f, b[:])
	return err == nil && string(b[:]) == magic
}
