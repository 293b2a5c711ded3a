package gguf

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/files"
)

const (
	magic   = "GGUF"
	version = 3

	alignmentKey     = "general.alignment"
	defaultAlignment = 32
	maxDims          = 4
	maxKey           = 1<<16 - 1 // bytes
)

// Tensor describes a tensor.
type Tensor struct {
	Name  string
	Type  Type
	Shape []int // the rows first, as [out, in] of a matrix: the reverse of the order in the file
}

// Bytes returns the bytes of the tensor. Errors: [snug.ErrDType] for a type that is not one of ggml's, [snug.ErrShape] for a
// negative dimension, a row that is no whole blocks, or more bytes than an int64 counts.
func (t Tensor) Bytes() (int64, error) {
	n, err := t.bytes()
	if err != nil {
		return 0, fmt.Errorf("gguf: tensor %.100q: %w", t.Name, err)
	}
	return n, nil
}

func (t Tensor) bytes() (int64, error) {
	if _, known := formats[t.Type]; !known {
		return 0, fmt.Errorf("%s is not one of ggml's: %w", t.Type, snug.ErrDType)
	}
	row, rows := int64(1), int64(1)
	for i, d := range t.Shape {
		switch {
		case d < 0:
			return 0, fmt.Errorf("dimension %d is %d, want 0 or more: %w", i, d, snug.ErrShape)
		case i == len(t.Shape)-1:
			row = int64(d)
		case d > 0 && rows > math.MaxInt64/int64(d):
			return 0, fmt.Errorf("shape %v has too many elements: %w", t.Shape, snug.ErrShape)
		default:
			rows *= int64(d)
		}
	}
	n, err := t.Type.bytes(row)
	if err != nil {
		return 0, fmt.Errorf("a row of %w", err)
	}
	if n > 0 && rows > math.MaxInt64/n || row > 0 && rows > math.MaxInt64/row {
		return 0, fmt.Errorf("shape %v of %s has too many bytes: %w", t.Shape, t.Type, snug.ErrShape)
	}
	return rows * n, nil
}

// entry is a tensor of a file.
type entry struct {
	Tensor
	offset, bytes int64 // in the file that has it
}

// contents are what a file says it has.
type contents struct {
	metadata []Pair
	keys     map[string]int // of metadata
	tensors  []entry
}

// value returns the value of a key, nil without it.
func (c *contents) value(key string) any {
	if i, found := c.keys[key]; found {
		return c.metadata[i].Value
	}
	return nil
}

// short returns a number for a message, and no other values, which may be long.
func short(value any) string {
	if n, is := whole(value); is {
		return strconv.FormatInt(n, 10)
	}
	return "a value"
}

func corrupt(format string, args ...any) error {
	return fmt.Errorf(format+": %w", append(args, snug.ErrCorrupt)...)
}

// reader reads a file from its beginning.
type reader struct {
	buf       *bufio.Reader
	at, limit int64 // offset of what comes, and where reading ends
}

// headerLimit is the bytes before the data at most. The largest vocabularies take less than a tenth of it.
const headerLimit = 256 << 20

func newReader(r io.ReaderAt, size int64) *reader {
	limit := min(size, headerLimit)
	return &reader{buf: bufio.NewReaderSize(io.NewSectionReader(r, 0, limit), int(min(limit, 64<<10))), limit: limit}
}

// holds returns an error if n values of at least so many bytes are more than what is left.
func (r *reader) holds(n uint64, least int64) error {
	if left := r.limit - r.at; n > uint64(left/least) {
		return corrupt("%d values of at least %d bytes at byte %d, only %d follow, of a header of at most %d", n, least, r.at, left, headerLimit)
	}
	return nil
}

// next returns the next bytes, at most those of the buffer. They stay until the next call.
func (r *reader) next(n int) ([]byte, error) {
	b, err := r.buf.Peek(n)
	if err != nil {
		return nil, r.ended(err)
	}
	r.at += int64(n)
	_, err = r.buf.Discard(n)
	return b, err
}

func (r *reader) ended(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return corrupt("the file ends within its header, after byte %d of at most %d", r.at, headerLimit)
	}
	return err
}

func (r *reader) uint32() (uint32, error) {
	b, err := r.next(4)
	if err != nil {
		return 0, err
	}
	return le.Uint32(b), nil
}

func (r *reader) uint64() (uint64, error) {
	b, err := r.next(8)
	if err != nil {
		return 0, err
	}
	return le.Uint64(b), nil
}

func (r *reader) bool() (bool, error) {
	b, err := r.next(1)
	if err != nil {
		return false, err
	}
	if b[0] > 1 {
		return false, corrupt("a bool of %d, want 0 or 1", b[0])
	}
	return b[0] == 1, nil
}

func (r *reader) string() (string, error) {
	n, err := r.uint64()
	if err != nil {
		return "", err
	}
	if err := r.holds(n, 1); err != nil {
		return "", fmt.Errorf("a string: %w", err)
	}
	var s strings.Builder
	s.Grow(int(n))
	for left := int(n); left > 0; {
		b, err := r.next(min(left, r.buf.Size()))
		if err != nil {
			return "", err
		}
		s.Write(b)
		left -= len(b)
	}
	return s.String(), nil
}

