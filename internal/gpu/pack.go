package gpu

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"github.com/snug-ml/snug/internal/crc32c"
)

// PackImage returns the image of some codes, in their order. Machine code shares streams in pairs of neighbours. compress
// returns the LZMA stream of Data, as unpackLZMA reads it; without it streams are stored.
func PackImage(codes []Code, compress func(Code) ([]byte, error)) ([]byte, error) {
	if len(codes) == 0 || len(codes) > math.MaxUint16 {
		return nil, fmt.Errorf("an image of %d codes: want 1 to %d", len(codes), math.MaxUint16)
	}
	le := binary.LittleEndian
	index := le.AppendUint16([]byte(imageMagic), imageVersion)
	index = le.AppendUint16(index, uint16(len(codes)))
	index = append(index, 0, 0, 0, 0)
	var streams []byte
	for len(codes) > 0 {
		n := 1
		if !codes[0].PTX && len(codes) > 1 && !codes[1].PTX {
			n = 2
		}
		stream := codes[0]
		stream.Data = nil
		entries := make([]entry, n)
		for i, c := range codes[:n] {
			e, data, err := c.prepare()
			if err != nil {
				return nil, err
			}
			e.Start = uint32(len(stream.Data))
			stream.Data = append(stream.Data, data...)
			e.End = uint32(len(stream.Data))
			entries[i] = e
		}
		packed := append([]byte{stored}, stream.Data...)
		if compress != nil {
			var err error
			if packed, err = compress(stream); err != nil {
				return nil, fmt.Errorf("%v: %w", stream, err)
			}
		}
		at := imageHeader + imageEntry*int(le.Uint16(index[10:])) + len(streams)
		if int64(len(stream.Data)) > math.MaxUint32 || int64(at+len(packed)) > math.MaxUint32 {
			return nil, fmt.Errorf("%v of %d bytes does not fit an image", stream, len(stream.Data))
		}
		for _, e := range entries {
			e.Offset, e.Packed, e.Sum, e.Unpacked = uint32(at), uint32(len(packed)), crc32c.Checksum(packed), uint32(len(stream.Data))
			var err error
			if index, err = binary.Append(index, le, e); err != nil {
				return nil, err
			}
		}
		streams = append(streams, packed...)
		codes = codes[n:]
	}
	le.PutUint32(index[12:], indexSum(index))
	return append(index, streams...), nil
}

// prepare returns what the index has of a code, without its place, and what a stream has of it.
func (c Code) prepare() (entry, []byte, error) {
	number, kind := c.number()
	if number < 10 || number > math.MaxUint16 || int64(len(c.Data)) > math.MaxUint32 {
		return entry{}, nil, fmt.Errorf("%v of %d bytes does not fit an image", c, len(c.Data))
	}
	e := entry{Number: uint16(number), Kind: kind, Size: uint32(len(c.Data))}
	if c.Alone {
		e.Alone = 1
	}
	data := slices.Clone(c.Data)
	switch kind {
	case kindCubin:
		first, behind := instructions(data)
		orderWords(data[first:behind])
		e.First, e.Behind = uint32(first), uint32(behind)
	case kindPTX:
		data, _ = packPTX(c.Data)
		if again, ok := unpackPTX(nil, data, len(c.Data)); !ok || !bytes.Equal(again, c.Data) {
			return entry{}, nil, fmt.Errorf("%v has no form with differences", c)
		}
	}
	return e, data, nil
}
