package rounding

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/half"
	"github.com/snug-ml/snug/internal/philox"
)

// TestStore: every tier rounds any part of a vector, of any length, as the definition says
// for each element, and writes nothing else.
func TestStore(t *testing.T) {
	const most = 8<<10 + 300
	r := rand.New(rand.NewPCG(1, 2))
	x := make([]float32, most)
	for i := range x {
		x[i] = float32(r.NormFloat64())
		if i%7 == 0 {
			x[i] = math.Float32frombits(r.Uint32()) // NaNs, infinities and subnormals too
		}
	}
	copy(x[100:], []float32{0, float32(math.Inf(1)), float32(math.Inf(-1)), math.MaxFloat32, -math.MaxFloat32, 1e-45, float32(math.NaN())})
	for _, d := range []Draws{{}, {philox.Stream{Seed: 1, Tensor: 2}, 3}, {philox.Stream{Seed: 4}, math.MaxUint32*8 - 40}, {philox.Stream{Seed: 5, Tensor: math.MaxUint64}, 8}} {
		for _, c := range [][2]int{{0, 0}, {0, 1}, {7, 9}, {16, 1000}, {0, 128}, {8, 127}, {0, 257}, {24, 640}, {5, most - 5}, {32, 4096}, {0, most}} {
			lo, n := c[0], c[1]
			wantB, wantF := make([]snug.BFloat16, n), make([]snug.Float16, n)
			var word [1]uint32
			for i := range n {
				at := d.First + uint64(lo+i)
				draw := d.Halves(word[:], at/2)[at%2:][:1]
				k := half.Registry.Best()
				k.F32ToBF16Stochastic(wantB[i:][:1], x[i:i+1], draw)
				k.F32ToF16Stochastic(wantF[i:][:1], x[i:i+1], draw)
			}
			f := make([]snug.Float16, lo+n)
			d.Store(snug.ViewOf(f), lo, x[:n])
			require.Equal(t, wantF, f[lo:], "%v from %d", d, lo)
			for tier, k := range Registry.All() {
				for name, toBF16 := range map[string]func([]snug.BFloat16, []float32, philox.Stream, uint64){"cached": k.BF16, "streamed": k.BF16Stream} {
					const guard = 0x1234
					b := make([]snug.BFloat16, lo+n+1)
					for i := range b {
						b[i] = guard
					}
					d.store(snug.ViewOf(b), lo, x[:n], toBF16)
					require.Equal(t, wantB, b[lo:lo+n], "%v, %s: %v from %d", tier, name, d, lo)
					for _, i := range append([]int{lo + n}, make([]int, min(lo, 1))...) {
						require.EqualValues(t, guard, b[i], "%v, %s: element %d", tier, name, i)
					}
				}
			}
		}
	}
}

// TestSeeds has the first numbers of SplitMix64 from 1234567, and the hash of "a",
// as they are published.
func TestSeeds(t *testing.T) {
	for k, want := range []uint64{6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431} {
		require.Equal(t, want, Seed(1234567, uint64(k)))
	}
	require.Equal(t, uint64(0xaf63dc4c8601ec8c), Tensor("a"))
}
