package philox

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// The known answers of the authors' Random123 library, kat_vectors.
func TestKnownAnswers(t *testing.T) {
	for _, c := range []struct {
		key, high, low uint64
		want           [4]uint32
	}{
		{0, 0, 0, [4]uint32{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
		{math.MaxUint64, math.MaxUint64, math.MaxUint64, [4]uint32{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
		{0x299f31d0a4093822, 0x0370734413198a2e, 0x85a308d3243f6a88, [4]uint32{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
	} {
		require.Equal(t, c.want, block(c.key, c.high, c.low))
	}
}

// Every tier, start and length gives the words of the definition.
func TestWords(t *testing.T) {
	for tier, fast := range Registry.All() {
		for _, first := range []uint64{0, 1, 6, 4<<32 - 8, math.MaxUint64 - 1000} {
			for n := range 131 {
				s := Stream{0x0123456789abcdef, 0xfedcba9876543210}
				buf := make([]uint32, n+2)
				s.words(*fast, buf[1:n+1], first)
				for i, w := range buf[1 : n+1] {
					at := first + uint64(i)
					require.Equal(t, block(s.Seed, s.Tensor, at/4)[at%4], w, "%v: element %d", tier, at)
				}
				require.Zero(t, buf[0]+buf[n+1], "guard words")
			}
		}
	}
}

// A stream in parts is the stream.
func parts(t *rapid.T) {
	s := Stream{rapid.Uint64().Draw(t, "seed"), rapid.Uint64().Draw(t, "tensor")}
	first := rapid.Uint64Max(1<<63).Draw(t, "first")
	n := rapid.IntRange(0, 300).Draw(t, "n")
	cut := rapid.IntRange(0, n).Draw(t, "cut")
	for _, fast := range Registry.All() {
		whole, pieces := make([]uint32, n), make([]uint32, n)
		s.words(*fast, whole, first)
		s.words(*fast, pieces[:cut], first)
		s.words(*fast, pieces[cut:], first+uint64(cut))
		require.Equal(t, whole, pieces)
	}
}

func TestParts(t *testing.T) { rapid.Check(t, parts) }
func FuzzParts(f *testing.F) { f.Fuzz(rapid.MakeFuzz(parts)) }

func BenchmarkWords(b *testing.B) {
	dst := make([]uint32, 1024)
	for tier, fast := range Registry.All() {
		b.Run(fmt.Sprint(tier), func(b *testing.B) {
			b.SetBytes(4096)
			for b.Loop() {
				Stream{1, 2}.words(*fast, dst, 0)
			}
		})
	}
}

func TestHalves(t *testing.T) {
	s := Stream{Seed: 3, Tensor: 4}
	words := make([]uint32, 70)
	s.Words(words, 5)
	halves := s.Halves(make([]uint32, 70), 5)
	require.Len(t, halves, 140)
	for i, w := range words {
		require.Equal(t, []uint16{uint16(w), uint16(w >> 16)}, halves[2*i:2*i+2])
	}
}
