package filestest

import (
	"io"
	"io/fs"
)

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

func (f *File) apply(c change) {
	f.data = c.applied(f.data)
	f.pending = append(f.pending, c)
}

func (f *File) ReadAt(b []byte, off int64) (int, error) {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	f.disk.reads++
	if err := f.disk.called("read", f.path); err != nil {
		return 0, err
	}
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
func (f *File) WriteAt(b []byte, off int64) (int, error) {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	err := f.disk.changed("write", f.path)
	if err != nil {
		b = b[:len(b)/2]
	}
	f.apply(change{off, append([]byte{}, b...)})
	return len(b), err
}

func (f *File) Truncate(size int64) error {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	if err := f.disk.changed("truncate", f.path); err != nil {
		return err
	}
	f.apply(change{off: size})
	return nil
}

func (f *File) Chmod(perm fs.FileMode) error {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	if err := f.disk.changed("chmod", f.path); err != nil {
		return err
	}
	f.perm = perm
	return nil
}

// Sync forgets what was to be written when it fails, as operating systems do: the
// process still reads it, the disk never gets it.
func (f *File) Sync() error {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	err := f.disk.changed("sync", f.path)
	if err == nil {
		for _, c := range f.pending {
			f.durable = c.applied(f.durable)
		}
	}
	f.pending = nil
	return err
}

func (f *File) Size() (int64, error) {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	if err := f.disk.called("stat", f.path); err != nil {
		return 0, err
	}
	return int64(len(f.data)), nil
}

func (f *File) Close() error {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	return f.disk.called("close", f.path)
}
