package quant8

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
)

// TestAgainst32 is bitsandbytes' test of 8-bit state: step both, compare, and
// set the 32-bit run to the 8-bit one, fifty times. The bounds are its own.
func TestAgainst32(t *testing.T) {
	for _, c := range []struct {
		dt                   snug.DType
		atol, rtol, abs, rel float64
	}{
		{snug.F32, 1e-5, 1e-3, 6e-5, 6e-4},
		{snug.F16, 1e-5, 1e-3, 6e-5, 6e-4},
		{snug.BF16, 1e-4, 1e-2, 1.7e-4, 1.6e-3},
	} {
		t.Run(c.dt.String(), func(t *testing.T) {
			const n = 1 << 15
			a := newWith(t, AdamW{WeightDecay: 0.01}, Options{}, map[string]int{"w": n})
			b := newWith(t, AdamW{WeightDecay: 0.01}, Options{Bits: 32}, map[string]int{"w": n})
			start := kerneltest.Normal(1, n)
			for i := range start {
				start[i] *= 0.1
			}
			put := func(x []float32) *kerneltest.Floats { return kerneltest.PutFloats(t, kerneltest.Backend{}, c.dt, x) }
			p8, p32 := put(start), put(start)
			for i := range 50 {
				g := snug.ViewOf(kerneltest.Normal(uint64(i+2), n))
				advance(a)
				advance(b)
				require.NoError(t, a.Step("w", p8.View, g, 0.01))
				require.NoError(t, b.Step("w", p32.View, g, 0.01))
				m8, v8 := moments(t, a, "w")
				m32, v32 := moments(t, b, "w")
				require.Less(t, outliers(m32, m8, 3e-3, 1e-3), 20, "step %d: m", i+1)
				require.Less(t, outliers(v32, v8, 3e-3, 1e-3), 20, "step %d: v", i+1)
				got, want := p8.Get(), p32.Get()
				require.Less(t, outliers(want, got, c.atol, c.rtol), 20, "step %d: p", i+1)
				abs, rel := apart(want, got)
				require.Less(t, abs, c.abs)
				require.Less(t, rel, c.rel)
				p32 = put(got)
				s := b.params["w"].split32(b.params["w"].state.Host(), n)
				copy(s[0], m8)
				copy(s[1], v8)
			}
		})
	}
}

// distance returns the mean of the absolute and of the relative differences.
func apart(want, got []float32) (abs, rel float64) {
	for i, x := range want {
		d := math.Abs(float64(got[i]) - float64(x))
		abs += d
		rel += d / (math.Abs(float64(x)) + 1e-9)
	}
	return abs / float64(len(want)), rel / float64(len(want))
}

// outliers counts the elements that differ by more than atol + rtol·|want|.
func outliers(want, got []float32, atol, rtol float64) int {
	count := 0
	for i := range want {
		if math.Abs(float64(want[i])-float64(got[i])) > atol+rtol*math.Abs(float64(want[i])) {
			count++
		}
	}
	return count
}
