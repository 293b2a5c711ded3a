// Package crc32c computes CRC-32C checksums as package hash/crc32 does with its table of
// Castagnoli's polynomial, up to four times as fast where the machine has carry-less
// products of vectors.
package crc32c

import (
	"hash/crc32"
	"math/bits"

	"github.com/snug-ml/snug/internal/cpu"
)

// Size is the bytes of a checksum.
const Size = crc32.Size

// Registry has the implementations of Update.
var Registry cpu.Registry[func(sum uint32, b []byte) uint32]

var table = crc32.MakeTable(crc32.Castagnoli)

func init() { Registry.Add(cpu.Go, update) }

func update(sum uint32, b []byte) uint32 { return crc32.Update(sum, table, b) }

// Update returns the checksum of what has the checksum sum, followed by b. That of nothing
// is 0.
func Update(sum uint32, b []byte) uint32 { return (*Registry.Best())(sum, b) }

// Checksum returns the CRC-32C of b.
func Checksum(b []byte) uint32 { return Update(0, b) }

// Seal returns what saved state ends with, from the checksum of all before. Bytes that end in
// their own checksum would all have the same checksum: what holds them, such as a page or
// another state, could not tell them apart by its own. Seal is one to one, so it finds what the
// checksum finds, and not linear, so that the checksum of the whole depends on the bytes.
func Seal(sum uint32) uint32 { return bits.RotateLeft32(sum*0x9e3779b1, 15) }

// Hash is the checksum of what was written to it.
type Hash uint32

// Write adds b. It never fails.
func (h *Hash) Write(b []byte) (int, error) {
	*h = Hash(Update(uint32(*h), b))
	return len(b), nil
}
