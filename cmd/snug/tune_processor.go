package main

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"

	"github.com/snug-ml/snug/internal/files"
)

// processorSum is the name under which a checkpoint has the checksum of the files of the processor.
const processorSum = "checksum of preprocessor_config.json"

// processorChecksum returns the checksum of the files of the processor.
func processorChecksum(dir string) (string, error) {
	h := sha256.New()
	err := writeProcessor(h, dir)
	return hex.EncodeToString(h.Sum(nil)), err
}

// writeProcessor writes the files that say how pixels become values, for a checksum of what depends on them.
func writeProcessor(w io.Writer, dir string) error {
	for _, name := range []string{"preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json"} {
		text, err := files.ReadInput(filepath.Join(dir, name), files.Description)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		fmt.Fprintf(w, "%s %d\n%s", name, len(text), text)
	}
	return nil
}
