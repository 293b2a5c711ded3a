package offload

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/files"
)

// Store holds named pages in host memory and on disk. Its methods may be
// called from many goroutines.
type Store struct {
	opts Options
	fs   files.Dir
	lock io.Closer // lock of the folder; nobody else changes its files while it is held
	data files.File
	left bool           // the store was open before and not closed
	kept bool           // the store has a commit
	wg   sync.WaitGroup // the background goroutines

	mu      sync.Mutex // guards the fields below; never held during I/O
	settled sync.Cond  // a page came to rest, a commit ended, the store closed
	work    sync.Cond  // the background goroutines may have something to do

	objects  map[string]*object
	pages    int     // pages of all objects
	victims  victims // pages in memory that are not pinned
	order    order   // order of the accesses, to predict the next ones
	hints    []*page // pages that Prefetch asked for and that are not yet read
	buffers  buffers
	pinned   int                   // pages with pins
	pinBytes int64                 // bytes of their buffers
	busy     int                   // reads and writes in progress
	writing  int64                 // bytes of the buffers that are being written
	failures map[*page]cpu.Failure // failures of Sources that read ahead, for the caller that pins the page
	commit   *commit               // the commit under way, or nil
	last     *commit               // the commit that began last, or nil
	closed   bool
	hold     bool // a write failed: no background writes until one succeeds
	trimming bool // the end of the page file is being cut off: no new slots until then

	syncs  uint64 // syncs of the page file that began, plus 1
	synced uint64 // slots with a smaller page.written are durable
	doubt  uint64 // a sync failed: other slots with a smaller page.written are in doubt

	space   space     // space of the page file
	high    int64     // maximum of space.end since the last commit
	retired []retired // slots that commits use and pages do not
	stats   Stats
}

// errGone is the error of a call that waited for a page that was deleted meanwhile.
var errGone = fmt.Errorf("offload: the page was deleted: %w", snug.ErrConfig)

var errNoStore = fmt.Errorf("offload: the store is nil, or was not made by Open: %w", snug.ErrConfig)

// made reports whether s was made by Open.
func (s *Store) made() bool { return s != nil && s.fs != nil }

var errClosed = fmt.Errorf("offload: the store is closed: %w", snug.ErrConfig)

// Open opens the store in directory dir at its last commit, or makes an empty one; a missing
// directory is created with mode 0700, files have mode 0600. A lock on the file snug.lock
// lets one Store at a time open a directory. On Linux, macOS, the BSDs and Windows the
// system releases it when the process ends. Elsewhere, remove the file by hand after a
// process was killed. Links, pipes and files of other users with the names of a store's files
// are not opened.
//
// Errors: [snug.ErrConfig] for bad options, a store in use, or such a file;
// [snug.ErrCorrupt] for a damaged index, an index that is missing although a store with
// pages was closed, or a page file that is too short. The pages themselves are checked
// when read.
func Open(dir string, o Options) (*Store, error) {
	o, err := o.check()
	if err == nil {
		err = checkFolder(dir)
	}
	if err != nil {
		return nil, err
	}
	fs, err := files.Make(dir)
	if err != nil {
		return nil, in(err, "open store")
	}
	return open(fs, o)
}

// open opens a store over checked options.
func open(fs files.Dir, o Options) (*Store, error) {
	s := &Store{opts: o, fs: fs, objects: map[string]*object{}, order: newOrder(o.HostLimit > 0), failures: map[*page]cpu.Failure{}}
	s.buffers.limit, s.buffers.align = o.HostLimit, alignment
	s.syncs, s.synced = 1, 1
	s.settled.L, s.work.L = &s.mu, &s.mu
	if err := s.openFiles(); err != nil {
		// The mark stays: it still says that the process before did not close the store.
		return nil, errors.Join(in(err, "open store"), s.closeFiles(!s.left))
	}
	if o.PrefetchDepth > 0 {
		s.hints = make([]*page, 0, o.PrefetchDepth)
		for range o.Workers {
			s.wg.Add(2)
			go s.readAhead()
			go s.writeBehind()
		}
	}
	return s, nil
}

