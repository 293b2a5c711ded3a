package accum

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/snug-ml/snug"
)

// Saved state is little-endian: eight letters that name its kind, a uint32
// version, the fields, and the CRC-32C of all that.

const (
	magicLen = 8
	maxName  = 1 << 16 // bytes of a parameter's name
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// encoder writes saved state. The first error stays.
type encoder struct {
	w   io.Writer
	n   int64 // bytes written
	sum uint32
	buf []byte
	err error
}

func newEncoder(w io.Writer, magic string, version uint32) *encoder {
	e := &encoder{w: w}
	e.put([]byte(magic))
	e.put(version)
	return e
}

// put writes a value of fixed size.
func (e *encoder) put(v any) {
	if e.err != nil {
		return
	}
	if e.buf, e.err = binary.Append(e.buf[:0], binary.LittleEndian, v); e.err != nil {
		return
	}
	var n int
	n, e.err = e.w.Write(e.buf)
	e.n += int64(n)
	e.sum = crc32.Update(e.sum, castagnoli, e.buf)
}

func (e *encoder) putName(s string) {
	e.put(uint32(len(s)))
	e.put([]byte(s))
}

// finish writes the checksum.
func (e *encoder) finish() (int64, error) {
	e.put(e.sum)
	return e.n, e.err
}

// decoder reads saved state. The first error stays.
type decoder struct {
	r   io.Reader
	n   int64 // bytes read
	sum uint32
	buf []byte
	err error
}

// newDecoder reads the header.
func newDecoder(r io.Reader, magic string, version uint32) *decoder {
	d := &decoder{r: r}
	var found [magicLen]byte
	var v uint32
	d.get(&found)
	d.get(&v)
	switch {
	case d.err != nil:
	case string(found[:]) != magic:
		d.corrupt("it starts with %q, want %q", found[:], magic)
	case v == 0 || v > version:
		d.corrupt("version %d, want 1 to %d", v, version)
	}
	return d
}

func (d *decoder) corrupt(format string, args ...any) {
	if d.err == nil {
		d.err = fmt.Errorf("saved state: "+format+": %w", append(args, snug.ErrCorrupt)...)
	}
}

// get reads into a pointer to a value of fixed size, or into a slice.
func (d *decoder) get(v any) {
	if d.err != nil {
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
		d.corrupt("it ends after %d bytes", d.n)
	} else if err != nil {
		d.err = fmt.Errorf("saved state: %w", err)
	}
	if d.err == nil {
		d.sum = crc32.Update(d.sum, castagnoli, d.buf)
		_, d.err = binary.Decode(d.buf, binary.LittleEndian, v)
	}
}

func (d *decoder) getName() string {
	var n uint32
	if d.get(&n); n > maxName {
		d.corrupt("a name of %d bytes", n)
	}
	if d.err != nil {
		return ""
	}
	name := make([]byte, n)
	d.get(name)
	return string(name)
}

// finish checks the checksum.
func (d *decoder) finish() (int64, error) {
	want := d.sum
	var sum uint32
	if d.get(&sum); sum != want {
		d.corrupt("checksum %#x, want %#x", sum, want)
	}
	return d.n, d.err
}

// verify checks the checksum of saved state that is whole in memory.
func verify(data []byte) error {
	end := len(data) - crc32.Size
	if end < 0 {
		return fmt.Errorf("saved state: it ends after %d bytes: %w", len(data), snug.ErrCorrupt)
	}
	sum, want := binary.LittleEndian.Uint32(data[end:]), crc32.Checksum(data[:end], castagnoli)
	if sum != want {
		return fmt.Errorf("saved state: checksum %#x, want %#x: %w", sum, want, snug.ErrCorrupt)
	}
	return nil
}
