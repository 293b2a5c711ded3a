package quant8

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
)

// largestStep returns the largest change of a parameter at a rate of 1e-3 of an optimizer,
// over runs of a block in which gradients of most elements are large and those of others
// smaller by a share, for some steps, and then 0.
func largestStep(t *testing.T, rule string, bits int, scale float32) float64 {
	const n, steps = 256, 30
	largest := 0.0
	for _, active := range []int{1, 2, 5, 12} {
		a := newOf(t, rule, Options{Bits: bits, MinSize: 1}, map[string]int{"w": n})
		p, g := make([]float32, n), make([]float32, n)
		for s := range steps {
			for i := range g {
				switch {
				case i%4 == 0:
					g[i] = scale * float32(1-s%2*2)
				case s < active:
					g[i] = scale * float32(math.Pow(10, -float64(i)/32))
				default:
					g[i] = 0
				}
			}
			before := append([]float32(nil), p...)
			a.Advance(1e-3)
			require.NoError(t, a.Step("w", snug.ViewOf(p), snug.ViewOf(g), 1))
			for i := range p {
				largest = max(largest, math.Abs(float64(p[i]-before[i])))
			}
		}
	}
	return largest
}

// TestLargestStep: what 8 bits lose of a second moment makes no step long. While codes of 0
// counted as 0, the longest here was 30 for gradients of 1, and 3e7 for those of 1e6.
func TestLargestStep(t *testing.T) {
	for _, rule := range []string{"Adam decoupled", "Adam coupled", "AdEMAMix", "RMSprop", "Adagrad"} {
		for _, scale := range []float32{1e-12, 1e-6, 1e-3, 1, 1e3, 1e6} {
			require.Less(t, largestStep(t, rule, 8, scale), 1.5*largestStep(t, rule, 32, scale), "%s, gradients of %g", rule, scale)
		}
	}
}

// TestAnyLargestStep has gradients of any magnitude in a block, step after step: no step of
// AdamW is longer than its rate times what exact moments allow, (1-β1)/√((1-β2)·(1-β1²/β2)),
// and half of that for the rounding of moments.
func TestAnyLargestStep(t *testing.T) {
	const n, lr = 64, 1e-3
	most := lr * 1.5 * 0.1 / math.Sqrt(0.001*(1-0.81/0.999))
	rapid.Check(t, func(t *rapid.T) {
		a, err := New(AdamW{}, Options{MinSize: 1, Block: n})
		require.NoError(t, err)
		require.NoError(t, a.Add("w", n))
		p, g := make([]float32, n), make([]float32, n)
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		low, high := rapid.Float64Range(-15, 8).Draw(t, "low"), rapid.Float64Range(-15, 8).Draw(t, "high")
		share := rapid.Float64Range(0, 1).Draw(t, "share of zeros")
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			for i := range g {
				g[i] = float32(math.Pow(10, low+(high-low)*rng.Float64()) * float64(1-2*rng.IntN(2)))
				if rng.Float64() < share {
					g[i] = 0
				}
			}
			before := append([]float32(nil), p...)
			a.Advance(lr)
			require.NoError(t, a.Step("w", snug.ViewOf(p), snug.ViewOf(g), 1))
			for i := range p {
				require.LessOrEqual(t, math.Abs(float64(p[i]-before[i])), most+1e-6*math.Abs(float64(p[i])), "element %d", i)
			}
		}
	})
}

// TestSmallGradientsConverge minimizes quadratics whose gradients differ by 10^8 in a block
// and come rarely: from 254 the sum of squares goes to 49 with float32 states and to 96 with
// 8 bits. While codes of 0 counted as 0 it went to 4e7.
//
//check:in tiers arm64
func TestSmallGradientsConverge(t *testing.T) {
	end := func(bits int) (start, sum float64) {
		const n, steps = 256, 400
		a := newAdamW(t, Options{Bits: bits, MinSize: 1}, map[string]int{"w": n})
		p, g := kerneltest.Normal(1, n), make([]float32, n)
		for _, x := range p {
			start += float64(x) * float64(x)
		}
		for s := range steps {
			for i := range g {
				g[i] = 0
				if i%2 == 0 || (s+i)%7 == 0 {
					g[i] = p[i] * float32(math.Pow(10, -float64(i%2)*float64(i)/32))
				}
			}
			a.Advance(1e-2 * float32(steps-s) / steps)
			require.NoError(t, a.Step("w", snug.ViewOf(p), snug.ViewOf(g), 1))
		}
		for _, x := range p {
			sum += float64(x) * float64(x)
		}
		return start, sum
	}
	_, exact := end(32)
	start, coded := end(8)
	t.Logf("sums of squares: from %.3g to %.3g with 32 bits, to %.3g with 8", start, exact, coded)
	require.Less(t, coded, 2.5*exact)
	require.Less(t, coded, 0.5*start)
}
