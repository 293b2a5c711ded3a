package transformer

import (
	"github.com/snug-ml/snug/remat"
)

// groupRows returns the number of rows of a sequence that costs and plans assume for the largest group of an expert:
// twice the mean.
func (c *Config) groupRows(rows int) int {
	e := int64(c.Experts.Count)
	return int(min(int64(rows), (2*int64(rows)*int64(c.Experts.Chosen)+e-1)/e))
}

// cost returns the costs of a batch.
func (b *expertsHalf) cost(sequences, tokens int) remat.Cost {
	return b.costOf(int64(sequences)*int64(tokens), int64(sequences)*int64(b.config.groupRows(tokens)))
}

// costOf returns the costs of a number of rows, if the largest group of an expert has group rows.
func (b *expertsHalf) costOf(rows, group int64) remat.Cost {
	c, e, size := &b.config, &b.config.Experts, int64(b.dtype.Size())
	dim, hidden, logits := size*int64(c.Dim), size*int64(e.Hidden), size*int64(e.Count)
	weights := 4 * int64(e.Chosen)
	kept, _ := b.halfBytes()
	in, down := b.adapterBytes()
	project := dim + 2*hidden // the input, gate and up
	forward := max(project+in.forward, dim+hidden+down.forward)
	backward := max(project+in.forward, project+dim+hidden+max(down.forward, down.second+down.backward), project+in.second+in.backward)
	giga := float64(rows) / 1e9
	time := giga * float64(c.Dim) * float64(3*e.Chosen*e.Hidden+e.Count)
	return remat.Cost{
		Output:        rows * dim,
		Saved:         rows * (kept + logits),
		ForwardExtra:  rows*(dim+logits+weights) + group*forward,
		BackwardExtra: rows*(2*dim+2*weights) + max(group*backward, rows*logits),
		ForwardTime:   time, BackwardTime: 3 * time,
	}
}

// adapterBytes returns the bytes that the adapters of an expert hold for a row, as the maximum over all experts.
func (b *expertsHalf) adapterBytes() (in, down adapterBytes) {
	for i := range b.experts {
		in = in.most(b.Model.adapterBytes(b.experts[i].in, false))
		down = down.most(b.Model.adapterBytes(b.experts[i].down, false))
	}
	return in, down
}

// most returns the maximum of two costs, field by field.
func (b adapterBytes) most(a adapterBytes) adapterBytes {
	return adapterBytes{max(a.forward, b.forward), max(a.backward, b.backward), max(a.second, b.second)}
}
