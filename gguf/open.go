package gguf

import (
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"sync"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/files"
)

// File is a GGUF file, or all files of a model that is split. It is safe for concurrent use.
type File struct {
	first   *contents
	tensors []Tensor
	places  map[string]place

	mu    sync.RWMutex
	parts []*os.File // nil when closed
}

// place is where a tensor's bytes are.
type place struct {
	part          int
	offset, bytes int64
}

// Open opens a file and reads its metadata and the descriptions of its tensors; it reads no tensor. If the file is the
// first of a model that is split, NAME-00001-of-00003.gguf, it opens all of them, in the same folder. Links are followed.
//
// It needs a few times the memory of what it reads, which is limited to 256 MiB a file. Errors: [snug.ErrCorrupt] for a file
// that is damaged, not complete, or something else, [snug.ErrConfig] for what is no regular file and for a part that is not the
// first, and those of the operating system.
func Open(path string) (*File, error) {
	f, err := open(path)
	if err != nil {
		return nil, fmt.Errorf("gguf: %w", err)
	}
	return f, nil
}

func open(path string) (*File, error) {
	if path == "" {
		return nil, fmt.Errorf("want the path of a file: %w", snug.ErrConfig)
	}
	f := &File{places: map[string]place{}}
	if err := f.addAll(path); err != nil {
		return nil, errors.Join(err, f.closeParts())
	}
	return f, nil
}

// addAll opens a file, and the other parts of its model.
func (f *File) addAll(path string) (err error) {
	if f.first, err = f.add(path); err != nil {
		return err
	}
	split, err := splitOf(f.first)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if split.count < 2 {
		return nil
	}
	paths, err := split.paths(path)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	for i, path := range paths[1:] {
		c, err := f.add(path)
		if err != nil {
			return err
		}
		part, err := splitOf(c)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if part.no != int64(i)+1 || part.count != split.count {
			return corrupt("%s: it is part %d of %d, counted from 0, want %d of %d", path, part.no, part.count, i+1, split.count)
		}
	}
	if have := int64(len(f.tensors)); split.tensors >= 0 && split.tensors != have {
		return corrupt("%s: %s is %d, all parts have %d", path, tensorsKey, split.tensors, have)
	}
	return nil
}

// add opens a part and takes its tensors.
func (f *File) add(path string) (*contents, error) {
	file, size, err := files.OpenInput(path, files.Weights)
	if err != nil {
		return nil, err
	}
	f.parts = append(f.parts, file)
	c, err := readContents(file, size)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	for _, t := range c.tensors {
		if _, twice := f.places[t.Name]; twice {
			return nil, corrupt("%s: tensor %.100q is in another part, too", path, t.Name)
		}
		f.places[t.Name] = place{len(f.parts) - 1, t.offset, t.bytes}
		f.tensors = append(f.tensors, t.Tensor)
	}
	return c, nil
}

// Keys of a model that is split.
const (
	noKey      = "split.no"
	countKey   = "split.count"
	tensorsKey = "split.tensors.count"
	maxParts   = 10_000 // open at once
)

// split is what a file says of the parts.
type split struct{ no, count, tensors int64 } // -1 without tensors

func splitOf(c *contents) (split, error) {
	s := split{0, 0, -1}
	for _, field := range []struct {
		key string
		at  *int64
	}{{noKey, &s.no}, {countKey, &s.count}, {tensorsKey, &s.tensors}} {
		value := c.value(field.key)
		if value == nil {
			continue
		}
		n, is := whole(value)
		if !is || n < 0 {
			return s, corrupt("%s is %s of type %T, want a number", field.key, short(value), value)
		}
		*field.at = n
	}
	return s, nil
}

var partName = regexp.MustCompile(`^(.*-)([0-9]{5})(-of-)([0-9]{5})(\.gguf)$`)

// paths returns the paths of all parts.
func (s split) paths(path string) ([]string, error) {
	if s.count > maxParts {
		return nil, corrupt("%s is %d, want at most %d", countKey, s.count, maxParts)
	}
	m := partName.FindStringSubmatch(path)
	if m == nil {
		return nil, fmt.Errorf("the model is split into %d files, want the name NAME-00001-of-%05d.gguf: %w", s.count, s.count, snug.ErrConfig)
	}
	if no, _ := strconv.ParseInt(m[2], 10, 64); no != 1 || s.no != 0 {
		return nil, fmt.Errorf("it is not the first of the %d files of its model, want %s00001%s%s%s: %w", s.count, m[1], m[3], m[4], m[5], snug.ErrConfig)
	}
	if count, _ := strconv.ParseInt(m[4], 10, 64); count != s.count {
		return nil, corrupt("%s is %d, the name says %d", countKey, s.count, count)
	}
	paths := make([]string, s.count)
	for i := range paths {
		paths[i] = fmt.Sprintf("%s%05d%s%s%s", m[1], i+1, m[3], m[4], m[5])
	}
	return paths, nil
}

// Metadata returns the pairs in the order of the file, of the first if the model is split. Do not change the slices in it.
func (f *File) Metadata() []Pair {
	if f == nil || f.first == nil {
		return nil
	}
	return slices.Clone(f.first.metadata)
}

// Value returns the value of a key of [File.Metadata], and whether there is one. Do not change a slice.
func (f *File) Value(key string) (value any, found bool) {
	if f == nil || f.first == nil {
		return nil, false
	}
	value = f.first.value(key)
	return value, value != nil
}

// Tensors returns the tensors in the order of the file, or of all files. Do not change the shapes.
func (f *File) Tensors() []Tensor {
	if f == nil {
		return nil
	}
	return slices.Clone(f.tensors)
}

// ReadAt fills b with bytes of a tensor, from byte offset of the tensor on. Its blocks follow one another without holes:
// row r of a matrix begins at r times the bytes of a row.
//
// It allocates nothing. Errors: [snug.ErrConfig] for a name that is not in the file, and for a file that is closed,
// [snug.ErrShape] for bytes that are not the tensor's, [snug.ErrCorrupt] if the file has become shorter, and those of the
// operating system.
func (f *File) ReadAt(name string, b []byte, offset int64) error {
	if err := f.readAt(name, b, offset); err != nil {
		return fmt.Errorf("gguf: tensor %.100q: %w", name, err)
	}
	return nil
}

func (f *File) readAt(name string, b []byte, offset int64) error {
	if f == nil {
		return fmt.Errorf("no file: %w", snug.ErrConfig)
	}
	f.mu.RLock()
	defer f.mu.RUnlock()
	if f.parts == nil {
		return fmt.Errorf("the file is closed: %w", snug.ErrConfig)
	}
	at, found := f.places[name]
	if !found {
		return fmt.Errorf("it is not in the file: %w", snug.ErrConfig)
	}
	if offset < 0 || offset > at.bytes || int64(len(b)) > at.bytes-offset {
		return fmt.Errorf("%d bytes from byte %d on, it has %d: %w", len(b), offset, at.bytes, snug.ErrShape)
	}
	file := f.parts[at.part]
	n, err := file.ReadAt(b, at.offset+offset)
	switch {
	case n == len(b):
		return nil
	case err == nil || errors.Is(err, io.EOF):
		return corrupt("%s has become shorter since it was opened", file.Name())
	}
	return err
}

// Close closes the file, or all files. What was read stays. A second call does nothing.
func (f *File) Close() error {
	if f == nil {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.closeParts(); err != nil {
		return fmt.Errorf("gguf: %w", err)
	}
	return nil
}

func (f *File) closeParts() (err error) {
	for _, part := range f.parts {
		err = errors.Join(err, part.Close())
	}
	f.parts = nil
	return err
}
