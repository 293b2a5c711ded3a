package offload

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/files"
)

// Store holds named pages in host memory and on disk. Its methods may be
// called from many goroutines.
type Store struct {
	opts Options
	fs   files.Dir
	lock io.Closer // of the folder, whose files nobody else changes while it is held
	data files.File
	left bool           // the store was open before and not closed
	kept bool           // there is a commit
	wg   sync.WaitGroup // the background goroutines

	mu      sync.Mutex // guards all below; never held during I/O
	settled sync.Cond  // a page came to rest, a commit ended, the store closed
	work    sync.Cond  // the background goroutines may have something to do

	objects    map[string]*object
	pages      int     // of all objects
	victims    victims // pages in memory that are not pinned
	order      order   // of the accesses, to predict the next ones
	hints      []*page // what Prefetch asked for and nobody has read yet
	buffers    buffers
	pinned     int                   // pages with pins
	pinBytes   int64                 // and their buffers' bytes
	busy       int                   // reads and writes in progress
	writing    int64                 // bytes of the buffers that are being written
	failures   map[*page]cpu.Failure // of Sources that were to read ahead, for who pins the page
	committing bool
	closed     bool
	hold       bool // a write failed: no writes behind until one succeeds
	doubt      bool // the data files.File failed to sync: what it holds since the last sync is in doubt

	space   space    // of the data files.File
	retired []extent // slots that only earlier commits refer to; free after the next
	stats   Stats
}

// object is what a key names: a blob of one page, or a tensor.
type object struct {
	name    string
	dtype   snug.DType // 0 for a blob
	n       int        // elements; bytes for a blob
	pageLen int        // elements of each page but the last
	pages   []page

	source Source // of a tensor that is attached, else nil
	from   string // its name there
}

// page is the unit of memory, of disk and of transfer. Store.mu guards it; its
// bytes belong to who pinned it, or to the one transfer while busy.
type page struct {
	obj  *object
	num  int // in obj.pages
	size int // bytes

	buf   []byte // nil when not in memory
	pins  int
	busy  bool // being read or written, or waiting for memory to be read into
	dirty bool // buf is newer than slot
	gone  bool // deleted
	bad   bool // reading ahead failed; the next Acquire says why

	version uint64 // of the contents: how often it was changed

	slot     extent // on disk; zero length for a page of zeros never written
	crc      uint32 // of the slot
	frozen   bool   // a commit refers to slot, which must not be overwritten
	unsynced bool   // written since the data files.File was last synced

	elements sync.RWMutex // what ReadAt, WriteAt, LoadTo and put do with buf; p is pinned then

	last  int64 // time of the last access, -1 before the first
	key   int64 // the larger, the sooner evicted
	index int   // in Store.victims, -1 when not there
}

func (p *page) String() string { return pageName(p.obj.name, p.obj.dtype, p.num) }

func pageName(name string, dt snug.DType, num int) string {
	if dt == 0 {
		return fmt.Sprintf("blob %q", name)
	}
	return fmt.Sprintf("page %d of tensor %q", num, name)
}

// errGone is returned to who waited for a page that was deleted meanwhile.
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
// [snug.ErrCorrupt] for a damaged index, an index that is missing beside the pages of a
// store that was closed, or a page file that is too short. The pages themselves are checked
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
		return nil, fmt.Errorf("offload: open store: %w", err)
	}
	return open(fs, o)
}

