// Package state is the form in which snug saves the state of its types:
// little-endian, eight letters that name the kind, a uint32 version, the
// fields, and the sealed CRC-32C of all that, see [crc32c.Seal].
package state

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/crc32c"
)

const (
	MagicLen = 8       // bytes of the letters that name the kind
	MaxName  = 1 << 16 // bytes of a parameter's name at most
)

// Encoder writes saved state. After an error it writes nothing.
type Encoder struct {
	w   io.Writer
	n   int64 // bytes written
	sum uint32
	buf []byte
	Err error // the first one; it stays
}

// NewEncoder writes the header.
func NewEncoder(w io.Writer, magic string, version uint32) *Encoder {
	e := &Encoder{w: w}
	e.Put([]byte(magic))
	e.Put(version)
	return e
}

// Put writes a value of fixed size.
func (e *Encoder) Put(v any) {
	if e.Err != nil {
		return
	}
	if e.buf, e.Err = binary.Append(e.buf[:0], binary.LittleEndian, v); e.Err != nil {
		return
	}
	var n int
	n, e.Err = e.w.Write(e.buf)
	e.n += int64(n)
	e.sum = crc32c.Update(e.sum, e.buf)
}

// PutName writes a string of at most MaxName bytes.
func (e *Encoder) PutName(s string) {
	e.Put(uint32(len(s)))
	e.Put([]byte(s))
}

// Finish writes the checksum and returns how many bytes were written.
func (e *Encoder) Finish() (int64, error) {
	e.Put(crc32c.Seal(e.sum))
	return e.n, e.Err
}

// Decoder reads saved state. After an error it reads nothing.
type Decoder struct {
	Version uint32 // of the saved state
	Err     error  // the first one; it stays

	r   io.Reader
	n   int64 // bytes read
	sum uint32
	buf []byte
}

// NewDecoder reads the header.
func NewDecoder(r io.Reader, magic string, version uint32) *Decoder {
	d := &Decoder{r: r}
	var found [MagicLen]byte
	d.Get(&found)
	d.Get(&d.Version)
	switch {
	case d.Err != nil:
	case string(found[:]) != magic:
		d.Corrupt("it starts with %q, want %q", found[:], magic)
	case d.Version == 0 || d.Version > version:
		d.Corrupt("version %d, want 1 to %d", d.Version, version)
	}
	return d
}

// Corrupt sets an error that wraps [snug.ErrCorrupt], unless there is one.
func (d *Decoder) Corrupt(format string, args ...any) {
	if d.Err == nil {
		d.Err = fmt.Errorf("saved state: "+format+": %w", append(args, snug.ErrCorrupt)...)
	}
}

// Get reads into a pointer to a value of fixed size, or into a slice.
func (d *Decoder) Get(v any) {
	if d.Err != nil {
		return
	}
	size := binary.Size(v)
	if cap(d.buf) < size {
		d.buf = make([]byte, size)
	}
	d.buf = d.buf[:size]
	n, err := io.ReadFull(d.r, d.buf)
	d.n += int64(n)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		d.Corrupt("it ends after %d bytes", d.n)
	} else if err != nil {
		d.Err = fmt.Errorf("saved state: %w", err)
	}
	if d.Err == nil {
		d.sum = crc32c.Update(d.sum, d.buf)
		_, d.Err = binary.Decode(d.buf, binary.LittleEndian, v)
	}
}

// GetName reads what PutName wrote.
func (d *Decoder) GetName() string {
	var n uint32
	if d.Get(&n); n > MaxName {
		d.Corrupt("a name of %d bytes", n)
	}
	if d.Err != nil {
		return ""
	}
	name := make([]byte, n)
	d.Get(name)
	return string(name)
}

// Finish checks the checksum and returns how many bytes were read.
func (d *Decoder) Finish() (int64, error) {
	want := crc32c.Seal(d.sum)
	var sum uint32
	if d.Get(&sum); sum != want {
		d.Corrupt("checksum %#x, want %#x", sum, want)
	}
	return d.n, d.Err
}

// Verify checks the checksum of saved state that is whole in memory.
func Verify(data []byte) error {
	end := len(data) - crc32c.Size
	if end < 0 {
		return fmt.Errorf("saved state: it ends after %d bytes: %w", len(data), snug.ErrCorrupt)
	}
	sum, want := binary.LittleEndian.Uint32(data[end:]), crc32c.Seal(crc32c.Checksum(data[:end]))
	if sum != want {
		return fmt.Errorf("saved state: checksum %#x, want %#x: %w", sum, want, snug.ErrCorrupt)
	}
	return nil
}
