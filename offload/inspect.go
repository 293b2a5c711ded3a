package offload

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/crc32c"
	"github.com/snug-ml/snug/internal/files"
)

// Info describes a blob or a tensor of a store.
type Info struct {
	Name      string
	DType     snug.DType // element type; 0 for a blob
	Len       int        // number of elements; bytes for a blob
	PageLen   int        // elements of each page but the last
	Pages     int
	Bytes     int64  // bytes of all elements
	DiskBytes int64  // bytes of the pages that were written; other pages are zeros
	CRC       uint32 // CRC-32C of all elements in their order, whatever their pages
}

// Contents lists the blobs and tensors of the last commit of the store in directory dir,
// sorted by name. It reads only the index and writes nothing, so that the store may be in
// use. A store without a commit is empty.
//
// Errors: [snug.ErrConfig] when dir holds no store, [snug.ErrCorrupt] for a damaged
// index, or an index that is missing although a store with pages was closed, and errors
// of the operating system.
func Contents(dir string) ([]Info, error) {
	if err := checkFolder(dir); err != nil {
		return nil, err
	}
	objects, err := inspect(files.OS(dir))
	if err != nil {
		return nil, in(err, "contents")
	}
	list := make([]Info, len(objects))
	for i, obj := range objects {
		list[i] = obj.info()
	}
	return list, nil
}

// inspect returns the blobs and tensors of the last commit, sorted by name.
func inspect(fs files.Dir) ([]*object, error) {
	marked := marked(fs) // before the index: a store that is open may commit and close meanwhile
	objects, err := loadIndex(fs)
	if errors.Is(err, os.ErrNotExist) {
		f, err := fs.Open(dataName, readOnly)
		if errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("the folder has no %s, so it is no store: %w", dataName, snug.ErrConfig)
		}
		if err != nil {
			return nil, err
		}
		size, err := f.Size()
		if err = errors.Join(err, f.Close()); err != nil {
			return nil, err
		}
		return nil, lostIndex(fs, size, marked)
	}
	slices.SortFunc(objects, func(a, b *object) int { return cmp.Compare(a.name, b.name) })
	return objects, err
}

func (obj *object) info() Info {
	in := Info{Name: obj.name, DType: obj.dtype, Len: obj.n, PageLen: obj.pageLen, Pages: len(obj.pages)}
	for i := range obj.pages {
		p := &obj.pages[i]
		size, crc := int64(p.size), zeros(int64(p.size))
		if p.slot.n > 0 {
			crc = p.crc
			in.DiskBytes += size
		}
		in.Bytes += size
		in.CRC = joined(in.CRC, crc, size)
	}
	return in
}

// Verified is the result of [Verify].
type Verified struct {
	Pages   int          // number of pages that were written to disk
	Bytes   int64        // bytes of these pages
	Damaged []*PageError // pages that differ from the commit, by name and number
}

// Verify reads every page of the last commit of the store in directory dir and compares
// it with its checksum. It holds the lock and changes nothing else. It has 128 KiB of
// pages in memory at a time.
//
// The error wraps [snug.ErrCorrupt] when pages are damaged. It joins the [PageError] of
// each damaged page; the result lists them too. Other errors: errors of [Contents], and
// [snug.ErrConfig] for a store in use. Verify stops at an error of the operating system.
func Verify(dir string) (Verified, error) {
	if err := checkFolder(dir); err != nil {
		return Verified{}, err
	}
	v, err := verify(files.OS(dir))
	if err != nil {
		return v, in(err, "verify")
	}
	if len(v.Damaged) > 0 {
		errs := make([]error, len(v.Damaged))
		for i, d := range v.Damaged {
			errs[i] = d
		}
		return v, errors.Join(errs...)
	}
	return v, nil
}

func verify(fs files.Dir) (v Verified, err error) {
	if _, err := inspect(fs); err != nil { // before the lock makes a file
		return v, err
	}
	lock, err := fs.Lock(lockName)
	if err != nil {
		return v, err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	objects, err := inspect(fs)
	if err != nil {
		return v, err
	}
	data, err := fs.Open(dataName, readOnly)
	if err != nil {
		return v, err
	}
	defer func() { err = errors.Join(err, data.Close()) }()
	buf := make([]byte, pieceBytes) // the index may claim pages that are larger than the file
	for _, obj := range objects {
		for i := range obj.pages {
			p := &obj.pages[i]
			if p.slot.n == 0 {
				continue
			}
			err := p.check(fs, data, buf)
			var damage *PageError
			switch {
			case err == nil:
			case errors.As(err, &damage):
				v.Damaged = append(v.Damaged, damage)
			default:
				return v, err
			}
			v.Pages++
			v.Bytes += int64(p.size)
		}
	}
	return v, nil
}

// check reads p's slot of the page file and compares it with its checksum. It fills buf,
// or if buf is shorter than p, passes p through buf.
func (p *page) check(fs files.Dir, data files.File, buf []byte) error {
	sum, step := uint32(0), min(piece(data), len(buf))
	for lo := 0; lo < p.size; lo += step {
		part := buf[:min(step, p.size-lo)]
		if len(buf) >= p.size {
			part = buf[lo : lo+len(part)]
		}
		n, err := data.ReadAt(part, p.slot.off+int64(lo))
		switch {
		case n == len(part):
		case err == nil || errors.Is(err, io.EOF):
			return p.damaged(fs, fmt.Sprintf("the file ends after %d of %d bytes", lo+n, p.size))
		default:
			return in(err, "read %v at offset %d", p, p.slot.off)
		}
		sum = crc32c.Update(sum, part)
	}
	if sum != p.crc {
		return p.damaged(fs, fmt.Sprintf("checksum %#08x, want %#08x", sum, p.crc))
	}
	return nil
}

func (p *page) damaged(fs files.Dir, reason string) error {
	return &PageError{File: fs.Path(dataName), Name: p.obj.name, DType: p.obj.dtype, Page: p.num, Offset: p.slot.off, Reason: reason}
}
