package machine

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// fields is a map of MessagePack with texts as keys.
type fields map[string]any

func (f fields) text(key string) string { s, _ := f[key].(string); return s }
func (f fields) number(key string) int  { n, _ := f[key].(int64); return int(n) }

// packed is what is left of a value in MessagePack (https://msgpack.org).
type packed struct{ data []byte }

var errCut = errors.New("metadata that are cut off")

const maxDepth = 16 // of values in values

// take returns the next n bytes.
func (p *packed) take(n uint64) ([]byte, error) {
	if n > uint64(len(p.data)) {
		return nil, errCut
	}
	taken := p.data[:n]
	p.data = p.data[n:]
	return taken, nil
}

// uint reads a big-endian number of n bytes.
func (p *packed) uint(n int) (uint64, error) {
	b, err := p.take(uint64(n))
	if err != nil {
		return 0, err
	}
	var wide [8]byte
	copy(wide[8-n:], b)
	return binary.BigEndian.Uint64(wide[:]), nil
}

// value reads a text, a number, which becomes int64, a bool, nil, a list or fields.
func (p *packed) value(depth int) (any, error) {
	kind, err := p.uint(1)
	if err != nil || depth > maxDepth {
		return nil, errCut
	}
	switch {
	case kind < 0x80:
		return int64(kind), nil
	case kind < 0x90:
		return p.fields(kind&0x0f, depth)
	case kind < 0xa0:
		return p.list(kind&0x0f, depth)
	case kind < 0xc0:
		return p.text(kind & 0x1f)
	case kind == 0xc0:
		return nil, nil
	case kind == 0xc2, kind == 0xc3:
		return kind == 0xc3, nil
	case kind >= 0xcc && kind <= 0xcf:
		n, err := p.uint(1 << (kind - 0xcc))
		return int64(n), err
	case kind >= 0xd0 && kind <= 0xd3:
		bytes := 1 << (kind - 0xd0)
		n, err := p.uint(bytes)
		return int64(n<<(64-8*bytes)) >> (64 - 8*bytes), err
	case kind >= 0xd9 && kind <= 0xdb:
		n, err := p.uint(1 << (kind - 0xd9))
		if err != nil {
			return nil, err
		}
		return p.text(n)
	case kind >= 0xdc && kind <= 0xdf:
		n, err := p.uint(2 << (kind & 1))
		switch {
		case err != nil:
			return nil, err
		case kind < 0xde:
			return p.list(n, depth)
		}
		return p.fields(n, depth)
	case kind >= 0xe0:
		return int64(int8(kind)), nil
	}
	return nil, fmt.Errorf("metadata with a value of kind %#x", kind)
}

func (p *packed) text(n uint64) (any, error) {
	b, err := p.take(n)
	return string(b), err
}

func (p *packed) list(n uint64, depth int) (any, error) {
	var list []any
	for range n {
		x, err := p.value(depth + 1)
		if err != nil {
			return nil, err
		}
		list = append(list, x)
	}
	return list, nil
}

func (p *packed) fields(n uint64, depth int) (any, error) {
	f := fields{}
	for range n {
		key, err := p.value(depth + 1)
		if err != nil {
			return nil, err
		}
		x, err := p.value(depth + 1)
		if err != nil {
			return nil, err
		}
		name, ok := key.(string)
		if !ok {
			return nil, errors.New("metadata with a key that is no text")
		}
		f[name] = x
	}
	return f, nil
}
