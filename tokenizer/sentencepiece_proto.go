package tokenizer

import (
	"encoding/binary"
	"math"
)

// proto reads a message of Protocol Buffers: https://protobuf.dev/programming-guides/encoding.
type proto struct {
	data []byte
	err  error
}

// field is a field of a message. Its value is a number, or bytes.
type protoField struct {
	number uint64
	value  uint64
	bytes  []byte
	isText bool
}

// next returns the next field. There is none at the end, and after an error.
func (p *proto) next() (f protoField, ok bool) {
	if len(p.data) == 0 || p.err != nil {
		return f, false
	}
	key := p.varint()
	f.number = key >> 3
	switch key & 7 {
	case 0:
		f.value = p.varint()
	case 1:
		if b := p.take(8); b != nil {
			f.value = binary.LittleEndian.Uint64(b)
		}
	case 2:
		f.bytes, f.isText = p.take(p.varint()), true
	case 5:
		if b := p.take(4); b != nil {
			f.value = uint64(binary.LittleEndian.Uint32(b))
		}
	default:
		p.fail("a field of the wire type %d, want 0, 1, 2 or 5", key&7)
	}
	if f.number == 0 {
		p.fail("a field with the number 0")
	}
	return f, p.err == nil
}

func (p *proto) fail(format string, args ...any) {
	if p.err == nil {
		p.err = damaged("the file is no model of SentencePiece: "+format, args...)
	}
}

func (p *proto) varint() uint64 {
	v, n := binary.Uvarint(p.data)
	if n <= 0 {
		p.fail("a number that does not end")
		return 0
	}
	p.data = p.data[n:]
	return v
}

func (p *proto) take(n uint64) []byte {
	if n > uint64(len(p.data)) {
		p.fail("a field of %d bytes, and %d are left", n, len(p.data))
		return nil
	}
	b := p.data[:n]
	p.data = p.data[n:]
	return b
}

// each calls field for all fields of a message.
func eachField(data []byte, field func(f protoField) error) error {
	p := &proto{data: data}
	for {
		f, ok := p.next()
		if !ok {
			return p.err
		}
		if err := field(f); err != nil {
			return err
		}
	}
}

// A model has at most so many pieces, and bytes in all of them.
const (
	maxPieces     = 1 << 21
	maxPieceBytes = 16 << 20
)

// spNames are the numbers of the ids of tokens with names in TrainerSpec, and what the ids are without them.
var spNames = []struct {
	name  string
	id    uint64
	usual int64
}{{"unk_token", 40, 0}, {"bos_token", 41, 1}, {"eos_token", 42, 2}, {"pad_token", 43, -1}}

// parseSentencePiece reads a ModelProto.
func parseSentencePiece(data []byte) (*spModel, error) {
	m := &spModel{named: map[string]int64{}, spaces: spSpaces{prefix: true, extra: true, escape: true}}
	for _, n := range spNames {
		m.named[n.name] = n.usual
	}
	size := 0
	err := eachField(data, func(f protoField) error {
		switch {
		case !f.isText:
			return nil
		case f.number == 1:
			if len(m.pieces) == maxPieces {
				return refused("more than %d pieces", maxPieces)
			}
			p := spPiece{kind: pieceNormal}
			err := eachField(f.bytes, func(f protoField) error {
				switch f.number {
				case 1:
					p.text = string(f.bytes)
				case 2:
					p.score = math.Float32frombits(uint32(f.value))
				case 3:
					p.kind = f.value
				}
				return nil
			})
			if err == nil && (p.kind < pieceNormal || p.kind > pieceByte) {
				err = damaged("piece %d is of type %d, want %d to %d", len(m.pieces), p.kind, pieceNormal, pieceByte)
			}
			m.pieces = append(m.pieces, p)
			if size += len(p.text); size > maxPieceBytes && err == nil {
				err = refused("pieces of more than %d bytes in all", maxPieceBytes)
			}
			return err
		case f.number == 2:
			return m.trainer(f.bytes)
		case f.number == 3:
			return m.normalizer(f.bytes)
		case f.number == 5:
			return eachField(f.bytes, func(f protoField) error {
				if f.number == 2 && len(f.bytes) > 0 {
					return refused("denormalizer_spec has a table of rules")
				}
				return nil
			})
		}
		return nil
	})
	if err == nil && len(m.pieces) == 0 {
		err = damaged("the file is no model of SentencePiece: it has no pieces")
	}
	m.spaces.suffix = m.spaces.suffix && m.spaces.prefix
	return m, err
}

// trainer reads the TrainerSpec.
func (m *spModel) trainer(data []byte) error {
	return eachField(data, func(f protoField) error {
		for _, n := range spNames {
			if f.number == n.id {
				m.named[n.name] = int64(int32(f.value))
			}
		}
		switch f.number {
		case 3:
			if f.value != 1 && f.value != 2 {
				return refused("model_type %d, want 1 or 2: Unigram or BPE", f.value)
			}
			m.bpe = f.value == 2
		case 24:
			m.spaces.suffix = f.value != 0
		case 35:
			m.fallback = f.value != 0
		}
		return nil
	})
}

// normalizer reads the NormalizerSpec.
func (m *spModel) normalizer(data []byte) error {
	return eachField(data, func(f protoField) (err error) {
		switch f.number {
		case 2:
			m.spaces.table, err = newCharsmap(f.bytes)
		case 3:
			m.spaces.prefix = f.value != 0
		case 4:
			m.spaces.extra = f.value != 0
		case 5:
			m.spaces.escape = f.value != 0
		}
		return err
	})
}
