package offload

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/files"
	"github.com/snug-ml/snug/internal/state"
)

// The index file says where the pages of one commit lie. It is the header of a saved
// state, see package state, with these fields:
//
//	byte order mark, 2 bytes in the order of the machine whose pages these are; objects u32
//	object   dtype u8 (0: blob), name,
//	         elements u64, elements of a page u64, then for each page
//	         offset u64 (all ones: zeros, no slot), CRC-32C of the bytes u32
//
// A page's checksum lies in the index and not with the page, so that a page of
// another commit at the same offset does not pass.
const (
	indexMagic = "SNUGPAGE"
	entrySize  = 8 + 4 // bytes of a page's entry
	noSlot     = math.MaxUint64
	orderMark  = 0x0102
)

// encodeIndex returns the index of objects, by name, with the entries of all their pages.
func encodeIndex(objects []*object, entries []entry) ([]byte, error) {
	e := state.NewHeader(indexMagic)
	e.Put(binary.NativeEndian.AppendUint16(nil, orderMark))
	e.Put(uint32(len(objects)))
	var text []byte
	for _, obj := range objects {
		e.Put(uint8(obj.dtype))
		e.PutName(obj.name)
		e.Put([]uint64{uint64(obj.n), uint64(obj.pageLen)})
		text = text[:0]
		for _, at := range entries[:len(obj.pages)] {
			text = binary.LittleEndian.AppendUint64(text, at.off)
			text = binary.LittleEndian.AppendUint32(text, at.crc)
		}
		entries = entries[len(obj.pages):]
		e.Put(text)
	}
	return e.Bytes()
}

// readIndex loads the last commit, if there is one. dataSize is the length of
// the page file.
func (s *Store) readIndex(dataSize int64) error {
	objects, err := loadIndex(s.fs)
	if errors.Is(err, os.ErrNotExist) {
		return lostIndex(s.fs, dataSize, s.left)
	}
	if err != nil {
		return err
	}
	s.kept = true
	var used []extent
	for _, obj := range objects {
		s.add(obj)
		for i := range obj.pages {
			p := &obj.pages[i]
			if p.slot.n == 0 {
				continue
			}
			if p.slot.off > dataSize-int64(p.size) {
				return fmt.Errorf("%s: %v at offset %d: the file ends at %d: %w", s.fs.Path(dataName), p, p.slot.off, dataSize, snug.ErrCorrupt)
			}
			used = append(used, p.slot)
		}
	}
	if s.space, err = newSpace(used); err != nil {
		return fmt.Errorf("%s: %w", s.fs.Path(indexName), err)
	}
	return nil
}

// lostIndex returns an error when a store without an index had a commit. Then its page
// file is not empty, and no mark says that it was open before the first commit.
func lostIndex(fs files.Dir, dataSize int64, marked bool) error {
	if dataSize == 0 || marked {
		return nil
	}
	return fmt.Errorf("%s is missing, but %s has %d bytes of a store that was closed; put the index back, or remove the page file to begin anew: %w",
		fs.Path(indexName), fs.Path(dataName), dataSize, snug.ErrCorrupt)
}

// loadIndex returns the objects of the last commit. The error wraps [os.ErrNotExist] when
// there is no commit.
func loadIndex(fs files.Dir) ([]*object, error) {
	f, err := fs.Open(indexName, readOnly)
	if err != nil {
		return nil, err
	}
	size, err := f.Size()
	var objects []*object
	if err == nil {
		objects, err = decodeIndex(f, size)
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, fmt.Errorf("%s: %w", fs.Path(indexName), err)
	}
	return objects, nil
}

// decodeIndex returns the objects of an index of size bytes. Memory grows only with the
// bytes that are read, so that a file with a hole takes none.
func decodeIndex(r io.ReaderAt, size int64) ([]*object, error) {
	d := state.NewDecoder(io.NewSectionReader(r, 0, size), indexMagic)
	var mark [2]byte
	d.Get(&mark)
	if d.Err == nil && binary.NativeEndian.Uint16(mark[:]) != orderMark {
		return nil, fmt.Errorf("made on a machine with the other byte order: %w", snug.ErrConfig)
	}
	var objects []*object
	seen := map[string]bool{}
	for range d.Count(minObject) {
		obj := getObject(d)
		if d.Err == nil && seen[obj.name] {
			d.Corrupt("two objects %q", obj.name)
		}
		if d.Err != nil {
			break
		}
		seen[obj.name] = true
		objects = append(objects, obj)
	}
	n, err := d.Finish()
	if err == nil && n != size {
		err = fmt.Errorf("%d bytes after the end of the index: %w", size-n, snug.ErrCorrupt)
	}
	return objects, err
}

const minObject = 1 + 4 + 8 + 8 // bytes of an object without a name and pages

// getObject reads one object. It allocates no more than the bytes of the file allow.
func getObject(d *state.Decoder) *object {
	var dtype uint8
	d.Get(&dtype)
	name := d.GetName()
	var sizes [2]uint64
	d.Get(&sizes)
	dt, n, pageLen := snug.DType(dtype), int(sizes[0]), int(sizes[1])
	var obj *object
	switch {
	case d.Err != nil:
	case checkKey(name) != nil || max(sizes[0], sizes[1]) > math.MaxInt:
	case dt == 0 && n <= maxPage && pageLen == n:
		obj = newBlob(name, n)
	case dt != 0 && checkTensor(name, dt, n, pageLen) == nil && pageCount(n, pageLen) <= d.Left()/entrySize:
		obj = newTensor(name, dt, n, pageLen)
	}
	if obj == nil {
		d.Corrupt("object %q of %d elements in pages of %d", name, sizes[0], sizes[1])
		return nil
	}
	entries := make([]byte, entrySize*len(obj.pages))
	d.Get(entries)
	for i := range obj.pages {
		p, entry := &obj.pages[i], entries[entrySize*i:]
		off := binary.LittleEndian.Uint64(entry)
		p.crc = binary.LittleEndian.Uint32(entry[8:])
		if off == noSlot {
			continue
		}
		if off%slotAlign != 0 || off > math.MaxInt64-maxPage || p.size == 0 {
			d.Corrupt("%v at offset %d", p, off)
			return nil
		}
		p.slot, p.uses = extent{int64(off), roundUp(int64(p.size), slotAlign)}, lastCommit
	}
	return obj
}
