package safetensors

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/snug-ml/snug"
)

// Bytes returns the bytes of a file before its data, as the reference
// implementation writes them: padded with spaces to a multiple of 8. The keys of
// the metadata are sorted. The error wraps [snug.ErrConfig] when the header is
// longer than MaxHeader.
func (h *Header) Bytes() ([]byte, error) {
	b := append(make([]byte, prefixBytes), '{')
	if h.Metadata != nil {
		b = append(b, `"`+metadataKey+`":{`...)
		for i, key := range slices.Sorted(maps.Keys(h.Metadata)) {
			b = appendString(separate(b, i), key)
			b = appendString(append(b, ':'), h.Metadata[key])
		}
		b = append(b, '}')
	}
	for i := range h.Tensors {
		if i > 0 || h.Metadata != nil {
			b = append(b, ',')
		}
		b = h.Tensors[i].append(b)
	}
	b = append(b, '}')
	for len(b)%8 != 0 {
		b = append(b, ' ')
	}
	n := len(b) - prefixBytes
	if n > MaxHeader {
		return nil, fmt.Errorf("a header of %d bytes, want at most %d: %w", n, MaxHeader, snug.ErrConfig)
	}
	binary.LittleEndian.PutUint64(b, uint64(n))
	return b, nil
}

func (t *Tensor) append(b []byte) []byte {
	b = appendString(b, t.Name)
	b = appendString(append(b, `:{"dtype":`...), t.DType)
	b = append(b, `,"shape":[`...)
	for i, d := range t.Shape {
		b = strconv.AppendInt(separate(b, i), int64(d), 10)
	}
	b = append(b, `],"data_offsets":[`...)
	b = strconv.AppendInt(b, t.Begin, 10)
	b = strconv.AppendInt(append(b, ','), t.End, 10)
	return append(b, "]}"...)
}

// separate appends the comma before item i.
func separate(b []byte, i int) []byte {
	if i > 0 {
		b = append(b, ',')
	}
	return b
}

// appendString appends a string of JSON, escaped where it must be only.
func appendString(b []byte, s string) []byte {
	const short = "\b\t\n\f\r\"\\" // with an escape of one letter of
	const letters = `btnfr"\`
	b = append(b, '"')
	for _, r := range s {
		switch i := strings.IndexRune(short, r); {
		case i >= 0:
			b = append(b, '\\', letters[i])
		case r < ' ':
			b = fmt.Appendf(b, `\u%04x`, r)
		default:
			b = utf8.AppendRune(b, r)
		}
	}
	return append(b, '"')
}
