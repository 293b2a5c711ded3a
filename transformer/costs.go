package transformer

import (
	"fmt"
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/remat"
)

// Costs returns the costs of the chain, for the planners of package remat, for batches of so many sequences of so many
// tokens each. Sizes are the bytes that Backprop holds: outputs, saved sets, and the largest transient bytes of a
// forward and of a backward step. The transient bytes of a stage with experts depend on the largest group: the rows
// that choose the same expert. Costs assumes twice the mean; a batch with a larger group takes more. Times are 10⁹
// multiply-adds: they compare stages, and do not depend on the machine.
//
// The error wraps [snug.ErrConfig] for a batch without tokens or of more than 2^31-1 tokens.
func (m *Model) Costs(sequences, tokens int) (remat.Costs, error) {
	c, most := &m.config, math.MaxInt32
	if sequences < 1 || tokens < 1 || sequences > most/tokens || int64(sequences*tokens) > math.MaxInt64/128/int64(max(1, m.widest())) {
		return remat.Costs{}, fmt.Errorf("transformer: Costs: %d sequences of %d tokens, want 1 to 2^31-1 tokens: %w", sequences, tokens, snug.ErrConfig)
	}
	rows, size := int64(sequences)*int64(tokens), int64(m.dtype.Size())
	dim, hidden := size*int64(c.Dim), size*int64(c.Hidden)
	q, kv := size*int64(c.Heads*c.HeadDim), size*int64(c.KVHeads*c.HeadDim)
	statistics := int64(4) // of the norm
	if c.LayerNorm {
		statistics += 4
	}
	heads, normed, normedStats := 4*int64(c.Heads), int64(0), int64(0)
	if m.options.PlainAttention {
		heads = size * int64(c.Heads) * int64(tokens+c.sinkColumns())
	}
	if c.QKNorm {
		normed, normedStats = q+kv, 4*int64(c.Heads+c.KVHeads)
	}
	post, postStats := int64(0), int64(0)
	if c.PostNorms {
		post, postStats = dim, 4
	}
	freed, freedLater := int64(0), int64(0) // within a backward step of attention
	if c.freesSaved() {
		freed, freedLater = dim, dim+2*q+2*kv
	}
	rank := adaptersOfLayers(m)
	giga := float64(rows) / 1e9
	mulAttention := giga * (float64(c.Dim*(2*c.Heads+2*c.KVHeads)*c.HeadDim) + float64(tokens)*float64(c.Heads*c.HeadDim))
	in := int64(1)
	if c.Gated {
		in = 2
	}
	mulMLP := giga * float64(in+1) * float64(c.Dim) * float64(c.Hidden)
	var costs remat.Costs // the first stage makes its input
	for i := range c.Layers {
		r := rank[i]
		attention := remat.Cost{
			Name: fmt.Sprintf("layer %d attention", i), Output: rows * dim,
			Saved:        rows * (dim + statistics + q + 2*kv + q + heads + post + postStats),
			ForwardExtra: rows * max(q+2*kv+r.qkv.forward, 2*q+2*kv-dim, q+r.out.forward, dim+r.qkv.forward, normed),
			BackwardExtra: rows * max(post+q+r.out.backward-freed, q+2*kv+q+normed+normedStats-freed,
				q+2*kv+dim+r.qkv.second+r.qkv.backward-freedLater),
			ForwardTime: mulAttention, BackwardTime: 2.5 * mulAttention,
		}
		if i == 0 { // it holds the embedding, and its gradient, which is no other stage's
			attention.ForwardExtra += rows * dim
			attention.BackwardExtra += 2 * rows * dim
		}
		costs.Stages = append(costs.Stages, attention)
		if b, ok := m.chain.Stages[2*i+1].(*expertsHalf); ok {
			costs.Stages = append(costs.Stages, b.cost(rows, int64(sequences)*int64(c.groupRows(tokens))))
			continue
		}
		kept := statistics + in*hidden + post + postStats
		backward := max(hidden+post+r.down.second+r.down.backward, dim+r.in.second+r.in.backward)
		mlp := remat.Cost{
			Name: fmt.Sprintf("layer %d mlp", i), Output: rows * dim,
			Saved:         rows * (dim + kept),
			ForwardExtra:  rows * max(in*hidden+r.in.forward, dim+r.in.forward, hidden+r.down.forward),
			BackwardExtra: rows * backward,
			ForwardTime:   mulMLP, BackwardTime: 2 * mulMLP,
		}
		if m.tiled() {
			tile := int64(tileRows(int(rows), m.options.Tiles))
			mlp.Saved = mlp.Output
			mlp.ForwardExtra = tile * max(dim+in*hidden+r.in.forward, hidden+r.down.forward)
			mlp.BackwardExtra = tile * (kept + backward)
			mlp.BackwardTime += mulMLP
		}
		costs.Stages = append(costs.Stages, mlp)
	}
	return costs, nil
}