// open opens a store over checked options.
func open(fs files.Dir, o Options) (*Store, error) {
	s := &Store{opts: o, fs: fs, objects: map[string]*object{}, order: newOrder(o.HostLimit > 0), failures: map[*page]cpu.Failure{}}
	s.buffers.limit, s.buffers.align = o.HostLimit, alignment
	s.settled.L, s.work.L = &s.mu, &s.mu
	if err := s.openFiles(); err != nil {
		// What says that the process before did not close the store, says so still.
		return nil, errors.Join(fmt.Errorf("offload: open store: %w", err), s.closeFiles(!s.left))
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
	_ = s.fs.Remove(tempName) // of a commit that was cut off; the next one tries again
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
	// What lies beyond was written after the last commit.
	s.stats.DiskBytes = min(size, s.space.end)
	if size > s.space.end {
		return s.data.Truncate(s.space.end)
	}
	return nil
}

// marked reports whether the mark of a store that is open is there, or something else of
// its name: then nobody knows.
func marked(fs files.Dir) bool {
	f, err := fs.Open(openName, readOnly)
	if err == nil {
		_ = f.Close()
	}
	return !errors.Is(err, os.ErrNotExist)
}

// mark leaves a file that Close removes. Beside a commit it is a help, and no error if it
// fails: on a full disk the store is readable still. Before the first commit it says that
// pages without an index are no damage, and is durable before the first page is written.
// The caller holds the lock.
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

// abandon empties the page file of a store that never committed, durably, before the mark
// goes: pages without an index and without a mark are those of a store that lost its index.
// It reports whether the mark may go.
func (s *Store) abandon() (bool, error) {
	if s.kept {
		return true, nil
	}
	// A commit may have failed after the renaming. Whether its index lasts is in doubt.
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

// Recovered reports whether the store was open before in a process that ended without
// [Store.Close], as one that was killed: what that had changed since its last
// [Store.Commit] is lost, and this store began with that commit.
func (s *Store) Recovered() bool { return s.made() && s.left }

func (s *Store) closeFiles(unmark bool) error {
	var errs []error
	if unmark && s.lock != nil && s.owns() == nil {
		_ = s.fs.Remove(openName) // left behind it makes Recovered cautious, no more
	}
	if s.data != nil {
		errs = append(errs, s.data.Close())
	}
	if s.lock != nil {
		errs = append(errs, s.lock.Close())
	}
	return errors.Join(errs...)
}

// Close stops the background work and closes the files. Changes since the last
// Commit are dropped; without a commit the page file is emptied. Memory of pages that are still pinned stays valid until the
// process ends. Closing twice does nothing; other methods give
// [snug.ErrConfig] afterwards.
func (s *Store) Close() error {
	if !s.made() {
		return nil
	}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	s.settled.Broadcast()
	s.work.Broadcast()
	for s.busy > 0 || s.committing {
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
	if err = errors.Join(err, s.closeFiles(unmark)); err != nil {
		return fmt.Errorf("offload: close store: %w", err)
	}
	return nil
}

// enter locks mu once no commit is running.
func (s *Store) enter() error {
	if !s.made() {
		return errNoStore
	}
	s.mu.Lock()
	if s.committing {
		start := time.Now()
		for s.committing && !s.closed {
			s.settled.Wait()
		}
		s.stalled(start)
	}
	if s.closed {
		s.mu.Unlock()
		return errClosed
	}
	return nil
}

// Acquire brings the blob key into memory and pins it: the size bytes stay
// where they are until as many calls of [Store.Release], and may not be touched
// after that. A new key becomes a
// blob of zeros. The memory starts at a multiple of 64 bytes, and all that hold the
// blob share it. Acquire waits while the page is read or written, while pages are
// evicted for it, and while Commit runs. A page in memory costs no allocation.
//
// Errors: [snug.ErrShape] when the blob has another size or size is negative
// or above 1 GiB; [snug.ErrConfig] when key is empty, too long, not UTF-8
// or names a tensor; [snug.ErrNoMemory] when pinned pages leave too few bytes;
// [snug.ErrCorrupt] when the page on disk is damaged.
func (s *Store) Acquire(key string, size int) ([]byte, error) {
	if err := s.enter(); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	for {
		obj, made, err := s.blob(key, size)
		if err != nil {
			return nil, err
		}
		p := &obj.pages[0]
		switch err := s.pin(context.Background(), p, false); {
		case err == nil:
			return p.buf[:size:size], nil
		case errors.Is(err, errGone):
			// Another goroutine deleted it, or failed to make it.
		default:
			if made {
				s.drop(obj)
			}
			return nil, err
		}
	}
}

// blob returns the object of a blob, which it makes when there is none.
func (s *Store) blob(key string, size int) (obj *object, made bool, err error) {
	if size < 0 || size > maxPage {
		return nil, false, fmt.Errorf("offload: blob %q of %d bytes, want 0 to %d: %w", key, size, maxPage, snug.ErrShape)
	}
	obj, ok := s.objects[key]
	if !ok {
		if err := checkKey(key); err != nil {
			return nil, false, err
		}
		obj = newBlob(key, size)
		s.add(obj)
		return obj, true, nil
	}
	if obj.dtype != 0 {
		return nil, false, fmt.Errorf("offload: %q is a tensor of %s, not a blob: %w", key, obj.dtype, snug.ErrConfig)
	}
	if obj.n != size {
		return nil, false, fmt.Errorf("offload: blob %q has %d bytes, not %d: %w", key, obj.n, size, snug.ErrShape)
	}
	return obj, false, nil
}

// Release undoes one Acquire. dirty says that the bytes may have changed; they
// become durable with the next [Store.Commit]. The error wraps
// [snug.ErrConfig] when the blob is not pinned.
func (s *Store) Release(key string, dirty bool) error {
	if !s.made() {
		return errNoStore
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	obj, ok := s.objects[key]
	if !ok || obj.dtype != 0 {
		return fmt.Errorf("offload: release of %q, which is not a pinned blob: %w", key, snug.ErrConfig)
	}
	return s.unpin(&obj.pages[0], dirty)
}

// Keys returns the names of all blobs and tensors, sorted.
func (s *Store) Keys() []string {
	if !s.made() {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.objects))
}

// Has reports whether there is a blob or tensor of that name.
func (s *Store) Has(key string) bool {
	if !s.made() {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.objects[key]
	return ok
}

// Delete removes a blob or tensor; the next [Store.Commit] makes that durable
// and frees its space on disk. The error wraps [snug.ErrConfig] when there is
// none, or when a page of it is pinned.
func (s *Store) Delete(key string) error {
	if err := s.enter(); err != nil {
		return err
	}
	defer s.mu.Unlock()
	for {
		obj, ok := s.objects[key]
		if !ok {
			return fmt.Errorf("offload: delete: there is no %q: %w", key, snug.ErrConfig)
		}
		busy := false
		for i := range obj.pages {
			if p := &obj.pages[i]; p.pins > 0 {
				return fmt.Errorf("offload: delete: %v is pinned: %w", p, snug.ErrConfig)
			}
			busy = busy || obj.pages[i].busy
		}
		if !busy && !s.committing {
			s.drop(obj)
			return nil
		}
		s.settled.Wait()
		if s.closed {
			return errClosed
		}
	}
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

// newBlob returns a blob of size zero bytes, not in memory.
func newBlob(name string, size int) *object {
	obj := &object{name: name, n: size, pageLen: size, pages: make([]page, 1)}
	obj.pages[0] = page{obj: obj, size: size, last: -1, index: -1}
	return obj
}

// newTensor cuts n zeros into pages, not in memory. The caller checks the
// numbers.
func newTensor(name string, dt snug.DType, n, pageLen int) *object {
	obj := &object{name: name, dtype: dt, n: n, pageLen: pageLen}
	obj.pages = make([]page, pageCount(n, pageLen))
	for i := range obj.pages {
		size := min(pageLen, n-i*pageLen) * dt.Size()
		obj.pages[i] = page{obj: obj, num: i, size: size, last: -1, index: -1}
	}
	return obj
}

// add makes an object known, and grows the bookkeeping so that Acquire of a
// page in memory need not.
func (s *Store) add(obj *object) {
	s.objects[obj.name] = obj
	s.pages += len(obj.pages)
	s.victims = slices.Grow(s.victims, s.pages-len(s.victims))
	s.order.grow(s.pages)
}

// drop forgets an object, none of whose pages is pinned or busy.
func (s *Store) drop(obj *object) {
	delete(s.objects, obj.name)
	s.pages -= len(obj.pages)
	for i := range obj.pages {
		p := &obj.pages[i]
		if p.buf != nil {
			s.discard(p)
		}
		s.vacate(p)
		p.gone = true
		delete(s.failures, p)
	}
	s.settled.Broadcast()
}

func checkKey(key string) error {
	switch {
	case key == "" || len(key) > maxKey:
		return fmt.Errorf("offload: key of %d bytes, want 1 to %d: %w", len(key), maxKey, snug.ErrConfig)
	case !utf8.ValidString(key):
		return fmt.Errorf("offload: key %q is not UTF-8: %w", key, snug.ErrConfig)
	}
	return nil
}

// stalled adds the time since start to the statistics.
func (s *Store) stalled(start time.Time) { s.stats.Stall += time.Since(start) }
