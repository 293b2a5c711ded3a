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

// TestAccumulate: every tier adds any part of a vector as the definition says for each element.
func TestAccumulate(t *testing.T) {
	const most = 3000
	r := rand.New(rand.NewPCG(3, 4))
	old, x := make([]snug.BFloat16, most), make([]float32, most)
	f, b := make([]snug.Float16, most), make([]snug.BFloat16, most)
	for i := range x {
		old[i], b[i] = snug.BFloat16(r.Uint32()), snug.BFloat16(r.Uint32()) // NaNs and infinities too
		x[i], f[i] = float32(r.NormFloat64()), snug.Float16(r.Uint32())
		if i%5 > 0 {
			old[i] = snug.ToBFloat16(float32(r.NormFloat64()))
		}
	}
	const alpha, beta = 0.3, 0.7
	for _, d := range []Draws{{}, {philox.Stream{Seed: 1, Tensor: 2}, 3}, {philox.Stream{Seed: 4}, math.MaxUint32*8 - 40}} {
		for _, g := range []snug.View{snug.ViewOf(x), snug.ViewOf(f), snug.ViewOf(b)} {
			values := make([]float32, most)
			half.Load(values, g, 0)
			for _, c := range [][2]int{{0, 1}, {7, 9}, {0, 128}, {8, 127}, {3, 1500}, {0, most}, {24, 640}} {
				lo, n := c[0], c[1]
				n = min(n, most-lo)
				want := make([]snug.BFloat16, n)
				var word [1]uint32
				for i := range want {
					at := d.First + uint64(lo+i)
					sum := float32(alpha*values[lo+i]) + float32(beta*old[i].Float32())
					half.Registry.Best().F32ToBF16Stochastic(want[i:][:1], []float32{sum}, d.Halves(word[:], at/2)[at%2:][:1])
				}
				for tier, k := range Registry.All() {
					acc := append([]snug.BFloat16{}, old[:n]...)
					d.accumulate(k, acc, g, lo, alpha, beta)
					for i := range want {
						if want[i].Float32() == want[i].Float32() || acc[i].Float32() == acc[i].Float32() {
							require.Equal(t, want[i], acc[i], "%v: %v from %d, element %d of %d, %v", tier, d, lo, i, n, g.DType())
						}
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