// readContents reads and checks what comes before the data of a file of size bytes. It needs a few times the memory of
// that part. The error wraps [snug.ErrCorrupt], unless it is one of the file.
func readContents(file io.ReaderAt, size int64) (*contents, error) {
	r := newReader(file, size)
	tensors, pairs, err := r.counts()
	if err != nil {
		return nil, err
	}
	c := &contents{keys: map[string]int{}}
	for i := range pairs {
		if err := c.readPair(r); err != nil {
			return nil, fmt.Errorf("entry %d of %d of the metadata: %w", i, pairs, err)
		}
	}
	align, err := alignment(c.value(alignmentKey))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", err, snug.ErrCorrupt)
	}
	names := map[string]bool{}
	for i := range tensors {
		t, err := r.tensor()
		if err == nil && names[t.Name] {
			err = corrupt("it comes twice")
		}
		if err != nil {
			return nil, fmt.Errorf("tensor %d of %d, %.100q: %w", i, tensors, t.Name, err)
		}
		names[t.Name] = true
		c.tensors = append(c.tensors, t)
	}
	if err := c.place(r.at, size, align); err != nil {
		return nil, err
	}
	return c, nil
}

// counts reads what a file begins with.
func (r *reader) counts() (tensors, pairs uint64, err error) {
	head, err := r.buf.Peek(int(min(r.limit, 512)))
	if err != nil {
		return 0, 0, r.ended(err)
	}
	if len(head) < 8 || string(head[:4]) != magic {
		if err := files.NotTheFile(head); err != nil {
			return 0, 0, fmt.Errorf("the file %w", err)
		}
		return 0, 0, corrupt("the file begins with %.8q, want %q and a version", head[:min(len(head), 8)], magic)
	}
	switch v := le.Uint32(head[4:]); {
	case v&0xffff == 0:
		return 0, 0, corrupt("the file is of a machine with the other order of bytes, want little-endian")
	case v < 2 || v > version:
		return 0, 0, corrupt("the file has version %d of GGUF, want 2 or %d", v, version)
	}
	if _, err := r.next(8); err != nil {
		return 0, 0, err
	}
	if tensors, err = r.uint64(); err != nil {
		return 0, 0, err
	}
	if pairs, err = r.uint64(); err != nil {
		return 0, 0, err
	}
	if err := r.holds(pairs, 13); err != nil { // a key's length, a type and a byte
		return 0, 0, fmt.Errorf("metadata: %w", err)
	}
	if err := r.holds(tensors, 24); err != nil { // a name's length, dimensions, a type and an offset
		return 0, 0, fmt.Errorf("tensors: %w", err)
	}
	return tensors, pairs, nil
}

func (c *contents) readPair(r *reader) error {
	key, err := r.string()
	if err != nil {
		return fmt.Errorf("its key: %w", err)
	}
	if key == "" || len(key) > maxKey {
		return corrupt("a key of %d bytes, want 1 to %d", len(key), maxKey)
	}
	if _, twice := c.keys[key]; twice {
		return corrupt("the key %.100q comes twice", key)
	}
	value, err := r.value()
	if err != nil {
		return fmt.Errorf("%.100q: %w", key, err)
	}
	c.keys[key] = len(c.metadata)
	c.metadata = append(c.metadata, Pair{key, value})
	return nil
}

// alignment returns the value of general.alignment, or the default without one.
func alignment(value any) (int64, error) {
	if value == nil {
		return defaultAlignment, nil
	}
	n, is := value.(uint32)
	if !is || n == 0 || n&(n-1) != 0 {
		return 0, fmt.Errorf("%s is %s of type %T, want a power of two of type uint32", alignmentKey, short(value), value)
	}
	return int64(n), nil
}

// tensor reads a description.
func (r *reader) tensor() (t entry, err error) {
	if t.Name, err = r.string(); err != nil {
		return t, fmt.Errorf("its name: %w", err)
	}
	if t.Name == "" || len(t.Name) > maxKey {
		return t, corrupt("a name of %d bytes, want 1 to %d", len(t.Name), maxKey)
	}
	dims, err := r.uint32()
	if err != nil {
		return t, err
	}
	if dims > maxDims {
		return t, corrupt("%d dimensions, want at most %d", dims, maxDims)
	}
	t.Shape = make([]int, dims)
	for i := range t.Shape {
		d, err := r.uint64()
		if err != nil {
			return t, err
		}
		if d > math.MaxInt {
			return t, corrupt("a dimension of %d", d)
		}
		t.Shape[len(t.Shape)-1-i] = int(d)
	}
	id, err := r.uint32()
	if err != nil {
		return t, err
	}
	t.Type = Type(id)
	if t.bytes, err = t.Tensor.bytes(); err != nil {
		return t, fmt.Errorf("%w: %w", err, snug.ErrCorrupt)
	}
	offset, err := r.uint64()
	if err != nil {
		return t, err
	}
	if offset > math.MaxInt64 {
		return t, corrupt("an offset of %d", offset)
	}
	t.offset = int64(offset)
	return t, nil
}

// place checks the offsets of the tensors, which follow one another after the header, and makes them those in the file.
func (c *contents) place(header, size, align int64) error {
	if len(c.tensors) == 0 {
		return nil
	}
	data := aligned(header, align)
	end := int64(0)
	for i := range c.tensors {
		t := &c.tensors[i]
		if t.offset != end {
			return corrupt("tensor %.100q begins at byte %d of the data, want %d", t.Name, t.offset, end)
		}
		if t.bytes > size-data-t.offset {
			return corrupt("tensor %.100q of %d bytes begins at byte %d, the file has %d", t.Name, t.bytes, data+t.offset, size)
		}
		t.offset += data
		end = aligned(end+t.bytes, align)
	}
	return nil
}

// aligned returns the next multiple. Neither is above 2^62 and 2^31, so that the sum is not either.
func aligned(n, align int64) int64 { return (n + align - 1) / align * align }
