package gguf

import (
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"unicode/utf8"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/files"
)

const (
	maxName      = 63      // bytes of a tensor's name that llama.cpp loads
	maxAlignment = 1 << 20 // of files to write
)

// Writer writes a GGUF file. It is not safe for concurrent use.
type Writer struct {
	file    *files.Pending // nil when it is closed
	entries []entry
	next    int   // of entries, which is written
	written int64 // bytes of that
	end     int64 // of the whole file
	err     error // of the file, after which only Close is left
}

// Create begins a file of version 3: it writes the metadata and the descriptions of the tensors to a file beside path, whose name is
// that and ".unfinished". [Writer.Write] then takes the bytes of the tensors, in this order, and [Writer.Close] puts the file in its
// place. Until then what is at path stays. One writer at a time writes a path, in all processes: it holds a lock. What a killed process
// left, the next Create of the path removes.
//
// The metadata may have general.alignment, a uint32 that is a power of two up to 2^20; without it the alignment is 32. split.count
// and what goes with it is the caller's matter.
//
// Its memory is what the metadata take in the file. Errors, with nothing written: [snug.ErrConfig] for a key that is empty, has more
// than 65535 bytes or is not ASCII, for a name of a tensor that is empty or has more than 63 bytes, for one that comes twice, for a
// string that is not UTF-8, for a value of another type, for what is not a regular file at path and for a path that is being
// written; [snug.ErrDType];
// [snug.ErrShape] for a shape of more than 4 dimensions or of rows that are not whole blocks, see [Tensor.Bytes]; and those of the operating system.
func Create(path string, metadata []Pair, tensors []Tensor) (*Writer, error) {
	return begin(path, metadata, tensors, false)
}

// CreateNew is [Create] for a path at which there is no file. If there is one, or one appears before [Writer.Close], that stays, and
// the error wraps [fs.ErrExist]. A file system without hard links leaves a moment in which one may be replaced.
func CreateNew(path string, metadata []Pair, tensors []Tensor) (*Writer, error) {
	return begin(path, metadata, tensors, true)
}

func begin(path string, metadata []Pair, tensors []Tensor, fresh bool) (*Writer, error) {
	if path == "" {
		return nil, fmt.Errorf("gguf: want the path of a file: %w", snug.ErrConfig)
	}
	w, err := create(files.OS(filepath.Dir(path)), filepath.Base(path), metadata, tensors, fresh)
	if err != nil {
		return nil, fmt.Errorf("gguf: %s: %w", path, err)
	}
	return w, nil
}

// FileSize returns the bytes of the file that [Create] makes. Errors are those of Create, but for those of files.
func FileSize(metadata []Pair, tensors []Tensor) (int64, error) {
	w, _, err := describe(metadata, tensors)
	if err != nil {
		return 0, fmt.Errorf("gguf: %w", err)
	}
	return w.end, nil
}

func create(d files.Dir, name string, metadata []Pair, tensors []Tensor, fresh bool) (*Writer, error) {
	w, head, err := describe(metadata, tensors)
	if err != nil {
		return nil, err
	}
	if w.file, err = files.BeginIn(d, name, fresh); err != nil {
		return nil, err
	}
	if _, err := w.file.WriteAt(head, 0); err != nil {
		return nil, errors.Join(err, w.file.Abort())
	}
	return w, nil
}

// describe returns a writer without its file, and what the file begins with.
func describe(metadata []Pair, tensors []Tensor) (w *Writer, head []byte, err error) {
	head = le.AppendUint32([]byte(magic), version)
	head = le.AppendUint64(head, uint64(len(tensors)))
	head = le.AppendUint64(head, uint64(len(metadata)))
	head, align, err := appendMetadata(head, metadata)
	if err != nil {
		return nil, nil, err
	}
	w = &Writer{entries: make([]entry, len(tensors))}
	if head, err = w.appendTensors(head, tensors, align); err != nil {
		return nil, nil, err
	}
	if len(head) > headerLimit {
		return nil, nil, fmt.Errorf("the metadata and descriptions take %d bytes, want at most %d: %w", len(head), headerLimit, snug.ErrConfig)
	}
	data := aligned(int64(len(head)), align)
	if w.end > math.MaxInt64-data {
		return nil, nil, fmt.Errorf("all tensors together have too many bytes: %w", snug.ErrShape)
	}
	for i := range w.entries {
		w.entries[i].offset += data
	}
	w.end += data
	return w, head, nil
}

// appendMetadata appends the pairs, and returns the alignment that they say.
func appendMetadata(b []byte, metadata []Pair) (_ []byte, align int64, err error) {
	align = defaultAlignment
	keys := map[string]bool{}
	for _, p := range metadata {
		if err := checkPair(p); err != nil {
			return nil, 0, err
		}
		if keys[p.Key] {
			return nil, 0, fmt.Errorf("the key %q comes twice: %w", p.Key, snug.ErrConfig)
		}
		keys[p.Key] = true
		if p.Key == alignmentKey {
			if align, err = alignment(p.Value); err != nil || align > maxAlignment || p.Value == nil {
				return nil, 0, fmt.Errorf("%s is %s of type %T, want a uint32 that is a power of two up to %d: %w", alignmentKey, short(p.Value), p.Value, maxAlignment, snug.ErrConfig)
			}
		}
		if b, err = appendValue(appendString(b, p.Key), p.Value); err != nil {
			return nil, 0, fmt.Errorf("%q: %w", p.Key, err)
		}
	}
	return b, align, nil
}

