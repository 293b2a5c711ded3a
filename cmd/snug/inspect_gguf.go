package main

import (
	"errors"
	"fmt"
	"io"
	"reflect"

	"github.com/snug-ml/snug/gguf"
	"github.com/snug-ml/snug/internal/crc32c"
)

// inspectGGUF describes a file of llama.cpp's, or all files of a model that is split.
func inspectGGUF(path string, sum bool) (_ *content, err error) {
	f, err := gguf.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	c := &content{Format: "GGUF", Metadata: map[string]string{}, Entries: []entry{}}
	for _, p := range f.Metadata() {
		c.Metadata[p.Key] = ggufValue(p.Value)
	}
	for _, t := range f.Tensors() {
		n, err := t.Bytes()
		if err != nil {
			return nil, err
		}
		e := entry{Name: t.Name, DType: t.Type.String(), Shape: t.Shape, Bytes: n}
		if sum {
			var crc crc32c.Hash
			read := readerAt(func(b []byte, at int64) error { return f.ReadAt(t.Name, b, at) })
			if _, err := io.Copy(&crc, io.NewSectionReader(read, 0, n)); err != nil {
				return nil, err
			}
			value := uint32(crc)
			e.CRC = &value
		}
		c.Bytes += n
		c.Entries = append(c.Entries, e)
	}
	c.Note = fmt.Sprintf("%d tensors", len(c.Entries))
	return c, nil
}

// readerAt is an io.ReaderAt that reads all or returns an error.
type readerAt func(b []byte, at int64) error

func (r readerAt) ReadAt(b []byte, at int64) (int, error) {
	if err := r(b, at); err != nil {
		return 0, err
	}
	return len(b), nil
}

// ggufValue returns the text of a value; of a long list it is the number and the first elements.
func ggufValue(value any) string {
	const most = 4
	v := reflect.ValueOf(value)
	if v.Kind() != reflect.Slice || v.Len() <= most {
		return fmt.Sprint(value)
	}
	return fmt.Sprintf("%d values: %v …", v.Len(), v.Slice(0, most))
}
