package limits

import (
	"testing"
	"unsafe"

	"github.com/snug-ml/snug/internal/cpu"
	"github.com/stretchr/testify/require"
)

func TestRates(t *testing.T) {
	for tier := cpu.Go; tier.Known(); tier++ {
		got := FMA(tier, 1)
		t.Logf("FMA %v: %.1f GFLOP/s", tier, got/1e9)
		if tier == cpu.Go {
			require.Positive(t, got)
		}
		if !tier.Has() {
			require.Zero(t, got)
		}
	}
	require.Zero(t, FMA(-1, 1))
	dot := BF16Dot(1)
	t.Logf("dot: %.1f GFLOP/s", dot/1e9)
	if !cpu.AVX512BF16.Has() {
		require.Zero(t, dot)
	}
	tile := BF16Tile(1)
	t.Logf("tile: %.1f GFLOP/s", tile/1e9)
	if !cpu.AMX.Has() {
		require.Zero(t, tile)
	}
	for _, bytes := range []int{0, 1, 1 << 14, 1 << 20} {
		c, r := Copy(bytes, 2), Read(bytes, 2)
		t.Logf("%d bytes: copy %.1f GB/s, read %.1f GB/s", bytes, c/1e9, r/1e9)
		require.Positive(t, c)
		require.Positive(t, r)
	}
}

// Every way to copy copies every byte and no other.
func TestCopies(t *testing.T) {
	for tier, l := range registry.All() {
		for _, do := range l.copies {
			for n := block; n < 8*block; n += block {
				src, all := aligned(n), aligned(n+2*align)
				for i := range src {
					src[i] = byte(i*7 + i>>8)
				}
				do(all[align:][:n], src)
				require.Equal(t, src, all[align:][:n], tier)
				require.Equal(t, make([]byte, align), all[:align], tier)
				require.Equal(t, make([]byte, align), all[align+n:], tier)
			}
		}
	}
}

func TestSplitIsAligned(t *testing.T) {
	for _, workers := range []int{1, 3} {
		parts := split(10_000, workers)
		require.Len(t, parts, workers)
		for _, p := range parts {
			require.Zero(t, uintptr(unsafe.Pointer(&p[0]))%align)
			require.Zero(t, len(p)%block)
			require.GreaterOrEqual(t, len(p)*workers, 10_000)
		}
	}
}
