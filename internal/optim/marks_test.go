package optim

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestMarks compares claims with sets of parts.
func TestMarks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		parts := rapid.IntRange(0, 20).Draw(t, "parts")
		m, updated := NewMarks(parts), map[int]bool{}
		for range rapid.IntRange(0, 20).Draw(t, "calls") {
			first := rapid.IntRange(0, parts).Draw(t, "first")
			last := rapid.IntRange(first, parts).Draw(t, "last")
			taken := -1
			for i := last - 1; i >= first; i-- {
				if updated[i] {
					taken = i
				}
			}
			require.Equal(t, taken, m.Claim(first, last))
			if taken >= 0 {
				continue
			}
			ok := rapid.Bool().Draw(t, "ok")
			done := rapid.IntRange(first, last).Draw(t, "done")
			m.Set(first, done, Updated)
			half := !ok && done < last && rapid.Bool().Draw(t, "half")
			if half {
				m.Set(done, done+1, Begun)
			}
			require.Equal(t, half, m.Settle(first, last, ok))
			if half {
				return
			}
			if ok {
				done = last
			}
			for i := first; i < done; i++ {
				updated[i] = true
			}
		}
		require.Equal(t, len(updated) >= max(1, parts), m.All(Updated))
		bits := m.Bits()
		require.True(t, ValidBits(bits, parts))
		for i := range parts {
			require.Equal(t, updated[i], bits[i/8]>>(i%8)&1 == 1)
		}
		if parts%8 != 0 {
			bits[len(bits)-1] |= 0x80
			require.False(t, ValidBits(bits, parts))
		}
		require.False(t, ValidBits(append(bits, 0), parts))
	})
}
