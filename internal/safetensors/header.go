// Package safetensors is the header of safetensors files, the format of Hugging
// Face (github.com/huggingface/safetensors): a uint64, little-endian, with the
// length of a header in JSON, the header, and the data of all tensors without
// holes.
//
// It accepts the files that version 0.8 of the reference implementation accepts, with four
// exceptions, which it refuses: keys that occur twice, white space before the header,
// tensors that are arrays, and empty tensors whose shape exceeds an int.
package safetensors

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"unicode/utf8"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/files"
)

const (
	// MaxHeader is the bytes of a header at most, the limit of the format.
	MaxHeader = 100_000_000

	prefixBytes = 8
	metadataKey = "__metadata__"
)

// Tensor is one entry of a header.
type Tensor struct {
	Name       string
	DType      string // one of the format's names, such as "BF16"
	Shape      []int  // its product fits in an int
	Begin, End int64  // the bytes of the data that are the tensor's
}

// Header says what a file holds. Do not change it.
type Header struct {
	Tensors  []Tensor          // in the order of their data
	Metadata map[string]string // nil if the file has none
	Data     int64             // where the data begin in the file
	index    map[string]int    // the position of a name in Tensors
}

// Find returns the tensor of a name, or nil if there is none.
func (h *Header) Find(name string) *Tensor {
	if i, found := h.index[name]; found {
		return &h.Tensors[i]
	}
	return nil
}

// end returns the bytes of all data.
func (h *Header) end() int64 {
	if len(h.Tensors) == 0 {
		return 0
	}
	return h.Tensors[len(h.Tensors)-1].End
}

// Read reads and checks the header of a file of size bytes. It needs a few times
// the memory of the header, which is never longer than the file. The error wraps
// [snug.ErrCorrupt], unless it is one of r.
func Read(r io.ReaderAt, size int64) (*Header, error) {
	if size == 0 {
		return nil, corrupt("the file is empty: download it again")
	}
	if size < prefixBytes {
		return nil, corrupt("%d bytes, want at least the %d of the header's length", size, prefixBytes)
	}
	var prefix [prefixBytes]byte
	if err := ReadFull(r, prefix[:], 0); err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint64(prefix[:])
	if n == 0 || n > MaxHeader {
		if err := notTheFile(r, size); err != nil {
			return nil, err
		}
	}
	switch {
	case n == 0:
		return nil, corrupt("the header's length is 0")
	case n > MaxHeader:
		return nil, corrupt("the header's length is %d bytes, want at most %d", n, MaxHeader)
	case int64(n) > size-prefixBytes:
		return nil, corrupt("the header's length is %d bytes, only %d follow", n, size-prefixBytes)
	}
	text := make([]byte, n)
	if err := ReadFull(r, text, prefixBytes); err != nil {
		return nil, err
	}
	h, err := parse(text)
	if err != nil {
		return nil, err
	}
	h.Data = prefixBytes + int64(n)
	if have, want := size-h.Data, h.end(); have != want {
		return nil, corrupt("%d bytes of data, want the %d of the tensors", have, want)
	}
	return h, nil
}

// notTheFile names what a download left in the place of the file: the first bytes of a text would be a length that no
// header has.
func notTheFile(r io.ReaderAt, size int64) error {
	head := make([]byte, min(size, 512))
	if err := ReadFull(r, head, 0); err != nil {
		return err
	}
	if err := files.NotTheFile(head); err != nil {
		return fmt.Errorf("the file %w", err)
	}
	return nil
}

// ReadFull fills b with the bytes of a file from offset on. The error wraps
// [snug.ErrCorrupt] when the file ends before, else it is one of r.
func ReadFull(r io.ReaderAt, b []byte, offset int64) error {
	n, err := r.ReadAt(b, offset)
	switch {
	case n == len(b):
		return nil
	case err == nil || errors.Is(err, io.EOF):
		return corrupt("the file ends after %d bytes", offset+int64(n))
	}
	return err
}

// New returns the header of a file to write: it sorts tensors as the reference
// implementation does, by type from wide to narrow and then by name, and sets
// Begin and End. Errors: [snug.ErrConfig] for a name or metadata that the
// format cannot hold, [snug.ErrDType], [snug.ErrShape].
func New(tensors []Tensor, metadata map[string]string) (*Header, error) {
	h := &Header{Tensors: slices.Clone(tensors), Metadata: metadata, index: map[string]int{}}
	for key, value := range metadata {
		if !utf8.ValidString(key) || !utf8.ValidString(value) {
			return nil, fmt.Errorf("metadata %.100q is not UTF-8: %w", key, snug.ErrConfig)
		}
	}
	for i := range h.Tensors {
		t := &h.Tensors[i]
		if t.Name == metadataKey || !utf8.ValidString(t.Name) {
			return nil, fmt.Errorf("the format allows no tensor named %.100q: %w", t.Name, snug.ErrConfig)
		}
		if _, known := dtypes[t.DType]; !known {
			return nil, fmt.Errorf("tensor %.100q: %q is not a type of the format: %w", t.Name, t.DType, snug.ErrDType)
		}
	}
	slices.SortFunc(h.Tensors, func(a, b Tensor) int {
		return cmp.Or(cmp.Compare(dtypes[b.DType].rank, dtypes[a.DType].rank), cmp.Compare(a.Name, b.Name))
	})
	if err := h.layout(); err != nil {
		return nil, err
	}
	return h, nil
}

// layout sets where the tensors lie, and the index.
func (h *Header) layout() error {
	end := int64(0)
	for i := range h.Tensors {
		t := &h.Tensors[i]
		if _, taken := h.index[t.Name]; taken {
			return fmt.Errorf("tensor %.100q comes twice: %w", t.Name, snug.ErrConfig)
		}
		size, err := t.size()
		if err == nil && size > math.MaxInt64-end {
			err = errors.New("all tensors together have too many bytes")
		}
		if err != nil {
			return fmt.Errorf("tensor %.100q: %w: %w", t.Name, err, snug.ErrShape)
		}
		t.Begin, t.End = end, end+size
		end = t.End
		h.index[t.Name] = i
	}
	return nil
}

// size returns the bytes that a tensor's type and shape need.
func (t *Tensor) size() (int64, error) {
	n, err := Elements(t.Shape)
	if err != nil {
		return 0, err
	}
	bits := dtypes[t.DType].bits
	if int64(n) > math.MaxInt64/bits {
		return 0, fmt.Errorf("%d elements of %d bits are too many", n, bits)
	}
	if n := int64(n) * bits; n%8 == 0 {
		return n / 8, nil
	}
	return 0, fmt.Errorf("%d elements of %d bits are not whole bytes", n, bits)
}

// Elements returns the product of a shape. The error says that a dimension is
// negative or that the product exceeds an int.
func Elements(shape []int) (int, error) {
	n := 1
	for i, d := range shape {
		if d < 0 {
			return 0, fmt.Errorf("shape[%d] is %d, want 0 or more", i, d)
		}
		if d > 0 && n > math.MaxInt/d {
			return 0, fmt.Errorf("a shape of more than %d elements", math.MaxInt)
		}
		n *= d
	}
	return n, nil
}

func corrupt(format string, args ...any) error {
	return fmt.Errorf(format+": %w", append(args, snug.ErrCorrupt)...)
}
