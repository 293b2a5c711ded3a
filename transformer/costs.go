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
// that choose the same expert. Costs assumes twice the mean; a batch with a larger group takes more. Stages have the names that a
// Monitor shows, such as "layers.3.mlp", by which [remat.Only] selects them. Times are 10⁹ multiply-adds: they compare stages, and do not depend on the machine.
//
// The error wraps [snug.ErrConfig] for a batch without tokens or of more than 2^31-1 tokens.
func (m *Model) Costs(sequences, tokens int) (remat.Costs, error) {
	const most = math.MaxInt32
	if sequences < 1 || tokens < 1 || sequences > most/tokens || int64(sequences*tokens) > math.MaxInt64/128/int64(max(1, m.widest())) {
		return remat.Costs{}, fmt.Errorf("transformer: Costs: %d sequences of %d tokens, want 1 to 2^31-1 tokens: %w", sequences, tokens, snug.ErrConfig)
	}
	var costs remat.Costs
	for i, s := range m.stages {
		cost := s.cost(sequences, tokens)
		cost.Name = m.config.stageName(i)
		costs.Stages = append(costs.Stages, cost)
	}
	return costs, nil
}

// halfBytes returns the bytes of a row that stages of all kinds save, and those of the input of the norm after the half.
func (m *Model) halfBytes() (kept, post int64) {
	dim := int64(m.dtype.Size() * m.config.Dim)
	kept = dim + 4 // the output, and a statistic of the norm
	if m.config.LayerNorm {
		kept += 4
	}
	if m.config.PostNorms {
		kept, post = kept+dim+4, dim
	}
	return kept, post
}

// cost returns the costs of a batch.
func (b *attentionHalf) cost(sequences, tokens int) remat.Cost {
	c, rows, size := &b.config, int64(sequences)*int64(tokens), int64(b.dtype.Size())
	dim, q, kv := size*int64(c.Dim), size*int64(b.queries()), size*int64(b.keys())
	kept, post := b.halfBytes()
	heads, normed, normedStats := 4*int64(c.Heads), int64(0), int64(0)
	if b.options.PlainAttention {
		heads = size * int64(c.Heads) * int64(tokens+c.sinkColumns())
	}
	if c.QKNorm {
		normed, normedStats = q+kv, 4*int64(c.Heads+c.KVHeads)
	}
	freed, freedLater := int64(0), int64(0) // within a backward step
	if b.frees() {
		freed, freedLater = dim, dim+2*q+2*kv
	}
	qkv, out := b.adapterBytes(b.qkv, false), b.adapterBytes(b.out, !c.PostNorms)
	time := float64(rows) / 1e9 * (float64(c.Dim*(2*c.Heads+2*c.KVHeads)*c.HeadDim) + float64(tokens)*float64(c.Heads*c.HeadDim))
	cost := remat.Cost{
		Output:       rows * dim,
		Saved:        rows * (kept + q + 2*kv + q + heads),
		ForwardExtra: rows * max(q+2*kv+qkv.forward, 2*q+2*kv-dim, q+out.forward, dim+qkv.forward, normed),
		BackwardExtra: rows * max(post+q+out.backward-freed, q+2*kv+q+normed+normedStats-freed,
			q+2*kv+dim+qkv.second+qkv.backward-freedLater),
		ForwardTime: time, BackwardTime: 2.5 * time,
	}
	if b.index == 0 { // it makes its input: it holds the embedding, and its gradient, which is no other stage's
		cost.ForwardExtra += rows * dim
		cost.BackwardExtra += 2 * rows * dim
	}
	return cost
}

// cost returns the costs of a batch.
func (b *mlpHalf) cost(sequences, tokens int) remat.Cost {
	c, rows, size := &b.config, int64(sequences)*int64(tokens), int64(b.dtype.Size())
	dim, hidden, inner := size*int64(c.Dim), size*int64(c.Hidden), int64(len(b.in))
	kept, post := b.halfBytes()
	kept += inner * hidden
	in, down := b.adapterBytes(b.in, false), b.adapterBytes(b.down, !c.PostNorms)
	backward := max(hidden+post+down.second+down.backward, dim+in.second+in.backward)
	time := float64(rows) / 1e9 * float64(inner+1) * float64(c.Dim) * float64(c.Hidden)
	cost := remat.Cost{
		Output:        rows * dim,
		Saved:         rows * kept,
		ForwardExtra:  rows * max(inner*hidden+in.forward, dim+in.forward, hidden+down.forward),
		BackwardExtra: rows * backward,
		ForwardTime:   time, BackwardTime: 2 * time,
	}
	if b.tiled() {
		tile := int64(tileRows(int(rows), b.options.Tiles))
		cost.Saved = cost.Output
		cost.ForwardExtra = tile * max(dim+inner*hidden+in.forward, hidden+down.forward)
		cost.BackwardExtra = tile * (kept - dim + backward)
		cost.BackwardTime += time
	}
	return cost
}
