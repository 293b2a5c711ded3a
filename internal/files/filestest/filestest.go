// Package filestest has a folder in memory for tests of what a full disk, a failing one
// and a power cut leave.
package filestest

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"syscall"

	"github.com/snug-ml/snug/internal/files"
)

// Dir is a folder in memory that knows what a disk would have kept: a write may be lost,
// or kept in part, until the file is synced, and a creation, a renaming or a removal
// until the folder is.
type Dir struct {
	*disk
	path    string
	names   map[string]node // what the process sees
	durable map[string]node
	pending []func(map[string]node) // changes of names since Sync
	locked  map[string]bool
}

// disk is what the folders of a tree share.
type disk struct {
	mu      sync.Mutex
	reads   int // so far
	changes int // so far
	calls   int // so far, of both and all others

	change, call failure
}

// failure is which operation fails, from 1; 0 for none.
type failure struct {
	at    int
	stop  bool // and all that follow, as if the machine had stopped
	cause error
}

func (f failure) of(n int) error {
	if f.at > 0 && (n == f.at || f.stop && n > f.at) {
		return f.cause
	}
	return nil
}

// node is a *Dir or a *File.
type node interface {
	survivor(d *disk, path string, rng *rand.Rand) node
}

// File is a file of a [Dir].
type File struct {
	disk    *disk
	path    string
	perm    fs.FileMode
	data    []byte // what the process sees
	durable []byte
	pending []change // since Sync
}

// change is a write, or a truncation if bytes is nil.
type change struct {
	off   int64
	bytes []byte
}

// New returns an empty folder.
func New() *Dir { return newDir(&disk{}, "mem") }

func newDir(d *disk, path string) *Dir {
	return &Dir{disk: d, path: path, names: map[string]node{}, durable: map[string]node{}, locked: map[string]bool{}}
}

// Counts returns how many reads and changes there were, and how many calls in all.
func (d *Dir) Counts() (reads, changes, calls int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.reads, d.changes, d.calls
}

// FailChange lets the n-th change from now on fail with an error, and with stop all that
// follow. 0 ends that.
func (d *Dir) FailChange(n int, stop bool, cause error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.change = failure{}
	if n > 0 {
		d.change = failure{d.changes + n, stop, cause}
	}
}

// FailCall is [Dir.FailChange] for calls of any kind: also opening, listing, reading and
// closing.
func (d *Dir) FailCall(n int, stop bool, cause error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.call = failure{}
	if n > 0 {
		d.call = failure{d.calls + n, stop, cause}
	}
}

// Unlock frees the locks, as the end of a process does.
func (d *Dir) Unlock() {
	d.mu.Lock()
	defer d.mu.Unlock()
	clear(d.locked)
}

// Bytes returns the contents of a file, which the caller may change in place; nil if it
// is not there.
func (d *Dir) Bytes(name string) []byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	if f, ok := d.names[name].(*File); ok {
		return f.data
	}
	return nil
}

// Bytes returns the contents, which the caller may change in place.
func (f *File) Bytes() []byte {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	return f.data
}

// Flip changes a bit of the byte at an offset of a file.
func (d *Dir) Flip(name string, off int64) {
	b := d.Bytes(name)
	d.mu.Lock()
	defer d.mu.Unlock()
	b[off] ^= 1
}

// SetBytes replaces the contents of a file, durably, and makes it if it is missing.
func (d *Dir) SetBytes(name string, data []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f, ok := d.names[name].(*File)
	if !ok {
		f = &File{disk: d.disk, path: d.Path(name), perm: 0o600}
		d.names[name], d.durable[name] = f, f
	}
	f.data, f.durable, f.pending = data, slices.Clone(data), nil
}

// Names returns the names of the entries, in order.
func (d *Dir) Names() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Sorted(maps.Keys(d.names))
}

// Crash returns what a disk might hold if the machine stopped now: the durable state,
// some of the changes of names in order, and some of the writes in any order and cut
// anywhere.
func (d *Dir) Crash(rng *rand.Rand) *Dir {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.survivor(&disk{}, d.path, rng).(*Dir)
}

