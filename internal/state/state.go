// Package state is the one form of everything that snug saves. A file is written by an
// [Encoder] and read by a [Decoder]:
//
//	8 letters that name the kind, version u32, bytes of the header u32, bytes of the data u64
//	header: what the data is of, such as options, names and lengths
//	sealed CRC-32C of all bytes so far, u32
//	data: accumulators, weights, optimizer states, as a stream
//	sealed CRC-32C of all bytes so far, u32
//
// Numbers are little-endian; [crc32c.Seal] seals a checksum. Every kind has version 1. A
// reader refuses other versions, and damage, with [snug.ErrCorrupt].
//
// A Decoder verifies the header before it hands out a field of it. So a reader compares
// all names and lengths before it changes anything, and memory for a header grows with
// the bytes that are there. The data streams from the object to the file and back.
//
// The files named after a kind, such as scaler.go, hold its layout and its describer.
// [Kinds] lists them; [Describe] says what a file holds.
package state

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/crc32c"
)

const (
	MagicLen = 8       // bytes of the letters that name the kind
	MaxName  = 1 << 16 // maximum bytes of a name

	// MaxHeader is the maximum size of a header, which is in memory while it is written
	// or read.
	MaxHeader = min(1<<30, math.MaxInt>>3)

	version    = 1
	prefixSize = MagicLen + 4 + 4 + 8
)

var le = binary.LittleEndian

// Encoder writes saved state: the header by Put and PutName, then, after Data, the data by
// Put. After an error it writes nothing.
type Encoder struct {
	Err error // the first error

	w    io.Writer
	n    int64 // bytes written
	end  int64 // n at the end of the data, once Data was called
	sum  uint32
	buf  []byte // until Data all of the header, then one value
	data bool
}

// NewEncoder begins a header. Its Err wraps [snug.ErrConfig] when w is nil.
func NewEncoder(w io.Writer, magic string) *Encoder {
	e := NewHeader(magic)
	if e.w = w; w == nil {
		e.Err = fmt.Errorf("the writer is nil: %w", snug.ErrConfig)
	}
	return e
}

// NewHeader begins saved state that has no data, which [Encoder.Bytes] returns.
func NewHeader(magic string) *Encoder {
	e := &Encoder{buf: make([]byte, prefixSize)}
	copy(e.buf, magic)
	le.PutUint32(e.buf[MagicLen:], version)
	return e
}

// Put writes a value of fixed size, or a slice of such values. Bytes of the data are not
// copied.
func (e *Encoder) Put(v any) {
	switch b, isBytes := v.([]byte); {
	case e.Err != nil:
	case !e.data:
		e.buf, e.Err = binary.Append(e.buf, le, v)
	case isBytes:
		e.write(b)
	default:
		if e.buf, e.Err = binary.Append(e.buf[:0], le, v); e.Err == nil {
			e.write(e.buf)
		}
	}
}

// PutName writes a string. Err wraps [snug.ErrConfig] when it is longer than MaxName.
func (e *Encoder) PutName(s string) {
	if len(s) > MaxName && e.Err == nil {
		e.Err = fmt.Errorf("a name or a part of %d bytes, want at most %d: %w", len(s), MaxName, snug.ErrConfig)
	}
	e.Put(uint32(len(s)))
	e.Put([]byte(s))
}

// Data ends the header. Data of size bytes follows.
func (e *Encoder) Data(size int64) {
	if e.data = true; e.endHeader(size) != nil {
		return
	}
	e.write(e.buf)
	e.seal()
	e.end = e.n + size
}

// endHeader sets the sizes before the header.
func (e *Encoder) endHeader(size int64) error {
	if e.Err == nil && len(e.buf)-prefixSize > MaxHeader {
		e.Err = fmt.Errorf("a header of %d bytes, want at most %d: %w", len(e.buf)-prefixSize, MaxHeader, snug.ErrConfig)
	}
	if e.Err == nil {
		le.PutUint32(e.buf[MagicLen+4:], uint32(len(e.buf)-prefixSize))
		le.PutUint64(e.buf[MagicLen+8:], uint64(size))
	}
	return e.Err
}

