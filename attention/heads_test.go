package attention

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
)

// The processor computes query heads that share a key head together, where the query is the only one of its sequence: the results are
// those with a copy of the key head for each, whatever hides keys or tells heads apart.
//
//check:in tiers
func TestHeadsTogether(t *testing.T) {
	const batch, keys, dim = 2, 150, 16
	features := map[string]func(c *Options){
		"":          func(*Options) {},
		"causal":    func(c *Options) { c.Causal = true },
		"bottom":    func(c *Options) { c.Causal, c.Align = true, BottomRight },
		"window":    func(c *Options) { c.Causal, c.Align, c.Window = true, BottomRight, Window{Left: 9} },
		"lengths":   func(c *Options) { c.KLens = []int{0, 77} },
		"softcap":   func(c *Options) { c.Softcap = 2 },
		"sinks":     func(c *Options) { c.Sinks.X = snug.SliceView(kerneltest.Normal(4, c.Heads)) },
		"slopes":    func(c *Options) { c.Slopes, c.Align = snug.SliceView(kerneltest.Normal(5, c.Heads)), BottomRight },
		"last keys": func(c *Options) { c.Causal, c.Align, c.KLens = true, BottomRight, []int{3, 150} },
	}
	for _, tc := range []struct{ kv, group, together int }{{3, 3, 3}, {1, 8, 4}, {2, 6, 3}, {1, 7, 1}, {2, 2, 2}, {4, 1, 1}} {
		for name, feature := range features {
			t.Run(fmt.Sprint(tc.kv, "x", tc.group, " ", name), func(t *testing.T) {
				heads := tc.kv * tc.group
				c := Options{Batch: batch, Heads: heads, KVHeads: tc.kv, SeqQ: 1, SeqK: keys, Dim: dim}
				feature(&c)
				if name == "" {
					r := resolved(t, c)
					r = r.together()
					require.Equal(t, heads/tc.together, r.Heads)
				}
				q, k, v := kerneltest.Normal(1, batch*heads*dim), kerneltest.Normal(2, batch*tc.kv*keys*dim), kerneltest.Normal(3, batch*tc.kv*keys*dim)
				out, lse := make([]float32, len(q)), make([]float32, batch*heads)
				require.NoError(t, Forward(out, lse, q, k, v, c))
				copies := func(x []float32) (all []float32) {
					for h := range batch * heads {
						at := h / tc.group * keys * dim
						all = append(all, x[at:at+keys*dim]...)
					}
					return all
				}
				c.KVHeads = heads
				want, wantLSE := make([]float32, len(q)), make([]float32, len(lse))
				require.NoError(t, Forward(want, wantLSE, q, copies(k), copies(v), c))
				require.InDeltaSlice(t, want, out, 2e-6)
				for i := range lse {
					require.True(t, lse[i] == wantLSE[i] || max(lse[i]-wantLSE[i], wantLSE[i]-lse[i]) < 2e-6, "%v, want %v", lse[i], wantLSE[i])
				}
			})
		}
	}
}