func checkPair(p Pair) error {
	if p.Key == "" || len(p.Key) > maxKey {
		return fmt.Errorf("a key of %d bytes, want 1 to %d: %w", len(p.Key), maxKey, snug.ErrConfig)
	}
	for _, c := range []byte(p.Key) {
		if c < ' ' || c > '~' {
			return fmt.Errorf("the key %.100q is not printable ASCII: %w", p.Key, snug.ErrConfig)
		}
	}
	texts, _ := p.Value.([]string)
	if s, is := p.Value.(string); is {
		texts = []string{s}
	}
	for i, s := range texts {
		if !utf8.ValidString(s) {
			return fmt.Errorf("%q: string %d, %.100q, is not UTF-8: %w", p.Key, i, s, snug.ErrConfig)
		}
	}
	return nil
}

// appendTensors appends the descriptions, and sets w.entries with offsets in the data and w.end to the length of the data.
func (w *Writer) appendTensors(b []byte, tensors []Tensor, align int64) ([]byte, error) {
	names := map[string]bool{}
	for i, t := range tensors {
		n, err := checkTensor(t)
		if err == nil && names[t.Name] {
			err = fmt.Errorf("it comes twice: %w", snug.ErrConfig)
		}
		if err == nil && n > math.MaxInt64-maxAlignment-w.end {
			err = fmt.Errorf("all tensors together have too many bytes: %w", snug.ErrShape)
		}
		if err != nil {
			return nil, fmt.Errorf("tensor %.100q: %w", t.Name, err)
		}
		names[t.Name] = true
		w.entries[i] = entry{t, w.end, n}
		b = le.AppendUint32(appendString(b, t.Name), uint32(len(t.Shape)))
		for d := len(t.Shape) - 1; d >= 0; d-- {
			b = le.AppendUint64(b, uint64(t.Shape[d]))
		}
		b = le.AppendUint64(le.AppendUint32(b, uint32(t.Type)), uint64(w.end))
		w.end = aligned(w.end+n, align)
	}
	return b, nil
}

func checkTensor(t Tensor) (bytes int64, err error) {
	switch {
	case t.Name == "" || len(t.Name) > maxName:
		return 0, fmt.Errorf("a name of %d bytes, want 1 to %d: %w", len(t.Name), maxName, snug.ErrConfig)
	case !utf8.ValidString(t.Name):
		return 0, fmt.Errorf("its name is not UTF-8: %w", snug.ErrConfig)
	case len(t.Shape) == 0 || len(t.Shape) > maxDims:
		return 0, fmt.Errorf("shape %v, want 1 to %d dimensions: %w", t.Shape, maxDims, snug.ErrShape)
	}
	return t.bytes()
}

// Write appends b to the bytes of a tensor, as [Type.Encode] makes them. Tensors come in the order of [Create], each in one
// or several pieces, which need not be whole rows; a tensor without elements may be left out. b may be reused on return.
//
// Errors: [snug.ErrConfig] for a name that does not come now and for a writer that is closed, [snug.ErrShape] for more
// bytes than the tensor has, and those of the operating system, after which only Close is left.
func (w *Writer) Write(name string, b []byte) error {
	if err := w.write(name, b); err != nil {
		return fmt.Errorf("gguf: tensor %.100q: %w", name, err)
	}
	return nil
}

func (w *Writer) write(name string, b []byte) error {
	switch {
	case w == nil || w.file == nil:
		return fmt.Errorf("the writer is closed: %w", snug.ErrConfig)
	case w.err != nil:
		return w.err
	}
	if w.skip(name); w.next == len(w.entries) {
		return fmt.Errorf("all tensors are written: %w", snug.ErrConfig)
	}
	e := w.entries[w.next]
	if name != e.Name {
		return fmt.Errorf("tensor %q comes first, and has %d of its %d bytes: %w", e.Name, w.written, e.bytes, snug.ErrConfig)
	}
	if int64(len(b)) > e.bytes-w.written {
		return fmt.Errorf("%d bytes after %d, it has %d: %w", len(b), w.written, e.bytes, snug.ErrShape)
	}
	if _, err := w.file.WriteAt(b, e.offset+w.written); err != nil {
		w.err = err
		return err
	}
	if w.written += int64(len(b)); w.written == e.bytes {
		w.next, w.written = w.next+1, 0
	}
	return nil
}

// skip passes over tensors without elements before the one of a name.
func (w *Writer) skip(name string) {
	for w.next < len(w.entries) && w.entries[w.next].bytes == 0 && w.entries[w.next].Name != name {
		w.next++
	}
}

// Close puts the file in its place, durably and as a whole, with the permissions of the file that was there. If a tensor lacks
// bytes or a call of Write failed, it removes what was written instead, and what was there stays: the error wraps
// [snug.ErrConfig], or is the one of the operating system; see also [CreateNew]. A second call does nothing.
func (w *Writer) Close() error {
	if w == nil || w.file == nil {
		return nil
	}
	file := w.file
	w.file = nil
	err := w.err
	if w.skip(""); err == nil && w.next < len(w.entries) {
		e := w.entries[w.next]
		err = fmt.Errorf("tensor %q has %d of its %d bytes: %w", e.Name, w.written, e.bytes, snug.ErrConfig)
	}
	if err == nil {
		err = file.Truncate(w.end) // also what is left of the alignment
	}
	if err != nil {
		err = errors.Join(err, file.Abort())
	} else {
		err = file.Commit()
	}
	if err != nil {
		return fmt.Errorf("gguf: %w", err)
	}
	return nil
}
