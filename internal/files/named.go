package files

import (
	"errors"
	"io/fs"
	"os"
)

// shown is a file that is to get a name. Its errors show that name, and not the one that it has while it is written.
type shown struct {
	File
	has, gets string // paths
}

// as returns err with the path gets in place of has.
func (s shown) as(err error) error {
	var path *fs.PathError
	if errors.As(err, &path) && path.Path == s.has {
		return &fs.PathError{Op: path.Op, Path: s.gets, Err: path.Err}
	}
	var link *os.LinkError
	if errors.As(err, &link) && link.Old == s.has {
		return &fs.PathError{Op: "create", Path: s.gets, Err: link.Err}
	}
	return err
}

func (s shown) WriteAt(b []byte, off int64) (int, error) {
	n, err := s.File.WriteAt(b, off)
	return n, s.as(err)
}

func (s shown) Truncate(size int64) error    { return s.as(s.File.Truncate(size)) }
func (s shown) Chmod(perm fs.FileMode) error { return s.as(s.File.Chmod(perm)) }
func (s shown) Sync() error                  { return s.as(s.File.Sync()) }
func (s shown) Close() error                 { return s.as(s.File.Close()) }
