package offload

import (
	"errors"
	"os"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/snug-ml/snug/internal/files"
)

// direct is the page file without the operating system's cache. Transfers that are not
// aligned go through the plain file, and so do all transfers after the file system has
// refused one.
type direct struct {
	files.File
	past    *os.File
	refused atomic.Bool
}

// directFile opens the file at path, which is open as plain, for direct I/O. It returns
// nil if this is not possible, or if another file has the name since.
func directFile(path string, plain files.File) *direct {
	past, err := openDirect(path)
	if err != nil {
		return nil
	}
	if !sameFile(plain, past) {
		_ = past.Close() // nothing was written
		return nil
	}
	return &direct{File: plain, past: past}
}

// sameFile reports whether a and b are one file of the operating system.
func sameFile(a, b any) bool {
	first, err := stat(a)
	if err != nil || first == nil {
		return false
	}
	second, err := stat(b)
	return err == nil && second != nil && os.SameFile(first, second)
}

// stat describes a file of the operating system. It returns nil for any other file.
func stat(file any) (os.FileInfo, error) {
	if d, ok := file.(*direct); ok {
		file = d.File
	}
	if system, ok := file.(interface{ Stat() (os.FileInfo, error) }); ok {
		return system.Stat()
	}
	return nil, nil
}

// whole returns b extended to a multiple of directAlignment within its capacity, or nil
// if b or off is not aligned.
func (d *direct) whole(b []byte, off int64) []byte {
	n := roundUp(len(b), directAlignment)
	if d.refused.Load() || n > cap(b) || off%directAlignment != 0 || uintptr(unsafe.Pointer(unsafe.SliceData(b)))%directAlignment != 0 {
		return nil
	}
	return b[:n]
}

// refuses reports whether err says that the file system has no direct I/O.
func (d *direct) refuses(err error) bool {
	if errors.Is(err, syscall.EINVAL) || errors.Is(err, errors.ErrUnsupported) {
		d.refused.Store(true)
		return true
	}
	return false
}

func (d *direct) ReadAt(b []byte, off int64) (int, error) {
	if all := d.whole(b, off); all != nil {
		n, err := d.past.ReadAt(all, off)
		if n >= len(b) {
			return len(b), nil
		}
		if !d.refuses(err) {
			return n, err
		}
	}
	return d.File.ReadAt(b, off)
}

// WriteAt also writes zeros up to a multiple of directAlignment, within the slot.
func (d *direct) WriteAt(b []byte, off int64) (int, error) {
	if all := d.whole(b, off); all != nil {
		clear(all[len(b):])
		n, err := d.past.WriteAt(all, off)
		if err == nil || !d.refuses(err) {
			return min(n, len(b)), err
		}
	}
	return d.File.WriteAt(b, off)
}

func (d *direct) Close() error { return errors.Join(d.past.Close(), d.File.Close()) }
