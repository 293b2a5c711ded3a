package amp

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
)

// TestLostUpdates compares counts with what parameters were and are, and requires that counting changes no bit.
func TestLostUpdates(t *testing.T) {
	where(t, func(t *testing.T, p kerneltest.Backend, masters *snug.Device) {
		const n = lostPiece + 900
		first := kerneltest.Uniform(1, n)
		for _, o := range []MasterOptions{{Form: NoMaster}, {Form: Split24Master}, {Form: Split24Master, Stochastic: true}, {Form: SplitMaster}, {}} {
			o.Seed, o.Device, o.Chunk = 3, masters, lostPiece-7
			plain := newMaster(t, o)
			o.CountLost = true
			counts := newMaster(t, o)
			closeMaster(t, plain)
			closeMaster(t, counts)
			a, b := kerneltest.Put(t, p, make([]snug.BFloat16, n)), kerneltest.Put(t, p, make([]snug.BFloat16, n))
			require.NoError(t, plain.AddFrom("w", a.View, fillWith(first)))
			require.NoError(t, counts.AddFrom("w", b.View, fillWith(first)))
			var want LostUpdates
			stored := make([]float32, n)
			for k := range 3 {
				computed := make([]float32, n)
				step := func(lo int, w []float32) {
					copy(stored[lo:], w)
					for i, g := range kerneltest.Uniform(uint64(9+k), n)[lo : lo+len(w)] {
						if i%3 > 0 {
							w[i] -= g / 40000
						}
					}
					copy(computed[lo:], w)
				}
				require.NoError(t, plain.Update("w", a.View, onHost(t, step)))
				require.NoError(t, counts.Update("w", b.View, onHost(t, step)))
				require.Equal(t, a.Get(), b.Get(), "%v", o.Form)
				before := append([]float32(nil), stored...)
				require.NoError(t, plain.Update("w", a.View, onHost(t, func(lo int, w []float32) { copy(stored[lo:], w) })))
				require.NoError(t, counts.Update("w", b.View, func(int, snug.View) error { return nil })) // for the same random numbers
				for i, x := range before {
					u := float64(computed[i]) - float64(x)
					if u == 0 {
						continue
					}
					want.Updates++
					want.Squares += u * u
					if stored[i] == x {
						want.Lost++
						want.LostSquares += u * u
					}
				}
			}
			found := 0
			for name, got := range counts.LostUpdates() {
				found++
				require.Equal(t, "w", name)
				require.Equal(t, []any{want.Updates, want.Lost, counts.random}, []any{got.Updates, got.Lost, got.Stochastic})
				require.InEpsilon(t, want.Squares, got.Squares, 1e-12)
				require.InEpsilon(t, want.LostSquares, got.LostSquares, 1e-12)
				require.Greater(t, got.Lost, int64(100))
				require.Contains(t, got.String(), "what would help: ")
			}
			require.Equal(t, o.Form == NoMaster || o.Form == Split24Master, found == 1, "%v", o.Form)
			counts.ForgetLostUpdates()
			for range counts.LostUpdates() {
				t.Fatal("counts stay")
			}
			for range plain.LostUpdates() {
				t.Fatal("counts that were not asked for")
			}
		}
	})
}

// TestLostUpdatesForAnyWorkerCount has the same sums for any GOMAXPROCS.
//
//check:in race
func TestLostUpdatesForAnyWorkerCount(t *testing.T) {
	const n = 3*castChunk + 77
	first := kerneltest.Uniform(1, n)
	run := func(procs int) (all LostUpdates) {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(procs))
		m, param := newMaster(t, MasterOptions{Form: Split24Master, Stochastic: true, CountLost: true, Chunk: n}), make([]snug.BFloat16, n)
		require.NoError(t, m.AddFrom("w", snug.ViewOf(param), fillWith(first)))
		require.NoError(t, m.Update("w", snug.ViewOf(param), func(_ int, v snug.View) error {
			for i, w := range v.Float32s() {
				v.Float32s()[i] = w * 1.00001
			}
			return nil
		}))
		for _, l := range m.LostUpdates() {
			all = l
		}
		return all
	}
	require.Equal(t, run(1), run(4))
}
