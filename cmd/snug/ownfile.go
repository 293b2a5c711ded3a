package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"

	"github.com/snug-ml/snug/internal/files"
)

// ownFile makes this process the only one that writes a file, such as that of -report, until release. It holds a lock on a
// file beside it, and removes the temporary files of a process that was killed while it wrote.
func ownFile(path string) (release func() error, err error) {
	dir, name := filepath.Dir(path), filepath.Base(path)
	mark := path + ".lock"
	lock, err := files.OS(dir).Lock(name + ".lock")
	switch {
	case errors.Is(err, files.ErrLocked):
		return nil, fmt.Errorf("%s: another run writes this file: name another one: %w", path, err)
	case err != nil:
		return nil, err
	}
	release = func() error { return unlock(mark, lock) }
	if _, err := os.Lstat(mark); err != nil { // another process has ended meanwhile, and removed it
		return nil, errors.Join(fmt.Errorf("%s: another run writes this file: try again: %w", path, files.ErrLocked), lock.Close())
	}
	left, err := os.ReadDir(dir)
	stale := regexp.MustCompile("^" + regexp.QuoteMeta(name) + `\.[0-9]+\.tmp$`)
	for _, e := range left {
		if stale.MatchString(e.Name()) && e.Type().IsRegular() {
			err = errors.Join(err, os.Remove(filepath.Join(dir, e.Name())))
		}
	}
	if err != nil {
		return nil, errors.Join(err, release())
	}
	return release, nil
}

// ownFiles makes the run the only one that writes its report and its trace.
func (t *tuning) ownFiles() (release func() error, err error) {
	var all []func() error
	release = func() (err error) {
		for _, f := range all {
			err = errors.Join(err, f())
		}
		return err
	}
	for _, f := range []struct{ flag, path string }{{"report", t.page}, {"trace", t.trace}} {
		if f.path == "" || t.dryRun && f.flag == "trace" {
			continue
		}
		one, err := ownFile(f.path)
		if err != nil {
			return nil, errors.Join(usagef("tune: -%s: %w", f.flag, err), release())
		}
		all = append(all, one)
	}
	return release, nil
}
