package offload

import (
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"sync"
	"syscall"

	"github.com/snug-ml/snug"
)

// memDir is a directory in memory that knows what a disk would have kept: a
// write may be lost, or kept in part, until the file is synced, and a creation
// or renaming until the directory is. It can fail one operation, or all from
// one on, as if the machine had stopped.
type memDir struct {
	mu      sync.Mutex
	names   map[string]*memFile // what the process sees
	durable map[string]*memFile
	pending []func(map[string]*memFile) // changes of names since SyncDir
	locked  bool

	reads int   // so far
	ops   int   // changes so far
	fail  int   // the operation that fails, from 1; 0 for none
	stop  bool  // and all that follow
	cause error // with this error
}

// memFile is a file of a memDir.
type memFile struct {
	dir     *memDir
	data    []byte // what the process sees
	durable []byte
	pending []change // since Sync
}

// change is a write, or a truncation if bytes is nil.
type change struct {
	off   int64
	bytes []byte
}

func newMemDir() *memDir {
	return &memDir{names: map[string]*memFile{}, durable: map[string]*memFile{}, cause: syscall.ENOSPC}
}

// counts returns how many reads and changes there were.
func (d *memDir) counts() (reads, ops int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.reads, d.ops
}

// op counts a change and says whether it fails. The caller holds mu.
func (d *memDir) op(name string) error {
	d.ops++
	if d.fail > 0 && (d.ops == d.fail || d.stop && d.ops > d.fail) {
		return &os.PathError{Op: "change", Path: d.Path(name), Err: d.cause}
	}
	return nil
}

// change records a change of names.
func (d *memDir) change(do func(map[string]*memFile)) {
	do(d.names)
	d.pending = append(d.pending, do)
}

func (d *memDir) Path(name string) string { return "mem/" + name }

func (d *memDir) Open(name string, flag int) (file, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f, ok := d.names[name]
	switch {
	case !ok && flag&os.O_CREATE == 0:
		return nil, &os.PathError{Op: "open", Path: d.Path(name), Err: os.ErrNotExist}
	case !ok:
		if err := d.op(name); err != nil {
			return nil, err
		}
		f = &memFile{dir: d}
		d.change(func(names map[string]*memFile) { names[name] = f })
	case flag&os.O_TRUNC != 0:
		if err := d.op(name); err != nil {
			return nil, err
		}
		f.apply(change{})
	}
	return f, nil
}

func (d *memDir) Rename(from, to string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.op(to); err != nil {
		return err
	}
	f := d.names[from]
	d.change(func(names map[string]*memFile) {
		delete(names, from)
		names[to] = f
	})
	return nil
}

func (d *memDir) Remove(name string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.op(name); err != nil {
		return err
	}
	d.change(func(names map[string]*memFile) { delete(names, name) })
	return nil
}

func (d *memDir) SyncDir() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.op(""); err != nil {
		return err
	}
	for _, do := range d.pending {
		do(d.durable)
	}
	d.pending = nil
	return nil
}

func (d *memDir) Lock() (io.Closer, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.locked {
		return nil, fmt.Errorf("locked: %w", snug.ErrConfig)
	}
	d.locked = true
	return (*memLock)(d), nil
}

type memLock memDir

func (l *memLock) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.locked = false
	return nil
}

// crash returns what a disk might hold if the machine stopped now: the durable
// state, some of the renamings in order, and some of the writes in any order
// and cut anywhere.
func (d *memDir) crash(rng *rand.Rand) *memDir {
	d.mu.Lock()
	defer d.mu.Unlock()
	after := newMemDir()
	names := map[string]*memFile{}
	for name, f := range d.durable {
		names[name] = f
	}
	for _, do := range d.pending[:rng.IntN(len(d.pending)+1)] {
		do(names)
	}
	for name, f := range names {
		survivor := &memFile{dir: after, data: append([]byte(nil), f.durable...)}
		for _, i := range rng.Perm(len(f.pending)) {
			c := f.pending[i]
			if rng.IntN(2) == 0 {
				continue
			}
			if c.bytes != nil && rng.IntN(2) == 0 {
				c.bytes = c.bytes[:rng.IntN(len(c.bytes)+1)]
			}
			survivor.data = c.applied(survivor.data)
		}
		survivor.durable = append([]byte(nil), survivor.data...)
		after.names[name], after.durable[name] = survivor, survivor
	}
	return after
}

func (c change) applied(data []byte) []byte {
	if c.bytes == nil {
		return append(data, make([]byte, max(0, int(c.off)-len(data)))...)[:c.off]
	}
	if end := int(c.off) + len(c.bytes); end > len(data) {
		data = append(data, make([]byte, end-len(data))...)
	}
	copy(data[c.off:], c.bytes)
	return data
}

func (f *memFile) apply(c change) {
	f.data = c.applied(f.data)
	f.pending = append(f.pending, c)
}

func (f *memFile) ReadAt(b []byte, off int64) (int, error) {
	f.dir.mu.Lock()
	defer f.dir.mu.Unlock()
	f.dir.reads++
	if off >= int64(len(f.data)) {
		return 0, io.EOF
	}
	n := copy(b, f.data[off:])
	if n < len(b) {
		return n, io.EOF
	}
	return n, nil
}

// WriteAt leaves half of the bytes when it fails.
func (f *memFile) WriteAt(b []byte, off int64) (int, error) {
	f.dir.mu.Lock()
	defer f.dir.mu.Unlock()
	err := f.dir.op(dataName)
	if err != nil {
		b = b[:len(b)/2]
	}
	f.apply(change{off, append([]byte{}, b...)})
	return len(b), err
}

func (f *memFile) Truncate(size int64) error {
	f.dir.mu.Lock()
	defer f.dir.mu.Unlock()
	if err := f.dir.op(dataName); err != nil {
		return err
	}
	f.apply(change{off: size})
	return nil
}

// Sync forgets what was to be written when it fails, as operating systems do:
// the process still reads it, the disk never gets it.
func (f *memFile) Sync() error {
	f.dir.mu.Lock()
	defer f.dir.mu.Unlock()
	err := f.dir.op(dataName)
	if err == nil {
		for _, c := range f.pending {
			f.durable = c.applied(f.durable)
		}
	}
	f.pending = nil
	return err
}

func (f *memFile) Size() (int64, error) {
	f.dir.mu.Lock()
	defer f.dir.mu.Unlock()
	return int64(len(f.data)), nil
}

func (f *memFile) Close() error { return nil }
