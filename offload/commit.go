package offload

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/files"
)

// Commit makes the present contents of all pages durable together: it writes the dirty
// pages to parts of the file that the last commit does not use, syncs the page file,
// writes and syncs a new index and renames it over the old one. When Commit returns nil,
// [Open] gives this state; when it fails or is cut off, [Open] gives the state of the
// commit before. If only the renaming is in doubt, Open gives one of the two. A failed
// Commit can be repeated.
//
// The error wraps [snug.ErrConfig] when a page is pinned, or when the folder or its files
// were moved, removed or replaced since Open. Acquire and Pin wait while Commit runs.
func (s *Store) Commit() error {
	if err := s.enter(); err != nil {
		return err
	}
	defer s.mu.Unlock()
	s.committing = true
	defer func() {
		s.committing = false
		s.settled.Broadcast()
		s.work.Broadcast()
	}()
	for s.busy > 0 {
		s.settled.Wait()
	}
	if s.closed {
		return errClosed
	}
	if s.pinned > 0 {
		return fmt.Errorf("offload: commit while %d pages are pinned: %w", s.pinned, snug.ErrConfig)
	}
	if err := s.flush(); err != nil {
		return err
	}
	index, err := s.encodeIndex()
	if err == nil {
		err = s.replaceIndex(index)
	}
	if err != nil {
		return in(err, "commit")
	}
	s.kept = true
	for _, e := range s.retired {
		s.space.release(e)
	}
	s.retired = s.retired[:0]
	// The commit is done. The space beyond the end is free, whether or not the file
	// system takes it back now.
	if s.stats.DiskBytes > s.space.end && s.data.Truncate(s.space.end) == nil {
		s.stats.DiskBytes = s.space.end
	}
	return nil
}

// flush writes all dirty pages and syncs the page file.
func (s *Store) flush() error {
	err := s.each(func(p *page) error {
		if s.doubt && p.unsynced && !p.dirty {
			// A failed sync may have lost the page, and the next sync would not report
			// it: write the page again.
			if p.buf == nil {
				if err := s.load(context.Background(), p, false); err != nil {
					return err
				}
			}
			p.dirty = true
		}
		if !p.dirty {
			return nil
		}
		if err := s.write(p); err != nil {
			return in(err, "commit")
		}
		return nil
	})
	if err != nil {
		return err
	}
	s.mu.Unlock()
	err = s.data.Sync()
	s.mu.Lock()
	if err != nil {
		s.doubt = true
		return in(err, "commit: sync %s", s.fs.Path(dataName))
	}
	s.doubt = false
	return s.each(func(p *page) error {
		p.unsynced = false
		return nil
	})
}

// each calls do for every page in the order of names, until an error.
func (s *Store) each(do func(*page) error) error {
	for _, name := range slices.Sorted(maps.Keys(s.objects)) {
		obj := s.objects[name]
		for i := range obj.pages {
			if err := do(&obj.pages[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

// replaceIndex replaces the old index by a new one. From the renaming on, the slots that
// the new index names may belong to a commit. They stay untouched until another commit
// has succeeded.
func (s *Store) replaceIndex(index []byte) error {
	s.mu.Unlock()
	err := s.writeTemp(index)
	s.mu.Lock()
	if err != nil {
		return err
	}
	for _, obj := range s.objects {
		for i := range obj.pages {
			obj.pages[i].frozen = true
		}
	}
	s.mu.Unlock()
	defer s.mu.Lock()
	if err := s.fs.Rename(tempName, indexName); err != nil {
		return err
	}
	return s.fs.Sync()
}

// owns returns an error unless the folder's page file and lock are the files that s has
// open: the folder may have been moved, or the files removed or replaced. A commit would
// then leave an index without its pages, or with the pages of another store.
func (s *Store) owns() error {
	for _, own := range []struct {
		name string
		file any
	}{{dataName, s.data}, {lockName, s.lock}} {
		if info, err := stat(own.file); info == nil && err == nil {
			continue // not a file of the operating system
		}
		f, err := s.fs.Open(own.name, readOnly)
		same := err == nil && sameFile(own.file, f)
		if err == nil {
			err = f.Close()
		} else if errors.Is(err, os.ErrNotExist) || errors.Is(err, snug.ErrConfig) {
			err = nil // missing, or another file
		} else if own.name == lockName {
			continue // nobody else can open it, so it is still held
		}
		if err != nil {
			return err
		}
		if !same {
			return fmt.Errorf("%s was moved, removed or replaced while the store was open: %w", s.fs.Path(own.name), snug.ErrConfig)
		}
	}
	return nil
}

// writeTemp writes the index durably under its temporary name. It replaces the file of a
// commit that was cut off.
func (s *Store) writeTemp(index []byte) error {
	if err := s.owns(); err != nil {
		return err
	}
	if err := s.fs.Remove(tempName); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return files.Write(s.fs, tempName, 0o600, func(f files.File) error {
		_, err := f.WriteAt(index, 0)
		return err
	})
}