// Finish ends the data, which must have its size, and returns how many bytes were written.
func (e *Encoder) Finish() (int64, error) {
	if !e.data {
		e.Data(0)
	}
	if e.Err == nil && e.n != e.end {
		e.Err = fmt.Errorf("data ended at byte %d of the saved state, want %d: %w", e.n, e.end, snug.ErrConfig)
	}
	e.seal()
	return e.n, e.Err
}

func (e *Encoder) seal() { e.Put(crc32c.Seal(e.sum)) }

func (e *Encoder) write(b []byte) {
	var n int
	n, e.Err = e.w.Write(b)
	e.n += int64(n)
	e.sum = crc32c.Update(e.sum, b)
}

// Bytes ends a saved state without data and returns it. It takes the place of Finish.
func (e *Encoder) Bytes() ([]byte, error) {
	e.data = true
	if err := e.endHeader(0); err != nil {
		return nil, err
	}
	for range 2 {
		e.buf = le.AppendUint32(e.buf, crc32c.Seal(crc32c.Checksum(e.buf)))
	}
	return e.buf, nil
}

// Append appends what write writes to b. After an error it returns b.
func Append(b []byte, write func(w io.Writer) (int64, error)) ([]byte, error) {
	w := bytes.NewBuffer(b)
	if _, err := write(w); err != nil {
		return b, err
	}
	return w.Bytes(), nil
}

// Decoder reads saved state as an Encoder writes it. After an error it reads nothing, and
// no byte beyond the saved state.
type Decoder struct {
	Err error // the first error

	r      io.Reader
	n      int64 // bytes read
	sum    uint32
	header []byte // its unread bytes
	size   uint64 // of the data
	buf    []byte
	data   bool

	numbers func(rule string) int // of optimizers, for Describe
}

// NewDecoder reads the header and verifies it. Its Err wraps [snug.ErrConfig] when r is
// nil.
func NewDecoder(r io.Reader, magic string) *Decoder {
	d := &Decoder{r: r}
	if r == nil {
		d.Err = fmt.Errorf("the reader is nil: %w", snug.ErrConfig)
		return d
	}
	var prefix [prefixSize]byte
	d.read(prefix[:])
	found, v, size := prefix[:MagicLen], le.Uint32(prefix[MagicLen:]), le.Uint32(prefix[MagicLen+4:])
	d.size = le.Uint64(prefix[MagicLen+8:])
	switch {
	case d.Err != nil:
	case string(found) != magic:
		d.Corrupt("it starts with %q, want %q", found, magic)
	case v != version:
		d.Corrupt("version %d, want %d", v, version)
	case size > MaxHeader || d.size > math.MaxInt64:
		d.Corrupt("a header of %d bytes and data of %d bytes", size, d.size)
	}
	for d.Err == nil && len(d.header) < int(size) {
		have := len(d.header)
		b := make([]byte, min(int(size), max(2*have, 1<<16)))
		copy(b, d.header)
		d.read(b[have:])
		d.header = b
	}
	d.checkSeal()
	return d
}

// Corrupt sets an error that wraps [snug.ErrCorrupt], unless there is one.
func (d *Decoder) Corrupt(format string, args ...any) {
	if d.Err == nil {
		d.Err = corrupt(format, args...)
	}
}

func corrupt(format string, args ...any) error {
	return fmt.Errorf("saved state: "+format+": %w", append(args, snug.ErrCorrupt)...)
}

// Get reads into a pointer to a value of fixed size, or into a slice of such values. Bytes
// of the data are not copied.
func (d *Decoder) Get(v any) {
	switch b, isBytes := v.([]byte); {
	case d.Err != nil:
	case !d.data:
		size := binary.Size(v)
		if size > len(d.header) {
			d.Corrupt("the header ends early")
			return
		}
		_, d.Err = binary.Decode(d.header[:size], le, v)
		d.header = d.header[size:]
	case isBytes:
		d.read(b)
	default:
		size := binary.Size(v)
		if cap(d.buf) < size {
			d.buf = make([]byte, size)
		}
		if d.read(d.buf[:size]); d.Err == nil {
			_, d.Err = binary.Decode(d.buf[:size], le, v)
		}
	}
}

