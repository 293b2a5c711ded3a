package files

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"github.com/snug-ml/snug"
)

// Dir is a folder of files and folders. Package filestest has one in memory that fails
// on request and loses what was not synced.
type Dir interface {
	// Path returns the path of an entry, for messages.
	Path(name string) string
	// Open opens a file with os.O_RDONLY or os.O_RDWR; with os.O_CREATE it makes a
	// missing file with mode 0600, with os.O_TRUNC it empties the file.
	Open(name string, flag int) (File, error)
	// Create makes a file, which must not exist, with these permissions less the
	// process's umask.
	Create(name string, perm fs.FileMode) (File, error)
	// Mkdir makes a folder, which must not exist, with mode 0700.
	Mkdir(name string) error
	// Folder returns a folder of this one.
	Folder(name string) (Dir, error)
	// List returns the entries by name.
	List() ([]Entry, error)
	// Mode returns the mode of an entry, or of the file that it links to.
	Mode(name string) (fs.FileMode, error)
	Rename(from, to string) error
	// Place is Rename to a name that nothing has; otherwise the error wraps [fs.ErrExist].
	Place(from, to string) error
	// Remove removes a file or an empty folder.
	Remove(name string) error
	// Sync makes the entries durable: what was made, renamed and removed.
	Sync() error
	// Lock makes a file, if it is missing, and holds a lock on it until it is closed
	// or the process ends. The error for a lock that is held wraps [ErrLocked].
	Lock(name string) (io.Closer, error)
	// Hold makes a file, as Create does, and holds a lock on it, as Lock does. It may be renamed meanwhile. A file that a
	// killed process left under the name is removed.
	Hold(name string, perm fs.FileMode) (File, error)
}

// Entry is a file or a folder in a [Dir].
type Entry struct {
	Name string
	Type fs.FileMode // its type bits; links are not followed
}

// File is an open file of a [Dir].
type File interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	Size() (int64, error)
	Truncate(size int64) error
	Chmod(perm fs.FileMode) error
	Sync() error
}

// ErrLocked says that somebody else holds a lock. It wraps [snug.ErrConfig].
var ErrLocked = fmt.Errorf("it is in use, here or in another process: %w", snug.ErrConfig)

// RemoveAll removes an entry, with its contents if it is a folder.
func RemoveAll(d Dir, name string) error {
	folder, err := d.Folder(name)
	if errors.Is(err, snug.ErrConfig) || errors.Is(err, fs.ErrNotExist) {
		return d.Remove(name) // which is no folder
	}
	if err != nil {
		return err
	}
	entries, err := folder.List()
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := RemoveAll(folder, e.Name); err != nil {
			return err
		}
	}
	return d.Remove(name)
}

// osDir is a folder of the operating system. It opens no links, pipes and devices, and
// no files that another user planted: files belong to the user of the process, to root,
// or to the owner of the folder (for file systems that map users), and are not writable
// by everybody. A file to be written has one name only.
type osDir string

// OS returns a folder of the operating system. It need not exist.
func OS(dir string) Dir { return osDir(dir) }

// Make returns a folder of the operating system. It makes missing folders, with mode
// 0700, durably.
func Make(dir string) (Dir, error) {
	dir = filepath.Clean(dir)
	var missing []string
	for path := dir; ; path = filepath.Dir(path) {
		info, err := os.Stat(path)
		if err == nil && !info.IsDir() {
			return nil, fmt.Errorf("%s is a file, want a folder: %w", path, snug.ErrConfig)
		}
		if err == nil || filepath.Dir(path) == path {
			break
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		missing = append(missing, path)
	}
	for _, path := range slices.Backward(missing) {
		if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
		if err := osDir(filepath.Dir(path)).Sync(); err != nil {
			return nil, err
		}
	}
	return osDir(dir), nil
}

func (d osDir) Path(name string) string { return filepath.Join(string(d), name) }

// valid returns the path of a name that leads to no other folder.
func (d osDir) valid(name string) (string, error) {
	if name == "" || name == "." || name == ".." || strings.ContainsAny(name, `/\`) || !filepath.IsLocal(name) {
		return "", fmt.Errorf("%.100q is not the name of a file in %s: %w", name, string(d), snug.ErrConfig)
	}
	return d.Path(name), nil
}

func (d osDir) Open(name string, flag int) (File, error) {
	f, err := d.open(name, flag)
	if err != nil {
		return nil, err
	}
	return osFile{f}, nil
}

func (d osDir) open(name string, flag int) (*os.File, error) {
	path, err := d.valid(name)
	if err != nil {
		return nil, err
	}
	if info, err := os.Lstat(path); err == nil && !info.Mode().IsRegular() {
		return nil, notRegular(path, info.Mode())
	}
	f, err := os.OpenFile(path, flag&^os.O_TRUNC|noFollow|nonBlock, 0o600)
	if err != nil {
		return nil, err
	}
	err = d.trusted(f, flag&os.O_RDWR != 0)
	if err == nil && flag&os.O_TRUNC != 0 {
		err = f.Truncate(0)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// trusted checks that an open file is one that its owner put here.
func (d osDir) trusted(f *os.File, write bool) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return notRegular(f.Name(), info.Mode())
	}
	folder, err := os.Stat(string(d))
	if err != nil {
		return err
	}
	if problem := foreign(info, folder, write); problem != "" {
		return fmt.Errorf("%s %s: %w", f.Name(), problem, snug.ErrConfig)
	}
	return nil
}

func (d osDir) Create(name string, perm fs.FileMode) (File, error) {
	path, err := d.valid(name)
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, perm)
	if err != nil {
		return nil, err
	}
	return osFile{f}, nil
}

func (d osDir) Mkdir(name string) error {
	path, err := d.valid(name)
	if err != nil {
		return err
	}
	return os.Mkdir(path, 0o700)
}

func (d osDir) Folder(name string) (Dir, error) {
	path, err := d.valid(name)
	if err != nil {
		return nil, err
	}
	info, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return nil, fmt.Errorf("%s is not a folder: %w", path, snug.ErrConfig)
	}
	return osDir(path), nil
}

func (d osDir) List() ([]Entry, error) {
	found, err := os.ReadDir(string(d))
	if err != nil {
		return nil, err
	}
	entries := make([]Entry, len(found))
	for i, e := range found {
		entries[i] = Entry{e.Name(), e.Type()}
	}
	return entries, nil
}

func (d osDir) Mode(name string) (fs.FileMode, error) {
	path, err := d.valid(name)
	if err != nil {
		return 0, err
	}
	info, err := os.Stat(path)
	if err != nil {
		return 0, err
	}
	return info.Mode(), nil
}

func (d osDir) Rename(from, to string) error { return os.Rename(d.Path(from), d.Path(to)) }

func (d osDir) Remove(name string) error {
	path, err := d.valid(name)
	if err != nil {
		return err
	}
	return os.Remove(path)
}

func (d osDir) Sync() error {
	if runtime.GOOS == "windows" {
		return nil // folders cannot be synced, and need not be
	}
	f, err := os.Open(string(d))
	if err != nil {
		return err
	}
	err = f.Sync()
	if errors.Is(err, errors.ErrUnsupported) || errors.Is(err, syscall.EINVAL) {
		err = nil // not every file system can
	}
	return errors.Join(err, f.Close())
}

type osFile struct{ *os.File }

func (f osFile) Size() (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// Of returns an open file of the operating system as a [File].
func Of(f *os.File) File { return osFile{f} }
