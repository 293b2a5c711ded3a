package crc32c

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

func noise(n int) []byte {
	rng := rand.New(rand.NewPCG(1, uint64(n)))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}

// TestTiers compares every tier with package hash/crc32, for all short lengths, at every
// offset from a cache line, from every kind of checksum before.
func TestTiers(t *testing.T) {
	b := noise(5000)
	for tier, update := range Registry.All() {
		t.Run(tier.String(), func(t *testing.T) {
			for n := range 2100 {
				for _, sum := range []uint32{0, 1, 1 << 31, 0xFFFFFFFF, 0x12345678} {
					part := b[n%67 : n%67+n]
					require.Equal(t, crc32.Update(sum, table, part), (*update)(sum, part), n)
				}
			}
			require.Equal(t, uint32(0xE3069283), (*update)(0, []byte("123456789")), "the check value of the catalogue")
		})
	}
	var h Hash
	for lo := 0; lo < len(b); lo += 700 {
		n, err := h.Write(b[lo:min(lo+700, len(b))])
		require.NoError(t, err)
		require.Equal(t, min(700, len(b)-lo), n)
	}
	require.Equal(t, Checksum(b), uint32(h))
}

// FuzzUpdate cuts bytes in two.
func FuzzUpdate(f *testing.F) {
	f.Add(noise(1000), 300, uint32(7))
	f.Add([]byte{}, 0, uint32(0))
	f.Fuzz(func(t *testing.T, b []byte, cut int, sum uint32) {
		cut = min(max(cut, 0), len(b))
		want := crc32.Update(sum, table, b)
		for tier, update := range Registry.All() {
			require.Equal(t, want, (*update)((*update)(sum, b[:cut]), b[cut:]), tier)
		}
	})
}

func BenchmarkUpdate(b *testing.B) {
	for tier, update := range Registry.All() {
		for _, n := range []int{1 << 10, 128 << 10} {
			b.Run(fmt.Sprintf("%v/%d", tier, n), func(b *testing.B) {
				data := noise(n)
				b.SetBytes(int64(n))
				for range b.N {
					(*update)(0, data)
				}
			})
		}
	}
}

// TestSeal: bytes that end in their sealed checksum have checksums that tell them apart, where
// with a plain one they have the same.
func TestSeal(t *testing.T) {
	plain, sealed := map[uint32]bool{}, map[uint32]bool{}
	const n = 10000
	for i := range uint64(n) {
		b := binary.LittleEndian.AppendUint64([]byte("state of step "), i)
		sum := Checksum(b)
		plain[Checksum(binary.LittleEndian.AppendUint32(b, sum))] = true
		sealed[Checksum(binary.LittleEndian.AppendUint32(b, Seal(sum)))] = true
	}
	require.Len(t, plain, 1)
	require.Greater(t, len(sealed), n-10, "about as many as there are")
	require.NotZero(t, uint32(0x9e3779b1)%2, "an odd factor is one to one")
}
