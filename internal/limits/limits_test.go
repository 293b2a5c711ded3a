package limits

import (
	"slices"
	"testing"

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
	for _, bytes := range []int{0, 1, 1 << 20} {
		got := Bandwidth(Read, bytes, 2)
		t.Logf("read %d bytes: %.1f GB/s", bytes, got/1e9)
		require.Positive(t, got)
	}
	for _, m := range Mixes {
		require.Positive(t, Bandwidth(m, 1<<14, 1), m)
	}
}

// Every loop writes what it says, all of it, and nothing else.
func TestStreams(t *testing.T) {
	for tier, l := range registry.All() {
		if l.stream == nil {
			continue
		}
		for _, m := range Mixes {
			for _, w := range m.ways() {
				for n := grain; n <= 3*grain; n += grain {
					testStream(t, tier, l.stream, m, w, n)
				}
			}
		}
	}
}

func testStream(t *testing.T, tier cpu.Tier, loop stream, m Mix, w way, n int) {
	vector := n + margin
	got := aligned(m.vectors()*vector + margin)
	for i := range got {
		got[i] = byte(i*7 + i>>8)
	}
	want := slices.Clone(got)
	for v := m.In; v < m.vectors(); v++ {
		copy(want[margin+v*vector:][:n], want[margin+(v-m.In)%m.In*vector:])
	}
	w.run(loop, m, &got[margin], n, vector)()
	require.Equal(t, want, got, "%v %+v, %+v, n=%d", tier, m, w, n)
}