func (d *Dir) survivor(disk *disk, path string, rng *rand.Rand) node {
	after := newDir(disk, path)
	names := maps.Clone(d.durable)
	for _, do := range d.pending[:rng.IntN(len(d.pending)+1)] {
		do(names)
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		n := names[name].survivor(disk, after.Path(name), rng)
		after.names[name], after.durable[name] = n, n
	}
	return after
}

func (f *File) survivor(disk *disk, path string, rng *rand.Rand) node {
	after := &File{disk: disk, path: path, perm: f.perm, data: slices.Clone(f.durable)}
	for _, i := range rng.Perm(len(f.pending)) {
		c := f.pending[i]
		if rng.IntN(2) == 0 {
			continue
		}
		if c.bytes != nil && rng.IntN(2) == 0 {
			c.bytes = c.bytes[:rng.IntN(len(c.bytes)+1)]
		}
		after.data = c.applied(after.data)
	}
	after.durable = slices.Clone(after.data)
	return after
}

// called counts a call and says whether it fails. The caller holds mu.
func (d *disk) called(op, path string) error {
	d.calls++
	if err := d.call.of(d.calls); err != nil {
		return &fs.PathError{Op: op, Path: path, Err: err}
	}
	return nil
}

// changed counts a change, which is a call too, and says whether it fails.
func (d *disk) changed(op, path string) error {
	d.changes++
	err := d.called(op, path)
	if cause := d.change.of(d.changes); cause != nil {
		err = &fs.PathError{Op: op, Path: path, Err: cause}
	}
	return err
}

// rename records a change of names.
func (d *Dir) rename(do func(map[string]node)) {
	do(d.names)
	d.pending = append(d.pending, do)
}

func (d *Dir) missing(op, name string) error {
	return &fs.PathError{Op: op, Path: d.Path(name), Err: fs.ErrNotExist}
}

func (d *Dir) Path(name string) string { return d.path + "/" + name }

func (d *Dir) Open(name string, flag int) (files.File, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	n, ok := d.names[name]
	f, regular := n.(*File)
	switch {
	case ok && !regular:
		return nil, &fs.PathError{Op: "open", Path: d.Path(name), Err: syscall.EISDIR}
	case !ok && flag&os.O_CREATE == 0:
		if err := d.called("open", d.Path(name)); err != nil {
			return nil, err
		}
		return nil, d.missing("open", name)
	case !ok:
		return d.create(name, 0o600)
	case flag&os.O_TRUNC != 0:
		if err := d.changed("open", d.Path(name)); err != nil {
			return nil, err
		}
		f.apply(change{})
	default:
		if err := d.called("open", d.Path(name)); err != nil {
			return nil, err
		}
	}
	return f, nil
}

func (d *Dir) create(name string, perm fs.FileMode) (files.File, error) {
	if err := d.changed("create", d.Path(name)); err != nil {
		return nil, err
	}
	f := &File{disk: d.disk, path: d.Path(name), perm: perm}
	d.rename(func(names map[string]node) { names[name] = f })
	return f, nil
}

func (d *Dir) Create(name string, perm fs.FileMode) (files.File, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, ok := d.names[name]; ok {
		return nil, &fs.PathError{Op: "create", Path: d.Path(name), Err: fs.ErrExist}
	}
	return d.create(name, perm)
}

func (d *Dir) Mkdir(name string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, ok := d.names[name]; ok {
		return &fs.PathError{Op: "mkdir", Path: d.Path(name), Err: fs.ErrExist}
	}
	if err := d.changed("mkdir", d.Path(name)); err != nil {
		return err
	}
	folder := newDir(d.disk, d.Path(name))
	d.rename(func(names map[string]node) { names[name] = folder })
	return nil
}

func (d *Dir) Folder(name string) (files.Dir, error) {
	folder, err := d.Sub(name)
	if err != nil {
		return nil, err
	}
	return folder, nil
}

