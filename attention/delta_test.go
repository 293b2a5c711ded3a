package attention

import (
	"fmt"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

// A bias that is the same for all keys of a query changes nothing, and has no gradient: in
// the sum over the keys nothing is left of the rounding of out and of lse, however long the
// rows are. With dout · out 16 bits left 2^-11 of that.
func TestBiasOfAllKeysHasNoGradient(t *testing.T) {
	const queries, keys = 9, 70
	mask, err := NewMask(1, 1, queries, keys, func(_, _, i, j int) bool { return (i+j)%3 > 0 })
	require.NoError(t, err)
	features := []struct {
		name string
		add  func(*Options)
	}{
		{"plain", func(*Options) {}},
		{"causal", func(c *Options) { c.Causal = true }},
		{"lens", func(c *Options) { c.KLens = []int{keys, 3} }},
		{"dropout", func(c *Options) { c.Dropout = Dropout{P: 0.5, Seed: 3} }},
		{"softcap", func(c *Options) { c.Softcap = 2 }},
		{"mask", func(c *Options) { c.Mask = mask }},
		{"all", func(c *Options) {
			c.Causal, c.KLens, c.Dropout, c.Softcap, c.Mask = true, []int{keys, 40}, Dropout{P: 0.5, Seed: 3}, 2, mask
		}},
	}
	kerneltest.Each(t, func(t *testing.T, backend kerneltest.Backend) {
		dim, some := 512, features
		if !onHost(backend) {
			dim, some = 64, features[len(features)-1:] // the emulator is slow
		}
		for _, dt := range dtypes {
			for _, feature := range some {
				t.Run(fmt.Sprint(dt, " ", feature.name), func(t *testing.T) {
					c := Options{Batch: 2, Heads: 2, KVHeads: 1, SeqQ: queries, SeqK: keys, Dim: dim}
					feature.add(&c)
					p := newProblem(t, c, dt, 5)
					p.biasType, p.bias = dt, make([]float32, queries)
					p.c.Bias = Bias{X: snug.SliceView(p.bias), Dims: [4]int{1, 1, queries, 1}, Grad: snug.SliceView(make([]float32, queries))}
					for i, x := range p.run(t, backend, dt).dbias {
						require.InDelta(t, 0, x, 2e-5, "query %d", i)
					}
				})
			}
		}
	})
}
