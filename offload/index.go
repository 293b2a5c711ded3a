package offload

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/crc32c"
	"github.com/snug-ml/snug/internal/files"
)

// The index file says where the pages of one commit lie. Numbers are
// little-endian but for the byte order mark.
//
//	header   "SNUGPAGE", version u32, byte order mark u16, objects u32
//	object   dtype u8 (0: blob), name length u16, name,
//	         elements u64, elements of a page u64, then for each page
//	         offset u64 (all ones: zeros, no slot), CRC-32C of the bytes u32
//	trailer  sealed CRC-32C of all before (see crc32c.Seal), u32
//
// A page's checksum lies here and not beside the page, so that a page of
// another commit at the same place does not pass.
const (
	indexMagic   = "SNUGPAGE"
	indexVersion = 1
	headerSize   = 8 + 4 + 2 + 4
	entrySize    = 8 + 4 // of a page
	noSlot       = math.MaxUint64
	orderMark    = 0x0102 // in the byte order of the machine whose pages these are
)

// encodeIndex returns the index of all pages, which must be clean, but for those of
// attached tensors.
func (s *Store) encodeIndex() []byte {
	b := append([]byte(nil), indexMagic...)
	b = binary.LittleEndian.AppendUint32(b, indexVersion)
	b = binary.NativeEndian.AppendUint16(b, orderMark)
	durable := maps.Clone(s.objects)
	maps.DeleteFunc(durable, func(_ string, obj *object) bool { return obj.source != nil })
	b = binary.LittleEndian.AppendUint32(b, uint32(len(durable)))
	for _, name := range slices.Sorted(maps.Keys(durable)) {
		obj := durable[name]
		b = append(b, byte(obj.dtype))
		b = binary.LittleEndian.AppendUint16(b, uint16(len(name)))
		b = append(b, name...)
		b = binary.LittleEndian.AppendUint64(b, uint64(obj.n))
		b = binary.LittleEndian.AppendUint64(b, uint64(obj.pageLen))
		for i := range obj.pages {
			p, off := &obj.pages[i], uint64(noSlot)
			if p.slot.n > 0 {
				off = uint64(p.slot.off)
			}
			b = binary.LittleEndian.AppendUint64(b, off)
			b = binary.LittleEndian.AppendUint32(b, p.crc)
		}
	}
	return binary.LittleEndian.AppendUint32(b, crc32c.Seal(crc32c.Checksum(b)))
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

// lostIndex returns an error when a store without an index had a commit: its page file is
// not empty, and no mark says that it was open before the first commit.
func lostIndex(fs files.Dir, dataSize int64, marked bool) error {
	if dataSize == 0 || marked {
		return nil
	}
	return fmt.Errorf("%s is missing, but %s has %d bytes of a store that was closed; put the index back, or remove the page file to begin anew: %w",
		fs.Path(indexName), fs.Path(dataName), dataSize, snug.ErrCorrupt)
}

// loadIndex returns the objects of the last commit. The error wraps [os.ErrNotExist]
// when there was none.
func loadIndex(fs files.Dir) ([]*object, error) {
	f, err := fs.Open(indexName, readOnly)
	if err != nil {
		return nil, err
	}
	b, err := readIndexFile(f, fs.Path(indexName))
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	objects, err := decodeIndex(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", fs.Path(indexName), err)
	}
	return objects, nil
}

// maxIndex bounds the bytes of an index, which is in memory while it is read or written:
// some 85 million pages, on machines of 32 bits a fourth.
const maxIndex = min(1<<30, math.MaxInt>>3)

// readIndexFile returns the contents of f, an index. A size that no index has, as of a
// file with a hole, is refused before memory is made for it.
func readIndexFile(f files.File, path string) ([]byte, error) {
	size, err := f.Size()
	if err != nil {
		return nil, err
	}
	var mark [len(indexMagic)]byte
	if n, err := f.ReadAt(mark[:], 0); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	} else if string(mark[:n]) != indexMagic {
		return nil, fmt.Errorf("%s: %d bytes that do not start with the mark of an index: %w", path, size, snug.ErrCorrupt)
	}
	if size > maxIndex {
		return nil, fmt.Errorf("%s: %d bytes, want %d at most: %w", path, size, maxIndex, snug.ErrCorrupt)
	}
	b := make([]byte, size)
	n, err := f.ReadAt(b, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return b[:n], nil
}

// decodeIndex returns the objects of an index.
func decodeIndex(b []byte) ([]*object, error) {
	if len(b) < headerSize+4 || string(b[:8]) != indexMagic {
		return nil, fmt.Errorf("%d bytes that do not start with the mark of an index: %w", len(b), snug.ErrCorrupt)
	}
	body, trailer := b[:len(b)-4], binary.LittleEndian.Uint32(b[len(b)-4:])
	if sum := crc32c.Seal(crc32c.Checksum(body)); sum != trailer {
		return nil, fmt.Errorf("checksum %#08x, want %#08x: %w", sum, trailer, snug.ErrCorrupt)
	}
	if v := binary.LittleEndian.Uint32(b[8:]); v != indexVersion {
		return nil, fmt.Errorf("version %d, want %d: %w", v, indexVersion, snug.ErrCorrupt)
	}
	if binary.NativeEndian.Uint16(b[12:]) != orderMark {
		return nil, fmt.Errorf("made on a machine of the other byte order: %w", snug.ErrConfig)
	}
	d := decoder{b: body[headerSize:]}
	count := binary.LittleEndian.Uint32(b[14:])
	var objects []*object
	seen := map[string]bool{}
	for range count {
		obj := d.object()
		if d.bad || seen[obj.name] {
			return nil, fmt.Errorf("object %d of %d is malformed: %w", len(objects), count, snug.ErrCorrupt)
		}
		seen[obj.name] = true
		objects = append(objects, obj)
	}
	if len(d.b) != 0 {
		return nil, fmt.Errorf("%d bytes after the last object: %w", len(d.b), snug.ErrCorrupt)
	}
	return objects, nil
}

// decoder reads fields from b. Once bad it yields zeros.
type decoder struct {
	b   []byte
	bad bool
}

func (d *decoder) bytes(n int) []byte {
	if d.bad || len(d.b) < n {
		d.bad = true
		return make([]byte, n)
	}
	field := d.b[:n]
	d.b = d.b[n:]
	return field
}

func (d *decoder) u16() uint16 { return binary.LittleEndian.Uint16(d.bytes(2)) }
func (d *decoder) u32() uint32 { return binary.LittleEndian.Uint32(d.bytes(4)) }
func (d *decoder) u64() uint64 { return binary.LittleEndian.Uint64(d.bytes(8)) }

// int returns a u64 that must be a non-negative int.
func (d *decoder) int() int {
	x := d.u64()
	if x > math.MaxInt {
		d.bad = true
		return 0
	}
	return int(x)
}

// object reads one object, and bounds what it allocates by the bytes there are.
func (d *decoder) object() *object {
	dt := snug.DType(d.bytes(1)[0])
	name := string(d.bytes(int(d.u16())))
	n, pageLen := d.int(), d.int()
	if d.bad || checkKey(name) != nil {
		d.bad = true
		return &object{}
	}
	var obj *object
	switch {
	case dt == 0 && n <= MaxPage && pageLen == n:
		obj = newBlob(name, n)
	case dt != 0 && checkTensor(name, dt, n, pageLen) == nil && pageCount(n, pageLen) <= len(d.b)/entrySize:
		obj = newTensor(name, dt, n, pageLen)
	default:
		d.bad = true
		return &object{}
	}
	for i := range obj.pages {
		p := &obj.pages[i]
		off, crc := d.u64(), d.u32()
		p.crc = crc
		if off == noSlot {
			continue
		}
		if off%slotAlign != 0 || off > math.MaxInt64-MaxPage || p.size == 0 {
			d.bad = true
			return obj
		}
		p.slot, p.frozen = extent{int64(off), roundUp(int64(p.size), slotAlign)}, true
	}
	return obj
}