// Sub is [Dir.Folder] with the type of this package.
func (d *Dir) Sub(name string) (*Dir, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.called("open", d.Path(name)); err != nil {
		return nil, err
	}
	folder, ok := d.names[name].(*Dir)
	if !ok {
		return nil, d.missing("open", name)
	}
	return folder, nil
}

func (d *Dir) List() ([]files.Entry, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.called("list", d.path); err != nil {
		return nil, err
	}
	var list []files.Entry
	for _, name := range slices.Sorted(maps.Keys(d.names)) {
		e := files.Entry{Name: name}
		if _, ok := d.names[name].(*Dir); ok {
			e.Type = fs.ModeDir
		}
		list = append(list, e)
	}
	return list, nil
}

func (d *Dir) Mode(name string) (fs.FileMode, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.called("stat", d.Path(name)); err != nil {
		return 0, err
	}
	switch n := d.names[name].(type) {
	case *File:
		return n.perm, nil
	case *Dir:
		return fs.ModeDir | 0o700, nil
	}
	return 0, d.missing("stat", name)
}

// Rename replaces a file, or an empty folder by a folder.
func (d *Dir) Rename(from, to string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	n, ok := d.names[from]
	if !ok {
		return d.missing("rename", from)
	}
	if err := d.changed("rename", d.Path(to)); err != nil {
		return err
	}
	if old, ok := d.names[to].(*Dir); ok && len(old.names) > 0 {
		return &fs.PathError{Op: "rename", Path: d.Path(to), Err: syscall.ENOTEMPTY}
	}
	switch n := n.(type) {
	case *File:
		n.path = d.Path(to)
	case *Dir:
		n.path = d.Path(to)
	}
	d.rename(func(names map[string]node) {
		delete(names, from)
		names[to] = n
	})
	return nil
}

// Place is Rename where nothing is.
func (d *Dir) Place(from, to string) error {
	d.mu.Lock()
	_, there := d.names[to]
	d.mu.Unlock()
	if there {
		return &fs.PathError{Op: "rename", Path: d.Path(to), Err: fs.ErrExist}
	}
	return d.Rename(from, to)
}

func (d *Dir) Remove(name string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	n, ok := d.names[name]
	if !ok {
		return d.missing("remove", name)
	}
	if err := d.changed("remove", d.Path(name)); err != nil {
		return err
	}
	if folder, ok := n.(*Dir); ok && len(folder.names) > 0 {
		return &fs.PathError{Op: "remove", Path: d.Path(name), Err: syscall.ENOTEMPTY}
	}
	d.rename(func(names map[string]node) { delete(names, name) })
	return nil
}

func (d *Dir) Sync() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.changed("sync", d.path); err != nil {
		return err
	}
	for _, do := range d.pending {
		do(d.durable)
	}
	d.pending = nil
	return nil
}

func (d *Dir) Lock(name string) (io.Closer, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.called("lock", d.Path(name)); err != nil {
		return nil, err
	}
	if d.locked[name] {
		return nil, fmt.Errorf("%s is locked: %w", d.Path(name), files.ErrLocked)
	}
	d.locked[name] = true
	return &lock{d, name}, nil
}

type lock struct {
	d    *Dir
	name string
}

func (l *lock) Close() error {
	l.d.mu.Lock()
	defer l.d.mu.Unlock()
	delete(l.d.locked, l.name)
	return nil
}

// Hold returns a file whose Close frees the lock.
func (d *Dir) Hold(name string, perm fs.FileMode) (files.File, error) {
	l, err := d.Lock(name)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	_, left := d.names[name]
	d.mu.Unlock()
	if left {
		err = d.Remove(name)
	}
	var f files.File
	if err == nil {
		f, err = d.Create(name, perm)
	}
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return held{f, l}, nil
}

type held struct {
	files.File
	lock io.Closer
}

func (h held) Close() error { return errors.Join(h.File.Close(), h.lock.Close()) }
