package quant8

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
)

// TestMatrixOptions: matrices of every width of the state, rounded to nearest or at
// random, with a rate of their own, go on after a restart as without one.
func TestMatrixOptions(t *testing.T) {
	const rows, cols, steps = 40, 33, 4
	params := func(string) ParamOptions { return ParamOptions{LR: 0.5, NoDecay: true} }
	for name := range matrixRules {
		for _, bits := range []int{4, 8, 16, 32} {
			var ends [2][]snug.BFloat16
			for i, stochastic := range []bool{false, true} {
				s := Options{Bits: bits, MinSize: 1, Block: 64, Stochastic: stochastic, Seed: 3, Params: params}
				sides := map[string][2]int{"w": {rows, cols}}
				p := make([]snug.BFloat16, rows*cols)
				for k, x := range kerneltest.Normal(1, len(p)) {
					p[k] = snug.ToBFloat16(x)
				}
				run := func(a *Optimizer, p []snug.BFloat16, steps int) []snug.BFloat16 {
					for range steps {
						advance(a)
						require.NoError(t, a.Step("w", snug.ViewOf(p), snug.ViewOf(kerneltest.Normal(uint64(a.Steps()), len(p))), 1))
					}
					return p
				}
				want := run(newMatrices(t, name, s, sides), slices.Clone(p), steps)
				first, second := newMatrices(t, name, s, sides), newMatrices(t, name, s, sides)
				half := run(first, slices.Clone(p), steps/2)
				data, err := first.AppendBinary(nil)
				require.NoError(t, err)
				require.NoError(t, second.UnmarshalBinary(data))
				require.True(t, equal(want, run(second, half, steps/2)), "%s, %d bits", name, bits)
				require.False(t, equal(want, p))
				ends[i] = want
			}
			require.False(t, equal(ends[0], ends[1]), "%s, %d bits", name, bits)
		}
	}
}
