package quant8

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"hash/fnv"
	"io"
	"maps"
	"math"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/blockq"
)

// The saved form, little-endian:
//
//	magic, version u32, header length u32
//	header: bits u32, block u32, chunk u64, min8bit u64, hash of the maps u64,
//	        step u64, learning rate of the step f32, number of parameters u32,
//	        for each, by name: length of the name u32, name, elements u64,
//	        in version 2 the maps of both moments, 2·256 f32
//	checksum u32 of all bytes so far
//	state: for each parameter its blobs, chunk after chunk
//	checksum u32 of all bytes so far
//
// Version 1 is that of the dynamic maps. Checksums are CRC-32C.
const (
	magic        = "snugadw8"
	version      = 1
	versionMaps  = 2
	prefixBytes  = len(magic) + 8
	checksumSize = 4
	maxHeader    = 1 << 28 // bytes; a longer one is damage
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// WriteTo writes the state of the optimizer, StateBytes and a short header: the
// step count, the learning rate of the current step, the maps of the codes if
// they are not the default ones, and all moments. It also
// works between the Steps of one Advance. It needs no memory beyond the state,
// on devices other than the CPU that of one chunk. The hyperparameters of
// [AdamWOptions] are not part of the state.
func (a *AdamW) WriteTo(w io.Writer) (int64, error) {
	out := &sumWriter{w: w}
	err := a.save(out)
	if err != nil {
		err = fmt.Errorf("quant8: AdamW: save: %w", err)
	}
	return out.n, err
}

// ReadFrom restores what [AdamW.WriteTo] has written, into an optimizer with
// the same Bits, Block, Chunk and Min8bit to which the same parameters were
// added, in any order. The maps of the codes become those that were saved. It
// reads no further than the end of that. A run with the
// same hyperparameters then continues bit for bit. It needs no memory beyond
// the state, on devices other than the CPU that of one chunk.
//
// The error wraps [snug.ErrCorrupt] when the bytes are damaged, cut short, or of
// a newer version, and [snug.ErrConfig] when they are those of another
// configuration. An error before the moments are reached leaves the optimizer as
// it was. A later one leaves it unusable, until a ReadFrom succeeds.
func (a *AdamW) ReadFrom(r io.Reader) (int64, error) {
	in := &sumReader{r: r}
	h, err := a.readHeader(in)
	if err == nil {
		err = a.restore(in, h)
	}
	if err != nil {
		err = fmt.Errorf("quant8: AdamW: restore: %w", err)
	}
	return in.n, err
}

// AppendBinary appends the bytes of [AdamW.WriteTo] to b. It implements
// [encoding.BinaryAppender]. The result holds all of the state once more; to
// avoid that use WriteTo.
func (a *AdamW) AppendBinary(b []byte) ([]byte, error) {
	size := int64(len(a.header())) + a.StateBytes() + checksumSize
	if size > int64(math.MaxInt-len(b)) {
		return b, fmt.Errorf("quant8: AdamW: save %d bytes to a slice: %w", size, snug.ErrNoMemory)
	}
	buf := bytes.NewBuffer(slices.Grow(b, int(size)))
	if _, err := a.WriteTo(buf); err != nil {
		return b, err
	}
	return buf.Bytes(), nil
}

// UnmarshalBinary restores all of data as [AdamW.ReadFrom] does, but verifies
// it first: damaged data leaves the optimizer as it was.
func (a *AdamW) UnmarshalBinary(data []byte) error {
	in := &sumReader{r: bytes.NewReader(data)}
	h, err := a.readHeader(in)
	if err == nil {
		err = a.checkWhole(data, in.n)
	}
	if err == nil {
		err = a.restore(in, h)
	}
	if err != nil {
		err = fmt.Errorf("quant8: AdamW: restore: %w", err)
	}
	return err
}

// checkWhole checks the length and the last checksum of data, whose header
// takes the given bytes.
func (a *AdamW) checkWhole(data []byte, header int64) error {
	if want := header + a.StateBytes() + checksumSize; int64(len(data)) != want {
		return fmt.Errorf("%d bytes, want %d: %w", len(data), want, snug.ErrCorrupt)
	}
	body, sum := data[:len(data)-checksumSize], data[len(data)-checksumSize:]
	if crc32.Checksum(body, castagnoli) != binary.LittleEndian.Uint32(sum) {
		return errChecksum
	}
	return nil
}

var errChecksum = fmt.Errorf("the checksum does not match: %w", snug.ErrCorrupt)

func (a *AdamW) save(out *sumWriter) error {
	if a.invalid != "" {
		return fmt.Errorf("the optimizer cannot be used: %s: %w", a.invalid, snug.ErrConfig)
	}
	if _, err := out.Write(a.header()); err != nil {
		return err
	}
	write := func(blob []byte) error {
		_, err := out.Write(blob)
		return err
	}
	if err := a.eachBlob(false, write); err != nil {
		return err
	}
	return out.writeSum()
}

// eachBlob calls use for the state of every chunk of every parameter.
func (a *AdamW) eachBlob(dirty bool, use func(blob []byte) error) error {
	for _, name := range a.names() {
		q := a.params[name]
		for chunk := range Blocks(q.n, a.o.Chunk) {
			if err := a.withBlob(q, chunk, dirty, use); err != nil {
				return fmt.Errorf("parameter %q: %w", name, err)
			}
		}
	}
	return nil
}

func (a *AdamW) names() []string { return slices.Sorted(maps.Keys(a.params)) }

// header returns all bytes before the state.
func (a *AdamW) header() []byte {
	le := binary.LittleEndian
	b := append([]byte(magic), make([]byte, 8)...)
	b = le.AppendUint32(b, uint32(a.o.Bits))
	b = le.AppendUint32(b, uint32(a.o.Block))
	b = le.AppendUint64(b, uint64(a.o.Chunk))
	b = le.AppendUint64(b, uint64(a.o.Min8bit))
	b = le.AppendUint64(b, mapHash(a.maps))
	b = le.AppendUint64(b, uint64(a.t))
	b = le.AppendUint32(b, math.Float32bits(a.lr))
	b = le.AppendUint32(b, uint32(len(a.params)))
	for _, name := range a.names() {
		b = le.AppendUint32(b, uint32(len(name)))
		b = append(b, name...)
		b = le.AppendUint64(b, uint64(a.params[name].n))
	}
	le.PutUint32(b[len(magic):], version)
	if !a.maps.dynamic() {
		le.PutUint32(b[len(magic):], versionMaps)
		b = appendMaps(b, a.maps)
	}
	le.PutUint32(b[len(magic)+4:], uint32(len(b)-prefixBytes))
	return le.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// mapHash identifies the two maps that the codes of the state refer to.
func mapHash(c codeMaps) uint64 {
	h := fnv.New64a()
	h.Write(appendMaps(nil, c))
	return h.Sum64()
}

func appendMaps(b []byte, c codeMaps) []byte {
	for _, e := range []*blockq.Encoder{c.m, c.v} {
		for _, x := range e.Map() {
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(x))
		}
	}
	return b
}

// saved is what a header holds beside the configuration.
type saved struct {
	step int
	lr   float32
	maps codeMaps
}

// readHeader reads and checks everything before the state.
func (a *AdamW) readHeader(in *sumReader) (saved, error) {
	prefix := make([]byte, prefixBytes)
	if err := in.readFull(prefix); err != nil {
		return saved{}, err
	}
	if string(prefix[:len(magic)]) != magic {
		return saved{}, fmt.Errorf("this is not the state of an AdamW of quant8: %w", snug.ErrCorrupt)
	}
	v := binary.LittleEndian.Uint32(prefix[len(magic):])
	if v != version && v != versionMaps {
		return saved{}, fmt.Errorf("version %d, want %d or %d: %w", v, version, versionMaps, snug.ErrCorrupt)
	}
	body, err := in.readN(binary.LittleEndian.Uint32(prefix[len(magic)+4:]))
	if err != nil {
		return saved{}, err
	}
	if err := in.readSum(); err != nil {
		return saved{}, err
	}
	return a.parseHeader(&fields{b: body}, v == versionMaps)
}

// parseHeader compares the configuration with that of a, field by field.
func (a *AdamW) parseHeader(f *fields, withMaps bool) (saved, error) {
	for _, option := range []struct {
		name      string
		got, want uint64
	}{
		{"Bits", uint64(f.u32()), uint64(a.o.Bits)},
		{"Block", uint64(f.u32()), uint64(a.o.Block)},
		{"Chunk", f.u64(), uint64(a.o.Chunk)},
		{"Min8bit", f.u64(), uint64(a.o.Min8bit)},
	} {
		if option.got != option.want && !f.short {
			return saved{}, fmt.Errorf("saved with %s = %d, this optimizer has %d: %w", option.name, option.got, option.want, snug.ErrConfig)
		}
	}
	hash, step, lr := f.u64(), f.u64(), math.Float32frombits(f.u32())
	if count := f.u32(); !f.short && int64(count) != int64(len(a.params)) {
		return saved{}, fmt.Errorf("saved with %d parameters, this optimizer has %d: %w", count, len(a.params), snug.ErrConfig)
	}
	for _, want := range a.names() {
		name, n := string(f.next(uint64(f.u32()))), f.u64()
		if !f.short && (name != want || n != uint64(a.params[want].n)) {
			return saved{}, fmt.Errorf("saved with parameter %q of %d elements, this optimizer has %q of %d: %w",
				name, n, want, a.params[want].n, snug.ErrConfig)
		}
	}
	var m, v *Map // the dynamic ones
	if withMaps {
		m, v = f.codeMap(), f.codeMap()
	}
	if f.short || len(f.b) > 0 || step > math.MaxInt32 {
		return saved{}, fmt.Errorf("the header does not parse: %w", snug.ErrCorrupt)
	}
	if withMaps {
		if err := checkCodeMaps(m, v, a.o.Order); err != nil {
			return saved{}, fmt.Errorf("saved maps: %w", err)
		}
	}
	c := newCodeMaps(m, v, a.o.Order)
	if hash != mapHash(c) {
		return saved{}, fmt.Errorf("saved with maps of another hash: %w", snug.ErrConfig)
	}
	return saved{int(step), lr, c}, nil
}

// restore reads the state and the last checksum.
func (a *AdamW) restore(in *sumReader, h saved) error {
	a.invalid = "a restore of its state failed"
	if err := a.eachBlob(true, in.readFull); err != nil {
		return err
	}
	if err := in.readSum(); err != nil {
		return err
	}
	a.t, a.lr, a.maps, a.invalid = h.step, h.lr, h.maps, ""
	return nil
}

// fields takes numbers off the front of b; short says that b was too short.
type fields struct {
	b     []byte
	short bool
}

func (f *fields) next(n uint64) []byte {
	if f.short || n > uint64(len(f.b)) {
		f.short = true
		return nil
	}
	b := f.b[:n]
	f.b = f.b[n:]
	return b
}

func (f *fields) u32() uint32 {
	if b := f.next(4); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

func (f *fields) u64() uint64 {
	if b := f.next(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

func (f *fields) codeMap() *Map {
	m := new(Map)
	for c := range m {
		m[c] = math.Float32frombits(f.u32())
	}
	return m
}

// sumWriter counts and checksums what it writes.
type sumWriter struct {
	w   io.Writer
	n   int64
	sum uint32
}

func (s *sumWriter) Write(b []byte) (int, error) {
	n, err := s.w.Write(b)
	s.n += int64(n)
	s.sum = crc32.Update(s.sum, castagnoli, b[:n])
	return n, err
}

func (s *sumWriter) writeSum() error {
	_, err := s.Write(binary.LittleEndian.AppendUint32(nil, s.sum))
	return err
}

// sumReader counts and checksums what it reads.
type sumReader struct {
	r   io.Reader
	n   int64
	sum uint32
}

func (s *sumReader) Read(b []byte) (int, error) {
	n, err := s.r.Read(b)
	s.n += int64(n)
	s.sum = crc32.Update(s.sum, castagnoli, b[:n])
	return n, err
}

// readFull fills b. An early end of the input is corruption; other errors are
// the reader's own.
func (s *sumReader) readFull(b []byte) error {
	_, err := io.ReadFull(s, b)
	return endIsCorrupt(err)
}

// readN reads n bytes. Memory grows with what is there, so that a damaged n
// cannot exhaust it.
func (s *sumReader) readN(n uint32) ([]byte, error) {
	if n > maxHeader {
		return nil, fmt.Errorf("a header of %d bytes: %w", n, snug.ErrCorrupt)
	}
	var b bytes.Buffer
	_, err := io.CopyN(&b, s, int64(n))
	return b.Bytes(), endIsCorrupt(err)
}

func endIsCorrupt(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("the data end early: %w", snug.ErrCorrupt)
	}
	return err
}

// readSum reads a checksum of all bytes so far and compares it.
func (s *sumReader) readSum() error {
	want := s.sum
	var b [checksumSize]byte
	if err := s.readFull(b[:]); err != nil {
		return err
	}
	if binary.LittleEndian.Uint32(b[:]) != want {
		return errChecksum
	}
	return nil
}
