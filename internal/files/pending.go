package files

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
)

// unfinished is what the name of a file ends with until it is complete.
const unfinished = ".unfinished"

// Pending is a file that is written a part at a time, beside the one whose place it takes. It is [ReplaceIn] for a caller
// who writes between other things. Its name is that of the file and ".unfinished", and it is locked: one at a time is written. A
// process that is killed leaves it, and the next one for the same file removes it.
type Pending struct {
	shown
	dir        Dir
	temp, name string
	fresh      bool
}

// Begin makes the file that is to take the place of path, see [Replace]. With fresh there must be no file at path, neither now nor
// at Commit: the error wraps [fs.ErrExist]. The error for a file that is being written wraps [ErrLocked].
func Begin(path string, fresh bool) (*Pending, error) {
	return BeginIn(OS(filepath.Dir(path)), filepath.Base(path), fresh)
}

// BeginIn is [Begin] for a file of a folder.
func BeginIn(d Dir, name string, fresh bool) (*Pending, error) {
	perm, old, err := modeOf(d, name)
	if err != nil {
		return nil, err
	}
	temp := name + unfinished
	at := shown{has: d.Path(temp), gets: d.Path(name)}
	f, err := d.Hold(temp, perm)
	switch {
	case errors.Is(err, ErrLocked):
		return nil, fmt.Errorf("%s is being written: %w", d.Path(name), ErrLocked)
	case err != nil:
		return nil, at.as(err)
	}
	at.File = f
	p := &Pending{at, d, temp, name, fresh}
	if fresh { // the one who held the lock before may have put it there
		_, old, err = modeOf(d, name)
		if err == nil && old {
			err = taken(d.Path(name))
		}
		old = false
	}
	if err == nil && old {
		err = p.Chmod(perm)
	}
	if err != nil {
		return nil, errors.Join(err, p.Abort())
	}
	return p, nil
}

// taken says that a name has a file.
func taken(path string) error {
	return &fs.PathError{Op: "create", Path: path, Err: fs.ErrExist}
}

// Commit puts the file in its place, durably. When it fails before that, nothing is left of it.
func (p *Pending) Commit() error {
	if err := p.Sync(); err != nil {
		return errors.Join(err, p.Abort())
	}
	move := p.dir.Rename
	if p.fresh {
		move = p.dir.Place
	}
	if err := move(p.temp, p.name); err != nil {
		return errors.Join(p.as(err), p.Abort())
	}
	return errors.Join(p.Close(), p.dir.Sync())
}

// Abort removes the file. What was in its place stays.
func (p *Pending) Abort() error {
	return errors.Join(p.dir.Remove(p.temp), p.Close()) // in this order, so that it is not the file of another
}
