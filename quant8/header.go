package quant8

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/crc32c"
	"github.com/snug-ml/snug/internal/optim"
)

// The saved form, little-endian:
//
//	magic, version u32, header length u32
//	header: bits u32, block u32, chunk u64, min8bit u64, hash of the maps u64,
//	        step u64, learning rate of the step f32, number of parameters u32,
//	        for each, by name: length of the name u32, name, elements u64,
//	        since version 3 the first of them that is there u64 and how many u64,
//	        since version 4 the width of their states u32, since version 5 also 4 and 16
//	        since version 5 rows u64 and columns u64 of a matrix, or zeros,
//	        since version 6 a length u32 and as many bytes, with a bit for every chunk,
//	        from the lowest on: whether it is updated in the step
//	        since version 2 the maps of states with signs and without, 2·256 f32
//	        since version 4 length of the optimizer's name u32, name
//	checksum u32 of all bytes so far
//	state: for each parameter the factors of a matrix if it has them, then its blobs,
//	       chunk after chunk
//	checksum u32 of all bytes so far
//
// The version is the oldest that can hold the state: 6 where some chunks are updated in
// the step and others not yet, 5 with matrices of Adafactor and
// Muon, or if Bits is 4 or 16, else 4 for optimizers other than AdamW. For AdamW it is 1
// with whole parameters and the dynamic maps, 2 with whole parameters, 3 with shards,
// unless Keep32 has named a parameter. The maps are those of 8 bits. Checksums are sealed
// CRC-32C, see [crc32c.Seal].
const (
	magic         = "snugadw8"
	version       = 1
	versionMaps   = 2
	versionShards = 3
	versionRule   = 4
	versionForms  = 5
	versionMarks  = 6
	prefixBytes   = len(magic) + 8
	checksumSize  = 4
	maxHeader     = 1 << 28 // bytes; a longer one is damage
)

// header returns all bytes before the state.
func (a *Optimizer) header() []byte {
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
		if v >= versionRule {
			b = le.AppendUint32(b, uint32(q.bits))
		}
		if v >= versionForms {
			b = le.AppendUint64(b, uint64(q.rows))
			b = le.AppendUint64(b, uint64(q.cols))
		}
		if v >= versionMarks {
			bits := q.marks.Bits()
			b = append(le.AppendUint32(b, uint32(len(bits))), bits...)
		}
	}
	if v >= versionMaps {
		b = appendMaps(b, a.maps)
	}
	if v >= versionRule {
		b = le.AppendUint32(b, uint32(len(a.o.name)))
		b = append(b, a.o.name...)
	}
	le.PutUint32(b[len(magic):], v)
	le.PutUint32(b[len(magic)+4:], uint32(len(b)-prefixBytes))
	return le.AppendUint32(b, crc32c.Seal(crc32c.Checksum(b)))
}

// matrices says whether a parameter is treated as one.
func (a *Optimizer) matrices() bool {
	for _, q := range a.params {
		if q.shape != (shape{}) {
			return true
		}
	}
	return false
}

// version returns the oldest version that can hold the state.
func (a *Optimizer) version() uint32 {
	switch {
	case a.midStep():
		return versionMarks
	case a.o.layoutOf(a.o.Bits, shape{}).narrow() || a.matrices():
		return versionForms
	case !a.o.adamw:
		return versionRule
	}
	v := uint32(version)
	if !a.maps.dynamic() {
		v = versionMaps
	}
	for _, q := range a.params {
		if q.bits != widthBySize(q.total, a.o.Min8bit, a.o.Bits) {
			return versionRule
		}
		if q.n != q.total {
			v = versionShards
		}
	}
	return v
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
	optimizer                   string
	bits, block, chunk, min8bit uint64
	step                        int
	lr                          float32
	maps                        codeMaps
	params                      []savedParam // by ascending names
}

// savedParam is n elements from lo on of a parameter of total elements, with states
// of some width. Rows and columns are those of a matrix.
type savedParam struct {
	name               string
	total, lo, n, bits int
	rows, cols         int
	marks              string // bits of the chunks, or empty where all are updated
}

// readHeader reads everything before the state.
func (a *Optimizer) readHeader(in *sumReader) (*saved, error) {
	if err := a.made(); err != nil {
		return nil, err
	}
	if in.r == nil {
		return nil, fmt.Errorf("the reader is nil: %w", snug.ErrConfig)
	}
	prefix := make([]byte, prefixBytes)
	if err := in.readFull(prefix); err != nil {
		return nil, err
	}
	if string(prefix[:len(magic)]) != magic {
		return nil, fmt.Errorf("this is not the state of an optimizer of quant8: %w", snug.ErrCorrupt)
	}
	v := binary.LittleEndian.Uint32(prefix[len(magic):])
	if v < version || v > versionMarks {
		return nil, fmt.Errorf("version %d, want %d to %d: %w", v, version, versionMarks, snug.ErrCorrupt)
	}
	body, err := in.readN(binary.LittleEndian.Uint32(prefix[len(magic)+4:]))
	if err != nil {
		return nil, err
	}
	if err := in.readSum(); err != nil {
		return nil, err
	}
	return parseHeader(&fields{b: body}, v, &a.o)
}