func (s *Store) openFiles() (err error) {
	if s.lock, err = s.fs.Lock(lockName); err != nil {
		return err
	}
	s.left = marked(s.fs)
	_ = s.fs.Remove(tempName) // file of a commit that was cut off; the next commit tries again
	if s.data, err = s.fs.Open(dataName, create); err != nil {
		return err
	}
	if s.opts.Direct {
		if d := directFile(s.fs.Path(dataName), s.data); d != nil {
			s.data, s.stats.Direct, s.buffers.align = d, true, directAlignment
		}
	}
	size, err := s.data.Size()
	if err != nil {
		return err
	}
	if err := s.readIndex(size); err != nil {
		return err
	}
	if err := s.mark(); err != nil {
		return err
	}
	// Bytes beyond were written after the last commit.
	s.stats.DiskBytes = min(size, s.space.end)
	if size > s.space.end {
		return s.data.Truncate(s.space.end)
	}
	return nil
}

// marked reports whether the folder has the mark of an open store. It is also true for
// anything else of that name, because then the state is unknown.
func marked(fs files.Dir) bool {
	f, err := fs.Open(openName, readOnly)
	if err == nil {
		_ = f.Close()
	}
	return !errors.Is(err, os.ErrNotExist)
}

// mark makes a file that Close removes. When the store has a commit the mark only
// informs, and a failure is no error: a store on a full disk stays readable. Before the
// first commit the mark says that pages without an index are no damage; it is durable
// before the first page is written. The caller holds the lock.
func (s *Store) mark() (err error) {
	if !s.left {
		var f files.File
		if f, err = s.fs.Create(openName, 0o600); err == nil {
			err = f.Close()
		}
	}
	if s.kept {
		return nil
	}
	if err == nil {
		err = s.fs.Sync()
	}
	return err
}

// abandon durably empties the page file of a store that never committed. This comes
// before the mark is removed: pages without an index and without a mark mean that the
// store lost its index. It reports whether the mark may be removed.
func (s *Store) abandon() (bool, error) {
	if s.kept {
		return true, nil
	}
	// A commit may have failed after the renaming. It is in doubt whether its index
	// lasts.
	f, err := s.fs.Open(indexName, readOnly)
	if err == nil {
		return false, f.Close()
	}
	if !errors.Is(err, os.ErrNotExist) || s.owns() != nil {
		return false, nil
	}
	if err = s.data.Truncate(0); err == nil {
		err = s.data.Sync()
	}
	return err == nil, err
}

// Recovered reports whether the process that opened the store before ended without
// [Store.Close], for example because it was killed. Its changes since its last
// [Store.Commit] are lost, and this store began with that commit.
func (s *Store) Recovered() bool { return s.made() && s.left }

func (s *Store) closeFiles(unmark bool) error {
	var errs []error
	if unmark && s.lock != nil && s.owns() == nil {
		_ = s.fs.Remove(openName) // a mark that stays only makes Recovered true
	}
	if s.data != nil {
		errs = append(errs, s.data.Close())
	}
	if s.lock != nil {
		errs = append(errs, s.lock.Close())
	}
	return errors.Join(errs...)
}

// Close waits for a commit under way, stops the background work and closes the files. It returns the error of a commit
// that nobody else has. Changes since the last commit are dropped; without a commit the page file is emptied. The
// memory of pages that are still pinned stays valid until the process ends. Closing twice does nothing. Afterwards
// other methods return [snug.ErrConfig].
func (s *Store) Close() error {
	if !s.made() {
		return nil
	}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	failed := s.awaitCommit()
	if s.closed { // by another goroutine meanwhile
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	s.settled.Broadcast()
	s.work.Broadcast()
	for s.busy > 0 {
		s.settled.Wait()
	}
	for _, p := range s.victims {
		s.buffers.give(p.buf)
		p.buf = nil
	}
	s.buffers.reset()
	s.objects, s.victims, s.hints = map[string]*object{}, nil, nil
	s.order = newOrder(false)
	s.mu.Unlock()
	s.wg.Wait()
	unmark, err := s.abandon()
	if err = errors.Join(failed, err, s.closeFiles(unmark)); err != nil {
		return in(err, "close store")
	}
	return nil
}

// enter locks mu if the store is open, and else returns an error.
func (s *Store) enter() error {
	if !s.made() {
		return errNoStore
	}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return errClosed
	}
	return nil
}

// Stats returns the counters.
func (s *Store) Stats() Stats {
	if !s.made() {
		return Stats{}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.stats
	st.HostBytes, st.HostPeak, st.HostLimit = s.buffers.bytes(), s.buffers.peak, s.buffers.limit
	if d, ok := s.data.(*direct); ok {
		st.Direct = !d.refused.Load()
	}
	return st
}

// stalled adds the time since start to the statistics.
func (s *Store) stalled(start time.Time) { s.stats.Stall += time.Since(start) }
