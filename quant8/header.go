package quant8

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"hash/fnv"
	"math"

	"github.com/snug-ml/snug"
)

// The saved form, little-endian:
//
//	magic, version u32, header length u32
//	header: bits u32, block u32, chunk u64, min8bit u64, hash of the maps u64,
//	        step u64, learning rate of the step f32, number of parameters u32,
//	        for each, by name: length of the name u32, name, elements u64,
//	        in version 3 the first of them that is there u64 and how many u64,
//	        since version 2 the maps of both moments, 2·256 f32
//	checksum u32 of all bytes so far
//	state: for each parameter its blobs, chunk after chunk
//	checksum u32 of all bytes so far
//
// The version is the oldest that can hold the state: 1 that of whole parameters
// and the dynamic maps, 2 that of whole parameters, 3 that of shards. Checksums
// are CRC-32C.
const (
	magic         = "snugadw8"
	version       = 1
	versionMaps   = 2
	versionShards = 3
	prefixBytes   = len(magic) + 8
	checksumSize  = 4
	maxHeader     = 1 << 28 // bytes; a longer one is damage
)

// header returns all bytes before the state.
func (a *AdamW) header() []byte {
	le := binary.LittleEndian
	v := a.version()
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
		q := a.params[name]
		b = le.AppendUint32(b, uint32(len(name)))
		b = append(b, name...)
		b = le.AppendUint64(b, uint64(q.total))
		if v >= versionShards {
			b = le.AppendUint64(b, uint64(q.lo))
			b = le.AppendUint64(b, uint64(q.n))
		}
	}
	if v >= versionMaps {
		b = appendMaps(b, a.maps)
	}
	le.PutUint32(b[len(magic):], v)
	le.PutUint32(b[len(magic)+4:], uint32(len(b)-prefixBytes))
	return le.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// version returns the oldest version that can hold the state.
func (a *AdamW) version() uint32 {
	for _, q := range a.params {
		if q.n != q.total {
			return versionShards
		}
	}
	if !a.maps.dynamic() {
		return versionMaps
	}
	return version
}

// mapHash identifies the two maps that the codes of the state refer to.
func mapHash(c codeMaps) uint64 {
	h := fnv.New64a()
	h.Write(appendMaps(nil, c))
	return h.Sum64()
}

func appendMaps(b []byte, c codeMaps) []byte {
	for i := range 2 {
		b = appendFloats(b, c.encoder(i).Map()[:])
	}
	return b
}

// saved is what a header holds.
type saved struct {
	bits, block, chunk, min8bit uint64
	step                        int
	lr                          float32
	maps                        codeMaps
	params                      []savedParam // by ascending names
}

// savedParam is n elements from lo on of a parameter of total elements.
type savedParam struct {
	name         string
	total, lo, n int
}

// readHeader reads everything before the state.
func (a *AdamW) readHeader(in *sumReader) (*saved, error) {
	prefix := make([]byte, prefixBytes)
	if err := in.readFull(prefix); err != nil {
		return nil, err
	}
	if string(prefix[:len(magic)]) != magic {
		return nil, fmt.Errorf("this is not the state of an AdamW of quant8: %w", snug.ErrCorrupt)
	}
	v := binary.LittleEndian.Uint32(prefix[len(magic):])
	if v < version || v > versionShards {
		return nil, fmt.Errorf("version %d, want %d to %d: %w", v, version, versionShards, snug.ErrCorrupt)
	}
	body, err := in.readN(binary.LittleEndian.Uint32(prefix[len(magic)+4:]))
	if err != nil {
		return nil, err
	}
	if err := in.readSum(); err != nil {
		return nil, err
	}
	return parseHeader(&fields{b: body}, v, a.o.Order)
}

// parseHeader parses the body of a header. order is what the maps are for.
func parseHeader(f *fields, v uint32, order Order) (*saved, error) {
	h := &saved{bits: uint64(f.u32()), block: uint64(f.u32()), chunk: f.u64(), min8bit: f.u64()}
	hash, step := f.u64(), f.u64()
	h.step, h.lr = int(min(step, math.MaxInt32)), math.Float32frombits(f.u32())
	valid := step <= math.MaxInt32
	for range f.u32() {
		if f.short || !valid {
			break
		}
		p := savedParam{name: string(f.next(uint64(f.u32())))}
		total := f.u64()
		lo, n := uint64(0), total
		if v >= versionShards {
			lo, n = f.u64(), f.u64()
		}
		p.total, p.lo, p.n = int(total), int(lo), int(n)
		valid = total <= math.MaxInt/8 && lo <= total && n <= total-lo &&
			(len(h.params) == 0 || h.params[len(h.params)-1].name < p.name)
		h.params = append(h.params, p)
	}
	var first, second *Map // the dynamic ones
	if v >= versionMaps {
		first, second = f.codeMap(), f.codeMap()
	}
	if f.short || len(f.b) > 0 || !valid {
		return nil, fmt.Errorf("the header does not parse: %w", snug.ErrCorrupt)
	}
	if err := checkCodeMaps(first, second, order); err != nil {
		return nil, fmt.Errorf("saved maps: %w", err)
	}
	h.maps = newCodeMaps(first, second, order)
	if hash != mapHash(h.maps) {
		return nil, fmt.Errorf("saved with maps of another hash: %w", snug.ErrConfig)
	}
	return h, nil
}

// checkOptions compares the configuration with that of a, field by field. Shards
// may be saved in chunks of another size.
func (a *AdamW) checkOptions(h *saved, sameChunk bool) error {
	options := []struct {
		name      string
		got, want uint64
	}{
		{"Bits", h.bits, uint64(a.o.Bits)},
		{"Block", h.block, uint64(a.o.Block)},
		{"Min8bit", h.min8bit, uint64(a.o.Min8bit)},
		{"Chunk", h.chunk, uint64(a.o.Chunk)},
	}
	if !sameChunk {
		options = options[:3]
	}
	for _, o := range options {
		if o.got != o.want {
			return fmt.Errorf("saved with %s = %d, this optimizer has %d: %w", o.name, o.got, o.want, snug.ErrConfig)
		}
	}
	return nil
}

// checkSame says whether the state is that of an optimizer like a.
func (a *AdamW) checkSame(h *saved) error {
	if err := a.checkOptions(h, true); err != nil {
		return err
	}
	if len(h.params) != len(a.params) {
		return fmt.Errorf("saved with %d parameters, this optimizer has %d: %w", len(h.params), len(a.params), snug.ErrConfig)
	}
	for i, name := range a.names() {
		q, p := a.params[name], h.params[i]
		if p != (savedParam{name, q.total, q.lo, q.n}) {
			return fmt.Errorf("saved with parameter %q, %d elements from %d on of %d, this optimizer has %q, %d from %d on of %d: %w",
				p.name, p.n, p.lo, p.total, name, q.n, q.lo, q.total, snug.ErrConfig)
		}
	}
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
