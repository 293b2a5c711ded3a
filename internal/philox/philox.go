// Package philox is the counter-based random number generator Philox4x32-10 of
// Salmon, Moraes, Dror and Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3"
// (SC 2011).
//
// A stream is named by a seed and a tensor and has one 32-bit word for every
// element. Element i takes word i%4 of the block whose key is the seed and
// whose counter is i/4 in its low 64 bits and the tensor in its high ones, so
// that any part of a stream is computed anywhere, in any order, without state.
package philox

import (
	"encoding/binary"
	"math/bits"
	"unsafe"

	"github.com/snug-ml/snug/internal/cpu"
)

// Stream names one stream of words.
type Stream struct{ Seed, Tensor uint64 }

// blocksFunc writes len(dst)/4 blocks of a stream from block number first on;
// len(dst) is a multiple of group.
type blocksFunc func(dst []uint32, seed, tensor, first uint64)

// Registry holds the generator of every tier.
var Registry cpu.Registry[blocksFunc]

func init() { Registry.Add(cpu.Go, blocks) }

// PerBlock is how many words a block has.
const PerBlock = 4

// group is how many words the assembly writes at a time.
const group = 32

// Words writes the words of elements first to first+len(dst)-1.
func (s Stream) Words(dst []uint32, first uint64) { s.words(*Registry.Best(), dst, first) }

// Halves writes words number first to first+len(dst)-1 and returns their 16-bit
// halves, the lower one of each first, in the same memory: what elements
// 2·first to 2·(first+len(dst))-1 take that need 16 bits only.
func (s Stream) Halves(dst []uint32, first uint64) []uint16 {
	s.Words(dst, first)
	if bigEndian {
		for i, x := range dst {
			dst[i] = bits.RotateLeft32(x, 16)
		}
	}
	return unsafe.Slice((*uint16)(unsafe.Pointer(unsafe.SliceData(dst))), 2*len(dst))
}

// bigEndian says that the upper half of a word lies before the lower.
var bigEndian = binary.NativeEndian.Uint16([]byte{0, 1}) == 1

func (s Stream) words(fast blocksFunc, dst []uint32, first uint64) {
	if skip := first % 4; skip > 0 {
		n := s.part(dst, first/4, skip)
		dst, first = dst[n:], first+uint64(n)
	}
	n := len(dst) / group * group
	fast(dst[:n], s.Seed, s.Tensor, first/4)
	first += uint64(n)
	for dst = dst[n:]; len(dst) > 0; first += 4 {
		dst = dst[s.part(dst, first/4, 0):]
	}
}

// part writes the words of a block from number skip on, as far as dst reaches,
// and returns how many.
func (s Stream) part(dst []uint32, number, skip uint64) int {
	b := block(s.Seed, s.Tensor, number)
	return copy(dst, b[skip:])
}

func blocks(dst []uint32, seed, tensor, first uint64) {
	for ; len(dst) >= 4; dst = dst[4:] {
		*(*[4]uint32)(dst) = block(seed, tensor, first)
		first++
	}
}

// The multipliers of a round and the steps of the key, from the paper.
const (
	mul0, mul1   = 0xD2511F53, 0xCD9E8D57
	weyl0, weyl1 = 0x9E3779B9, 0xBB67AE85
	rounds       = 10
)

func block(key, high, low uint64) [4]uint32 {
	x0, x1, x2, x3 := uint32(low), uint32(low>>32), uint32(high), uint32(high>>32)
	k0, k1 := uint32(key), uint32(key>>32)
	for range rounds {
		p0, p1 := mul0*uint64(x0), mul1*uint64(x2)
		x0, x1, x2, x3 = uint32(p1>>32)^x1^k0, uint32(p1), uint32(p0>>32)^x3^k1, uint32(p0)
		k0 += weyl0
		k1 += weyl1
	}
	return [4]uint32{x0, x1, x2, x3}
}
