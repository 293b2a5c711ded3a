package attention

import (
	"fmt"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

// A bias that is the same for all keys of a query changes nothing, and has no gradient: in
// the sum over the keys nothing is left of the rounding of out, however long the rows and
// large the scores. Before, 16 bits left 2^-11 of dout · out.
func TestBiasOfAllKeysHasNoGradient(t *testing.T) {
	kerneltest.Each(t, func(t *testing.T, place kerneltest.Place) {
		for _, dt := range []snug.DType{snug.F32, snug.F16, snug.BF16} {
			for name, add := range map[string]func(*Config){
				"plain":   func(*Config) {},
				"causal":  func(c *Config) { c.Causal = true },
				"lens":    func(c *Config) { c.KLens = []int{70, 3} },
				"dropout": func(c *Config) { c.Dropout = Dropout{P: 0.5, Seed: 3} },
				"softcap": func(c *Config) { c.Softcap = 2 },
				"mask":    func(c *Config) { c.Mask, _ = NewMask(1, 1, 70, 70, func(_, _, i, j int) bool { return (i+j)%3 > 0 }) },
			} {
				t.Run(fmt.Sprint(dt, " ", name), func(t *testing.T) {
					c := Config{Batch: 2, Heads: 2, KVHeads: 1, SeqQ: 70, SeqK: 70, Dim: 512}
					add(&c)
					p := newProblem(t, c, dt, 5)
					p.biasType, p.bias = dt, make([]float32, 70)
					p.c.Bias = Bias{X: snug.SliceView(p.bias), Dims: [4]int{1, 1, 70, 1}, Grad: snug.SliceView(make([]float32, 70))}
					for i, x := range p.run(t, place, dt).dbias {
						require.InDelta(t, 0, x, 1e-4, "query %d, of 280 sums of 512 products", i)
					}
				})
			}
		}
	})
}