// parseHeader parses the body of a header. The maps are for an optimizer of options o.
func parseHeader(f *fields, v uint32, o *options) (*saved, error) {
	h := &saved{optimizer: adamwName, bits: uint64(f.u32()), block: uint64(f.u32()), chunk: f.u64(), min8bit: f.u64()}
	hash, step := f.u64(), f.u64()
	h.step, h.lr = int(min(step, math.MaxInt32)), math.Float32frombits(f.u32())
	valid := step <= math.MaxInt32 && validRate(h.lr)
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
		p.bits = widthBySize(p.total, int(min(h.min8bit, math.MaxInt)), int(h.bits))
		if v >= versionRule {
			p.bits = int(f.u32())
		}
		rows, cols := uint64(0), uint64(0)
		if v >= versionForms {
			rows, cols = f.u64(), f.u64()
		}
		p.rows, p.cols = int(rows), int(cols)
		if v >= versionMarks {
			bits := f.next(uint64(f.u32()))
			valid = optim.ValidBits(bits, Blocks(p.n, int(min(h.chunk, maxChunk))))
			p.marks = string(bits)
		}
		valid = valid && total <= math.MaxInt/4 && lo <= total && n <= total-lo && knownWidth(p.bits) && validSides(rows, cols, total) &&
			(len(h.params) == 0 || h.params[len(h.params)-1].name < p.name)
		h.params = append(h.params, p)
	}
	var first, second *Map // the dynamic ones
	if v >= versionMaps {
		first, second = f.codeMap(), f.codeMap()
	}
	if v >= versionRule {
		h.optimizer = string(f.next(uint64(f.u32())))
	}
	if f.short || len(f.b) > 0 || !valid {
		return nil, fmt.Errorf("the header does not parse: %w", snug.ErrCorrupt)
	}
	if err := checkCodeMaps(first, second, o.Order, o.hyper.Rule); err != nil {
		return nil, fmt.Errorf("saved maps: %w", err)
	}
	h.maps = newCodeMaps(first, second, o.Order)
	if hash != mapHash(h.maps) {
		return nil, fmt.Errorf("saved with maps of another hash: %w", snug.ErrConfig)
	}
	return h, nil
}

// checkOptions compares the configuration with that of a, field by field. Shards
// may be saved in chunks of another size.
func (a *Optimizer) checkOptions(h *saved, sameChunk bool) error {
	if h.optimizer != a.o.name {
		return fmt.Errorf("saved by %q, this optimizer is %s: %w", h.optimizer, a.o.name, snug.ErrConfig)
	}
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
func (a *Optimizer) checkSame(h *saved) error {
	if err := a.checkOptions(h, true); err != nil {
		return err
	}
	if len(h.params) != len(a.params) {
		return fmt.Errorf("saved with %d parameters, this optimizer has %d: %w", len(h.params), len(a.params), snug.ErrConfig)
	}
	for i, name := range a.names() {
		q, p := a.params[name], h.params[i]
		if err := p.checkWidth(q); err != nil {
			return err
		}
		if err := p.checkSides(q); err != nil {
			return err
		}
		if p != (savedParam{name, q.total, q.lo, q.n, q.bits, q.rows, q.cols, p.marks}) {
			return fmt.Errorf("saved with parameter %q, %d elements from %d on of %d, this optimizer has %q, %d from %d on of %d: %w",
				p.name, p.n, p.lo, p.total, name, q.n, q.lo, q.total, snug.ErrConfig)
		}
	}
	return nil
}

// checkWidth compares the width of the states with that here.
func (p *savedParam) checkWidth(q *param) error {
	if p.name == q.name && p.bits != q.bits {
		return fmt.Errorf("saved with parameter %q in %d bits, this optimizer has it in %d: %w", p.name, p.bits, q.bits, snug.ErrConfig)
	}
	return nil
}

// checkSides compares the rows and columns with those here.
func (p *savedParam) checkSides(q *param) error {
	if p.name == q.name && (p.rows != q.rows || p.cols != q.cols) {
		return fmt.Errorf("saved with parameter %q of %d×%d elements, this optimizer has %d×%d: %w", p.name, p.rows, p.cols, q.rows, q.cols, snug.ErrConfig)
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
