package plan

import (
	"math"
	"slices"

	"github.com/snug-ml/snug/internal/saturate"
)

// Samples returns a copy of m in which one sample is n samples of m, so that a micro-batch never separates them. With
// Samples(2), for example, one sample is the two answers of a preference. Context remains the number of tokens of one
// sequence. The parameters do not change, and neither does m. If n is below 1, or if counts become too large, Validate
// of the result returns an error.
func (m Model) Samples(n int) Model {
	if n < 1 {
		m.Layers = nil
		return m
	}
	several := func(list ...*int64) {
		for _, x := range list {
			*x = saturate.Mul(*x, int64(n))
		}
	}
	count := func(list ...*int) {
		for _, x := range list {
			*x = int(min(saturate.Mul(int64(*x), int64(n)), math.MaxInt))
		}
	}
	adapters := func(list []Adapter) []Adapter {
		list = slices.Clone(list)
		for i := range list {
			a := &list[i]
			several(&a.In, &a.Out, &a.Forward, &a.Backward, &a.Gradient)
		}
		return list
	}
	m.Sequences = max(1, m.Sequences)
	several(&m.Input, &m.Head.Stats)
	count(&m.Sequences, &m.Head.Rows)
	m.Layers = slices.Clone(m.Layers)
	for i := range m.Layers {
		l := &m.Layers[i]
		several(&l.Output, &l.Kept, &l.Forward, &l.Backward, &l.Stats, &l.ForwardStats, &l.BackwardStats, &l.MACs, &l.Tiles.Forward)
		count(&l.Rows, &l.HeadRows, &l.Attention.Heads) // the heads of each sample see its own rows
		l.Adapters, l.Tiles.Adapters = adapters(l.Adapters), adapters(l.Tiles.Adapters)
	}
	return m
}
