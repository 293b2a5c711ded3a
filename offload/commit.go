package offload

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/files"
)

// Commit is a commit that [Store.BeginCommit] has begun. The zero Commit counts as done: Wait
// returns nil and Done returns true.
type Commit struct{ c *commit }

// Commit makes the present contents of all pages durable together. It writes the dirty
// pages to parts of the page file that the last commit does not use, and syncs the page file.
// Then it writes and syncs a new index, and renames it over the old one.
//
// When Commit returns nil, [Open] gives this state. When Commit fails or is cut off, [Open]
// gives the state of the last commit. If the error leaves it in doubt whether the renaming is
// durable, Open gives one of the two states. A failed Commit can be repeated.
//
// The error wraps [snug.ErrConfig] when a page is pinned, or when the folder or its files
// were moved, removed or replaced since Open. Commit first waits for a commit that
// [Store.BeginCommit] has begun. If that commit fails and no caller has its error yet, Commit
// returns the error and commits nothing.
//
// Other goroutines may use pages while Commit runs, as with BeginCommit. The memory cost is
// that of BeginCommit.
func (s *Store) Commit() error {
	c, err := s.startCommit()
	if err != nil {
		return err
	}
	s.finishCommit(c, false)
	return Commit{c}.Wait()
}

// BeginCommit is [Store.Commit] in the background. It takes a snapshot of the contents that all
// pages have now, and returns. [Commit.Wait] waits until the snapshot is durable. Until then
// [Open] gives the last commit.
//
//	commit, err := store.BeginCommit()
//	// the next steps
//	err = commit.Wait()
//
// During the commit, pages may be pinned and changed. The first pin of a page that the commit
// has not written yet copies the page, if HostLimit has space for the copy. Clean pages are evicted
// to make space. If there still is none, the pin waits until the page is written. This concerns
// only pages that were dirty and in memory when the commit began.
//
// During the commit the page file may be three times as large as the state: it has the last
// commit, the new commit, and the pages that changed since. A pin that needs space beyond
// DiskLimit waits for the end of the commit. The file keeps the greatest length that it had
// since the last commit, because the next steps are likely to need the space again.
//
// Only one commit is under way at a time: BeginCommit and Commit wait for the one that was begun
// before. If a commit fails in the background, the last commit stays as it is. Wait returns the
// error. If nobody calls Wait, the next BeginCommit, Commit or [Store.Close] returns the error
// and commits nothing. BeginCommit itself returns the same errors as Commit. A commit takes 16
// bytes of memory for each page of the store, and 64 bytes for each dirty page.
func (s *Store) BeginCommit() (Commit, error) {
	c, err := s.startCommit()
	if err != nil {
		return Commit{}, err
	}
	go s.finishCommit(c, true)
	return Commit{c}, nil
}

// Wait waits until the commit is durable or has failed, and returns its error. Further
// calls return the same error.
func (c Commit) Wait() error {
	if c.c == nil {
		return nil
	}
	s := c.c.s
	s.mu.Lock()
	defer s.mu.Unlock()
	for !c.c.done {
		s.settled.Wait()
	}
	return c.c.tell()
}

// Done reports whether the commit is durable or has failed. If it is true, Wait returns at once.
func (c Commit) Done() bool {
	if c.c == nil {
		return true
	}
	c.c.s.mu.Lock()
	defer c.c.s.mu.Unlock()
	return c.c.done
}

// startCommit waits for the commit under way, and takes the snapshot for the next one.
func (s *Store) startCommit() (*commit, error) {
	if err := s.enter(); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	if err := s.awaitCommit(); err != nil {
		return nil, in(err, "the commit before")
	}
	switch {
	case s.closed:
		return nil, errClosed
	case s.pinned > 0:
		return nil, fmt.Errorf("offload: commit while %d pages are pinned: %w", s.pinned, snug.ErrConfig)
	}
	s.commit = s.snapshot()
	s.last = s.commit
	return s.commit, nil
}

// awaitCommit waits for the commit under way, and returns the error of the last commit if
// no caller has it yet.
func (s *Store) awaitCommit() error {
	if s.commit != nil {
		start := time.Now()
		for s.commit != nil {
			s.settled.Wait()
		}
		s.stalled(start)
	}
	if s.last == nil || s.last.told {
		return nil
	}
	return s.last.tell()
}

// tell returns the error for a caller, and notes that a caller has it.
func (c *commit) tell() error {
	c.told = true
	return c.err
}

// finishCommit makes a commit durable.
func (s *Store) finishCommit(c *commit, background bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	outcome, err := s.persist(c)
	if err != nil {
		s.abandonVersions(c, in(err, "commit"))
	}
	s.settleSlots(outcome)
	if outcome == published {
		s.kept = true
		s.trim(background)
	}
	s.commit, c.done = nil, true
	c.objects, c.entries, c.versions = nil, nil, nil
	s.settled.Broadcast()
	s.work.Broadcast()
}

// persist writes the pages that the commit has not written yet, and the index. Once the renaming
// has begun, Open may read the new index, even after an error, so its slots must stay in use.
func (s *Store) persist(c *commit) (outcome, error) {
	if err := s.writeVersions(c); err != nil {
		return refused, err
	}
	if err := s.sync(); err != nil {
		return refused, err
	}
	s.mu.Unlock()
	defer s.mu.Lock()
	index, err := encodeIndex(c.objects, c.entries)
	if err == nil {
		err = s.writeTemp(index)
	}
	if err != nil {
		return refused, err
	}
	if err := s.fs.Rename(tempName, indexName); err != nil {
		return inDoubt, err
	}
	if err := s.fs.Sync(); err != nil {
		return inDoubt, err
	}
	return published, nil
}

// sync makes the pages durable that were written before it began. After an error, the pages that
// were written before it ended are in doubt: the system may have lost them, and the next sync
// would not report that. A write that is under way when sync ends with an error is repeated, see put.
func (s *Store) sync() error {
	s.syncs++
	covers := s.syncs
	s.mu.Unlock()
	err := s.data.Sync()
	s.mu.Lock()
	if err != nil {
		s.syncs++
		s.doubt = s.syncs
		return in(err, "sync %s", s.fs.Path(dataName))
	}
	s.synced = covers
	return nil
}

// doubtful reports whether p's slot may have lost its contents, see sync.
func (s *Store) doubtful(p *page) bool {
	return p.slot.n > 0 && s.synced <= p.written && p.written < s.doubt
}

// trim cuts the page file off at the end of its slots. After a commit in the background it cuts
// at the greatest end since the last commit. The space beyond is free, whether or not the
// file system takes it back now.
func (s *Store) trim(background bool) {
	end := s.space.end
	if background { // the next steps are likely to need the same space
		end = max(end, s.high)
	}
	s.high = s.space.end
	if s.stats.DiskBytes <= end {
		return
	}
	s.trimming = true
	s.mu.Unlock()
	err := s.data.Truncate(end)
	s.mu.Lock()
	s.trimming = false
	if err == nil {
		s.stats.DiskBytes = end
	}
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
