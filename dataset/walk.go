package dataset

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/snug-ml/snug/internal/files"
)

// read adds a file, or all files of a folder in the order of their names, or all that a pattern matches.
func (r *reader) read(path string) error {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) && strings.ContainsAny(path, "*?[") {
		names, bad := filepath.Glob(path)
		if bad != nil || len(names) == 0 {
			return fmt.Errorf("%s: no file has such a name: %w", path, err)
		}
		for _, name := range names {
			if err := r.read(name); err != nil {
				return err
			}
		}
		return nil
	}
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return r.file(path)
	}
	names, err := filesIn(path)
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := r.file(name); err != nil {
			return err
		}
	}
	return nil
}

// filesIn returns the files of a folder that are read: all but hidden ones, or only those of Parquet if there are some, since
// the others then describe them.
func filesIn(folder string) (names []string, err error) {
	isTable := func(name string) bool { return strings.EqualFold(filepath.Ext(name), ".parquet") }
	err = filepath.WalkDir(folder, func(name string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && !strings.HasPrefix(d.Name(), ".") {
			names = append(names, name)
		}
		return err
	})
	if slices.ContainsFunc(names, isTable) {
		names = slices.DeleteFunc(names, func(name string) bool { return !isTable(name) })
	}
	return names, err
}

func (r *reader) file(path string) error {
	f, size, err := files.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := r.contents(&input{path: path, file: f, size: size}); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}