// Left returns how many bytes of the header are left.
func (d *Decoder) Left() int { return len(d.header) }

// GetName reads what PutName wrote.
func (d *Decoder) GetName() string {
	n := d.Count(1)
	if n > MaxName {
		d.Corrupt("a name or a part of %d bytes", n)
	}
	if d.Err != nil {
		return ""
	}
	name := string(d.header[:n])
	d.header = d.header[n:]
	return name
}

// Count reads a uint32, the number of entries of size bytes or more that follow in the
// header.
func (d *Decoder) Count(size int) int {
	var n uint32
	if d.Get(&n); d.Err == nil && uint64(n)*uint64(size) > uint64(len(d.header)) {
		d.Corrupt("%d entries in %d bytes", n, len(d.header))
	}
	if d.Err != nil {
		return 0
	}
	return int(n)
}

// Data ends the header, which must have been read in full. Data of size bytes must follow.
func (d *Decoder) Data(size int64) {
	if d.endHeader(); d.size != uint64(size) {
		d.Corrupt("data of %d bytes, want %d", d.size, size)
	}
	d.data = true
}

func (d *Decoder) endHeader() {
	if len(d.header) > 0 {
		d.Corrupt("%d bytes at the end of the header", len(d.header))
	}
}

// Skip passes over n bytes of the data.
func (d *Decoder) Skip(n int64) {
	if d.buf == nil {
		d.buf = make([]byte, 1<<15)
	}
	for n > 0 && d.Err == nil {
		part := d.buf[:min(n, int64(cap(d.buf)))]
		d.read(part)
		n -= int64(len(part))
	}
}

// Finish verifies the data and returns how many bytes were read.
func (d *Decoder) Finish() (int64, error) {
	if !d.data {
		d.Data(0)
	}
	d.checkSeal()
	return d.n, d.Err
}

// Read returns how many bytes were read.
func (d *Decoder) Read() int64 { return d.n }

func (d *Decoder) checkSeal() {
	want := crc32c.Seal(d.sum)
	var sum [crc32c.Size]byte
	if d.read(sum[:]); le.Uint32(sum[:]) != want {
		d.Corrupt("checksum %08x, want %08x", le.Uint32(sum[:]), want)
	}
}

func (d *Decoder) read(b []byte) {
	if d.Err != nil {
		return
	}
	n, err := io.ReadFull(d.r, b)
	d.n += int64(n)
	d.sum = crc32c.Update(d.sum, b[:n])
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		d.Corrupt("it ends after %d bytes", d.n)
	} else if err != nil {
		d.Err = fmt.Errorf("saved state: %w", err)
	}
}

// Verify checks saved state that is whole in memory: its size and its last checksum.
func Verify(data []byte) error { return VerifyFile(bytes.NewReader(data), int64(len(data))) }

// VerifyFile is Verify of a file of size bytes.
func VerifyFile(r io.ReaderAt, size int64) error {
	var prefix [prefixSize]byte
	if size < int64(len(prefix))+2*crc32c.Size {
		return corrupt("it ends after %d bytes", size)
	}
	f := io.NewSectionReader(r, 0, size)
	if _, err := f.ReadAt(prefix[:], 0); err != nil {
		return shortRead(err)
	}
	header, data := le.Uint32(prefix[MagicLen+4:]), le.Uint64(prefix[MagicLen+8:])
	if left := uint64(size) - prefixSize - 2*crc32c.Size; uint64(header) > left || data != left-uint64(header) {
		return corrupt("%d bytes with a header of %d and data of %d", size, header, data)
	}
	var sum crc32c.Hash
	if n, err := io.CopyN(&sum, f, size-crc32c.Size); err != nil {
		return fmt.Errorf("after %d bytes: %w", n, shortRead(err))
	}
	var last [crc32c.Size]byte
	if _, err := io.ReadFull(f, last[:]); err != nil {
		return shortRead(err)
	}
	if want := crc32c.Seal(uint32(sum)); le.Uint32(last[:]) != want {
		return corrupt("checksum %08x, want %08x", le.Uint32(last[:]), want)
	}
	return nil
}

func shortRead(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return corrupt("the file has become shorter")
	}
	return err
}
