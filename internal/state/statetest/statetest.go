// Package statetest damages saved state for tests.
package statetest

import (
	"bytes"
	"encoding/binary"

	"github.com/snug-ml/snug/internal/crc32c"
)

// What stands around the header of saved state, in bytes: the kind, the version and the
// sizes before it, a checksum after it and another one at the end.
const (
	Prefix   = 24
	Checksum = crc32c.Size
)

// Seal returns data with its checksums made right, as far as they can be found.
func Seal(data []byte) []byte {
	data = bytes.Clone(data)
	if len(data) < Prefix+2*Checksum {
		return data
	}
	put := func(end int) {
		binary.LittleEndian.PutUint32(data[end:], crc32c.Seal(crc32c.Checksum(data[:end])))
	}
	if n := HeaderSize(data); n >= 0 && n <= len(data)-Prefix-2*Checksum {
		put(Prefix + n)
	}
	put(len(data) - Checksum)
	return data
}

// HeaderSize returns the bytes of the header that saved state claims, negative beyond an int.
func HeaderSize(data []byte) int { return int(binary.LittleEndian.Uint32(data[12:])) }
