package files

import (
	"errors"
	"path/filepath"
)

// Pending is a file that is written a part at a time, beside the one whose place it takes. It is [ReplaceIn] for a caller
// who writes between other things.
type Pending struct {
	File
	dir        Dir
	temp, name string
}

// Begin makes the file that is to take the place of path, see [Replace].
func Begin(path string) (*Pending, error) {
	return BeginIn(OS(filepath.Dir(path)), filepath.Base(path))
}

// BeginIn makes the file that is to be renamed to name.
func BeginIn(d Dir, name string) (*Pending, error) {
	temp, perm, old, err := beside(d, name)
	if err != nil {
		return nil, err
	}
	f, err := d.Create(temp, perm)
	if err != nil {
		return nil, err
	}
	p := &Pending{f, d, temp, name}
	if old {
		if err := f.Chmod(perm); err != nil {
			return nil, errors.Join(err, p.Abort())
		}
	}
	return p, nil
}

// Commit puts the file in its place, durably. When it fails before that, nothing is left of it.
func (p *Pending) Commit() error {
	if err := p.Sync(); err != nil {
		return errors.Join(err, p.Abort())
	}
	err := p.Close()
	if err == nil {
		err = p.dir.Rename(p.temp, p.name)
	}
	if err != nil {
		return errors.Join(err, p.dir.Remove(p.temp))
	}
	return p.dir.Sync()
}

// Abort removes the file. What was in its place stays.
func (p *Pending) Abort() error {
	return errors.Join(p.Close(), p.dir.Remove(p.temp))
}
