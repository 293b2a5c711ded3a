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

// TestStore: any part of a vector, of any length, is rounded as element by element.
func TestStore(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	x := make([]float32, MaxStore)
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
	for _, d := range []Draws{{}, {philox.Stream{Seed: 1, Tensor: 2}, 3}, {philox.Stream{Seed: 4}, math.MaxUint32 * 8}} {
		for _, c := range [][2]int{{0, 0}, {0, 1}, {7, 9}, {16, 1000}, {5, MaxStore - 5}, {0, MaxStore}} {
			lo, n := c[0], c[1]
			b, want := make([]snug.BFloat16, lo+n), make([]snug.BFloat16, lo+n)
			f, wantF := make([]snug.Float16, lo+n), make([]snug.Float16, lo+n)
			d.Store(snug.ViewOf(b), lo, x[:n])
			d.Store(snug.ViewOf(f), lo, x[:n])
			k := half.Registry.Best()
			var word [1]uint32
			for i := range n {
				at := d.First + uint64(lo+i)
				draw := d.Halves(word[:], at/2)[at%2:][:1]
				k.F32ToBF16Stochastic(want[lo+i:][:1], x[i:i+1], draw)
				k.F32ToF16Stochastic(wantF[lo+i:][:1], x[i:i+1], draw)
			}
			require.Equal(t, want, b, "%v from %d", d, lo)
			require.Equal(t, wantF, f, "%v from %d", d, lo)
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
