package gguf

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/snug-ml/snug"
)

// Pair is an entry of the metadata. Value is a uint8, int8, uint16, int16, uint32, int32, uint64, int64, float32, float64, bool
// or string, or a slice of one of them.
type Pair struct {
	Key   string
	Value any
}

// kind is a type of values.
type kind struct {
	read   func(r *reader) (any, error)
	list   func(r *reader, n uint64) (any, error) // a slice of n
	holds  func(value any) (one, many bool)
	append func(b []byte, value any) []byte // a slice with its length
}

const (
	stringKind = 8
	arrayKind  = 9
)

// kinds are the types of values by the format's numbers. That of arrays has its elements' type besides.
var kinds = [...]kind{
	0:          number(1, func(b []byte) uint8 { return b[0] }, func(b []byte, x uint8) []byte { return append(b, x) }),
	1:          number(1, func(b []byte) int8 { return int8(b[0]) }, func(b []byte, x int8) []byte { return append(b, byte(x)) }),
	2:          number(2, le.Uint16, le.AppendUint16),
	3:          number(2, func(b []byte) int16 { return int16(le.Uint16(b)) }, func(b []byte, x int16) []byte { return le.AppendUint16(b, uint16(x)) }),
	4:          number(4, le.Uint32, le.AppendUint32),
	5:          number(4, func(b []byte) int32 { return int32(le.Uint32(b)) }, func(b []byte, x int32) []byte { return le.AppendUint32(b, uint32(x)) }),
	6:          number(4, func(b []byte) float32 { return math.Float32frombits(le.Uint32(b)) }, func(b []byte, x float32) []byte { return le.AppendUint32(b, math.Float32bits(x)) }),
	7:          kindOf(1, (*reader).bool, appendBool),
	stringKind: kindOf(8, (*reader).string, appendString),
	arrayKind:  {},
	10:         number(8, le.Uint64, le.AppendUint64),
	11:         number(8, func(b []byte) int64 { return int64(le.Uint64(b)) }, func(b []byte, x int64) []byte { return le.AppendUint64(b, uint64(x)) }),
	12:         number(8, func(b []byte) float64 { return math.Float64frombits(le.Uint64(b)) }, func(b []byte, x float64) []byte { return le.AppendUint64(b, math.Float64bits(x)) }),
}

var le = binary.LittleEndian

// number is a type of values that have a fixed number of bytes, and no others than they can have.
func number[T any](bytes int, get func(b []byte) T, put func(b []byte, x T) []byte) kind {
	return kindOf(int64(bytes), func(r *reader) (x T, err error) {
		b, err := r.next(bytes)
		if err != nil {
			return x, err
		}
		return get(b), nil
	}, put)
}

// kindOf is a type of values that have at least some bytes.
func kindOf[T any](least int64, get func(r *reader) (T, error), put func(b []byte, x T) []byte) kind {
	return kind{
		read: func(r *reader) (any, error) { return get(r) },
		list: func(r *reader, n uint64) (any, error) {
			if err := r.holds(n, least); err != nil {
				return nil, err
			}
			list := make([]T, n)
			for i := range list {
				x, err := get(r)
				if err != nil {
					return nil, fmt.Errorf("element %d of %d: %w", i, n, err)
				}
				list[i] = x
			}
			return list, nil
		},
		holds: func(value any) (one, many bool) {
			_, one = value.(T)
			_, many = value.([]T)
			return one, many
		},
		append: func(b []byte, value any) []byte {
			if x, one := value.(T); one {
				return put(b, x)
			}
			list := value.([]T)
			b = le.AppendUint64(b, uint64(len(list)))
			for _, x := range list {
				b = put(b, x)
			}
			return b
		},
	}
}

func appendBool(b []byte, x bool) []byte {
	if x {
		return append(b, 1)
	}
	return append(b, 0)
}

func appendString(b []byte, s string) []byte { return append(le.AppendUint64(b, uint64(len(s))), s...) }

// appendValue appends the type of a value and the value. Errors: [snug.ErrConfig].
func appendValue(b []byte, value any) ([]byte, error) {
	for id, k := range kinds {
		if k.holds == nil {
			continue
		}
		switch one, many := k.holds(value); {
		case one:
			return k.append(le.AppendUint32(b, uint32(id)), value), nil
		case many:
			return k.append(le.AppendUint32(le.AppendUint32(b, arrayKind), uint32(id)), value), nil
		}
	}
	return nil, fmt.Errorf("a value of Go's type %T, want a number of fixed size, a bool, a string or a slice of them: %w", value, snug.ErrConfig)
}

// value reads the type of a value and the value.
func (r *reader) value() (any, error) {
	id, err := r.uint32()
	if err != nil {
		return nil, err
	}
	if id != arrayKind {
		k, err := kindAt(id)
		if err != nil {
			return nil, err
		}
		return k.read(r)
	}
	if id, err = r.uint32(); err != nil {
		return nil, err
	}
	k, err := kindAt(id)
	if err != nil {
		return nil, fmt.Errorf("an array's elements: %w", err)
	}
	n, err := r.uint64()
	if err != nil {
		return nil, err
	}
	return k.list(r, n)
}

func kindAt(id uint32) (*kind, error) {
	if int64(id) >= int64(len(kinds)) || kinds[id].read == nil {
		return nil, corrupt("a value of type %d, want one of 0 to %d that is no array of arrays", id, len(kinds)-1)
	}
	return &kinds[id], nil
}

// whole returns an integer of any size.
func whole(value any) (n int64, ok bool) {
	switch v := value.(type) {
	case uint8:
		return int64(v), true
	case int8:
		return int64(v), true
	case uint16:
		return int64(v), true
	case int16:
		return int64(v), true
	case uint32:
		return int64(v), true
	case int32:
		return int64(v), true
	case uint64:
		return int64(v), v <= math.MaxInt64
	case int64:
		return v, true
	}
	return 0, false
}
