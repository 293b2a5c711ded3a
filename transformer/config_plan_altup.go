package transformer

import (
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/layers"
	"github.com/snug-ml/snug/plan"
	"github.com/snug-ml/snug/remat"
)

// planAltUp describes the layers of streams. What they take comes of counting passes, in two types: bytes of elements and of float32
// numbers are told apart by the difference.
func (c *Config) planAltUp(tokens int) (list []plan.Layer, err error) {
	var costs [2][]remat.Cost
	for at, dt := range [...]snug.DType{snug.F32, snug.BF16} {
		m := &Model{config: *c, dtype: dt, index: map[string]*Param{}}
		if m.pass, err = layers.NewPass(layers.Options{DType: dt}); err != nil {
			return nil, err
		}
		for _, t := range c.tensors(c.layout()) { // without memory
			m.index[t.Name] = &Param{Name: t.Name, Shape: t.Shape, Trains: true}
		}
		m.makeStages()
		for _, s := range m.stages {
			costs[at] = append(costs[at], m.pass.Cost(s.half, c.widthOf(s.index), layers.Batch{Rows: tokens, Sequences: 1, Longest: tokens}))
		}
	}
	s, a := c.sizes(tokens), &c.AltUp
	for i := range costs[0] {
		wide, low := costs[0][i], costs[1][i]
		split := func(f32, bf16 int64) (elements, stats int64) {
			elements = (f32 - bf16) / 2
			return elements, (bf16 - 2*elements) / 4
		}
		own := c.of(i)
		l := own.planAttention(own.sizes(tokens), i)
		l.Output = s.rows * int64(c.widthOf(i+1))
		l.Kept, l.Stats = split(wide.Saved, low.Saved)
		l.Kept, l.Stats = l.Kept-l.Output, l.Stats-s.rows*int64(c.Heads) // package plan adds what attention keeps
		l.Forward, l.ForwardStats = split(wide.ForwardExtra, low.ForwardExtra)
		l.Backward, l.BackwardStats = split(wide.BackwardExtra, low.BackwardExtra)
		mlp := own.planMLP(own.sizes(tokens))
		l.MACs += mlp.MACs
		l.Params = append(append(l.Params[:len(l.Params):len(l.Params)], mlp.Params...), []int{a.Rank, c.Dim}, []int{c.Dim, a.Rank}, []int{c.Dim},
			[]int{c.PerLayer, c.Dim}, []int{c.Dim, c.PerLayer}, []int{c.Dim},
			[]int{c.Dim}, []int{1, a.Streams, c.Dim}, []int{1, a.Streams * a.Streams, a.Streams}, []int{1, a.Streams, a.Streams}, []int{c.Dim})
		l.Adapters = append(l.Adapters, mlp.Adapters...)
		left, gate := s.rows*int64(a.Rank), s.rows*int64(c.PerLayer)
		l.Adapters = append(l.Adapters, plan.Adapter{In: s.dim, Out: left, Gradient: s.dim}, plan.Adapter{In: left, Out: s.dim, Gradient: left},
			plan.Adapter{In: s.dim, Out: gate, Gradient: s.dim}, plan.Adapter{In: gate, Out: s.dim, Gradient: gate})
		for _, ends := range [...]bool{i == 0, i == c.Layers-1} {
			for range a.Streams - 1 {
				if ends {
					l.Params = append(l.Params, []int{c.Dim, c.Dim})
					l.Adapters = append(l.Adapters, plan.Adapter{In: s.dim, Out: s.dim, Gradient: s.dim})
				}
			}
		}
		for j := range l.Adapters { // an upper bound: all that the step takes
			b := &l.Adapters[j]
			b.Forward, b.Backward = l.Forward, l.Backward+b.In
		}
		list = append(list, l)
	}
	return list, nil
}
