package quant8

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
)

// TestLostUpdates has SGD without momentum, whose update is known: counts are those of the definition, and
// counting changes no bit, for states of all widths.
func TestLostUpdates(t *testing.T) {
	const n, lr = 9000, 1.0 / 2048
	for _, stochastic := range []bool{false, true} {
		for _, bits := range []int{4, 8, 16, 32} {
			for _, rule := range []Rule{SGD{}, AdamW{}} {
				o := Options{Bits: bits, Stochastic: stochastic, Seed: 3, Block: 256, Chunk: 2048}
				plain, err := New(rule, o)
				require.NoError(t, err)
				o.CountLost = true
				counts, err := New(rule, o)
				require.NoError(t, err)
				p, g := make([]snug.BFloat16, n), kerneltest.Uniform(2, n)
				for i, x := range kerneltest.Uniform(1, n) {
					p[i] = snug.ToBFloat16(x)
				}
				q, before := append([]snug.BFloat16(nil), p...), append([]snug.BFloat16(nil), p...)
				for _, a := range []*Optimizer{plain, counts} {
					require.NoError(t, a.Add("w", n))
					a.Advance(lr)
				}
				require.NoError(t, plain.Step("w", snug.ViewOf(p), snug.ViewOf(g), 1))
				require.NoError(t, counts.Step("w", snug.ViewOf(q), snug.ViewOf(g), 1))
				require.Equal(t, p, q, "%T, %d bits", rule, bits)
				var same int64
				for i, x := range before {
					if x == q[i] && g[i] != 0 {
						same++
					}
				}
				found := 0
				for name, l := range counts.LostUpdates() {
					found++
					require.Equal(t, "w", name)
					require.Equal(t, stochastic, l.Stochastic)
					require.Contains(t, l.Remedy, "Split24Master")
					require.InDelta(t, same, l.Lost, 40, "%T, %d bits: updates of 0 are not counted", rule, bits)
					require.Greater(t, l.Lost, int64(500))
					require.InDelta(t, n, l.Updates, 40)
					if _, sgd := rule.(SGD); sgd && bits == 32 {
						var squares float64
						for i, x := range before {
							u := float64(x.Float32()-float32(lr*g[i])) - float64(x.Float32())
							squares += u * u
						}
						require.InEpsilon(t, squares, l.Squares, 1e-9)
					}
				}
				require.Equal(t, 1, found)
				counts.ForgetLostUpdates()
				for range counts.LostUpdates() {
					t.Fatal("counts stay")
				}
				for range plain.LostUpdates() {
					t.Fatal("counts that were not asked for")
				}
				require.NoError(t, plain.Close())
				require.NoError(t, counts.Close())
			}
		}
	}
}

// TestLostUpdatesCost: counting allocates nothing, and sums do not depend on GOMAXPROCS.
func TestLostUpdatesCost(t *testing.T) {
	const n = 100_000
	var all []LostUpdates
	for _, procs := range []int{1, 4} {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(procs))
		a, err := New(AdamW{}, Options{CountLost: true})
		require.NoError(t, err)
		require.NoError(t, a.Add("w", n))
		p, g := snug.ViewOf(make([]snug.BFloat16, n)), snug.ViewOf(kerneltest.Uniform(1, n))
		require.NoError(t, snug.Copy(p, snug.ViewOf(bfloats(kerneltest.Uniform(4, n)))))
		a.Advance(1e-3)
		require.NoError(t, a.Step("w", p, g, 1))
		for _, l := range a.LostUpdates() {
			all = append(all, l)
		}
		if procs == 1 {
			kerneltest.NoAllocs(t, func() {
				a.Advance(1e-3)
				err = a.Step("w", p, g, 1)
			})
			require.NoError(t, err)
		}
		require.NoError(t, a.Close())
	}
	require.Len(t, all, 2)
	require.Equal(t, all[0], all[1])
}

func bfloats(x []float32) []snug.BFloat16 {
	out := make([]snug.BFloat16, len(x))
	for i, v := range x {
		out[i] = snug.ToBFloat16(v)
	}
	return out
}
