package files

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/snug-ml/snug"
)

// OutsideError says that a file of a folder is a link that leads out of it.
type OutsideError struct{ Path, Target string }

func (e *OutsideError) Error() string {
	return fmt.Sprintf("%s is a link to %s, which is outside of its folder", e.Path, e.Target)
}

// Unwrap returns [snug.ErrConfig].
func (e *OutsideError) Unwrap() error { return snug.ErrConfig }

// OpenOwn is [OpenInput] for a file that is to be copied to where others may read it: it must be the folder's own. Its
// links may lead to files in the folder, or, if the folder is snapshots/REVISION in a cache of huggingface_hub, to the
// blobs of the same cache. The error for others is an [OutsideError]. name may lead through a folder of dir.
func OpenOwn(dir, name string, kind Kind) (f *os.File, size int64, err error) {
	path := filepath.Join(dir, filepath.FromSlash(name))
	if f, size, err = OpenInput(path, kind); err != nil {
		return nil, 0, err
	}
	if err = checkOwn(f, dir, path); err != nil {
		return nil, 0, errors.Join(err, f.Close())
	}
	return f, size, nil
}

// checkOwn checks the file that is open, which a link may have led to that has been changed since.
func checkOwn(f *os.File, dir, path string) error {
	target, own, err := lead(dir, path)
	if err != nil {
		return err
	}
	if !own {
		return &OutsideError{path, target}
	}
	there, err := os.Lstat(target)
	if err != nil {
		return err
	}
	opened, err := f.Stat()
	if err == nil && !os.SameFile(there, opened) {
		err = fmt.Errorf("%s has changed while it was opened: %w", path, snug.ErrConfig)
	}
	return err
}

// lead returns where a path in a folder leads, and whether that is in the folder or in its cache.
func lead(dir, path string) (target string, own bool, err error) {
	folder, err := followed(dir)
	if err != nil {
		return "", false, err
	}
	if target, err = followed(path); err != nil {
		return "", false, err
	}
	own = in(target, folder) || filepath.Base(filepath.Dir(folder)) == "snapshots" && in(target, filepath.Join(folder, "..", "..", "blobs"))
	return target, own, nil
}

// followed returns an absolute path without links.
func followed(path string) (string, error) {
	path, err := filepath.EvalSymlinks(path)
	if err != nil {
		return "", err
	}
	return filepath.Abs(path)
}

func in(path, folder string) bool {
	inner, err := filepath.Rel(folder, path)
	return err == nil && inner != "." && filepath.IsLocal(inner)
}

// A Link is an entry of a folder that leads out of it.
type Link struct{ Name, Target string }

// Links returns the links of a folder to files outside of it and of its cache, see [OpenOwn], by name. It leaves out those
// that lead nowhere, those to folders, and those that wanted leaves out.
func Links(dir string, wanted func(name string) bool) ([]Link, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var links []Link
	for _, e := range entries {
		if e.Type()&fs.ModeSymlink == 0 || !wanted(e.Name()) {
			continue
		}
		path := filepath.Join(dir, e.Name())
		if info, err := os.Stat(path); err != nil || info.IsDir() {
			continue
		}
		target, own, err := lead(dir, path)
		if err != nil {
			return nil, err
		}
		if !own {
			links = append(links, Link{e.Name(), target})
		}
	}
	return links, nil
}
