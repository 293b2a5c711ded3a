package transformer

import (
	"slices"

	"github.com/snug-ml/snug/layers"
	"github.com/snug-ml/snug/plan"
)

// planExperts describes the second stage of a layer with experts. The router's matrix has no adapter.
func (c *Config) planExperts(s sizes) plan.Layer {
	l, e := c.half(s), &c.Experts
	l.Params = append(l.Params, []int{1, e.Count, c.Dim})
	if e.Bias {
		l.Params = append(l.Params, []int{e.Count})
	}
	repeat := func(n int, shape ...int) { // equal shapes together: package plan counts them as one
		for range n {
			l.Params = append(l.Params, shape)
		}
	}
	l.Params = slices.Clip(l.Params)
	repeat(2*e.Count, e.Hidden, c.Dim)
	repeat(e.Count, c.Dim, e.Hidden)
	if e.Bias {
		repeat(2*e.Count, e.Hidden)
		repeat(e.Count, c.Dim)
	}
	if e.RouterLoss != 0 {
		l.Bias = max(l.Bias, e.Count) // the sums of scores take the same workspace
	}
	group := int64(layers.GroupRows(int(s.rows), c.Experts.Count, c.Experts.Chosen))
	dim, hidden, logits, pairs := group*int64(c.Dim), group*int64(e.Hidden), s.rows*int64(e.Count), s.rows*int64(e.Chosen)
	l.Kept, l.ForwardStats, l.BackwardStats = logits, pairs, 2*pairs
	forward, backward, last := s.dim+logits, 2*s.dim, logits
	held := int64(0) // the logits as float32
	if c.names().experts.floatLogits {
		held, l.Kept, forward = logits, 0, s.dim
		l.Stats, l.ForwardStats, last = l.Stats+held, l.ForwardStats+held, 2*logits // as many bytes in 16 bits
	}
	l.Forward = forward + dim + 2*hidden
	l.Backward = backward + max(2*dim+3*hidden, last)
	l.Adapters = []plan.Adapter{
		{In: dim, Out: hidden, Forward: l.Forward, Backward: backward + 2*dim + 2*hidden, Gradient: dim, Shares: 2, Rows: int(group)},
		{In: hidden, Out: dim, Forward: forward + dim + hidden, Backward: backward + 2*dim + 4*hidden, Gradient: hidden, Rows: int(group)},
	}
	l.MACs = int64(c.Dim) * (3*pairs*int64(e.Hidden) + logits)
	if e.Shared > 0 {
		c.planShared(s, &l, forward, backward, held)
	}
	return l
}

// planBeside describes the second stage of a layer with experts beside an MLP, see [layers.Beside].
func (c *Config) planBeside(s sizes) plan.Layer {
	l, e := c.planMLP(s), c.planExperts(s)
	logits, pairs := s.rows*int64(c.Experts.Count), s.rows*int64(c.Experts.Chosen)
	l.Params = slices.Concat(l.Params, e.Params, [][]int{{c.Dim}, {c.Dim}, {c.Experts.Count}})
	l.Kept, l.Stats, l.Tiles = 2*s.dim+2*s.hidden+logits, 6*s.rows, plan.Tiles{} // tiles of the MLP are not counted on
	forward, backward := max(3*s.dim+logits, 2*s.hidden), max(5*s.dim+logits, 2*s.dim+s.hidden)
	l.Forward, l.Backward = forward, backward
	if n := e.Forward + s.dim; 2*n+4*pairs > 2*forward {
		l.Forward, l.ForwardStats = n, pairs
	}
	if n := e.Backward + 2*s.dim; 2*n+8*pairs > 2*backward {
		l.Backward, l.BackwardStats = n, 2*pairs
	}
	for i := range l.Adapters {
		l.Adapters[i].Backward += s.dim
	}
	for _, a := range e.Adapters {
		a.Forward, a.Backward = a.Forward+s.dim, a.Backward+2*s.dim
		l.Adapters = append(l.Adapters, a)
	}
	l.MACs += e.MACs
	return l
}

// planShared adds the expert of all tokens, which runs after the others: a step holds forward, with held numbers of float32, or backward then, and
// what the expert takes.
func (c *Config) planShared(s sizes, l *plan.Layer, forward, backward, held int64) {
	e := &c.Experts
	l.Params = append(l.Params, []int{e.Shared, c.Dim}, []int{e.Shared, c.Dim}, []int{c.Dim, e.Shared})
	inner, out := s.rows*int64(e.Shared), int64(0)
	first, second := 2*inner, max(3*inner, 2*inner+s.dim)
	if e.SharedGate {
		l.Params = append(l.Params, []int{1, c.Dim})
		out = s.dim
		first, second = max(first, inner+out), max(second, 3*inner+out+s.rows)
	}
	if n := forward + first; n > l.Forward {
		if l.Forward, l.ForwardStats = n, held; e.SharedGate && e.Shared <= 2 { // the logit of the gate and its sigmoid take more
			l.Forward, l.ForwardStats = forward+out+s.rows, held+s.rows
		}
	}
	if n := backward + second; n > l.Backward {
		if l.Backward, l.BackwardStats = n, 0; e.SharedGate {
			l.BackwardStats = 2 * s.rows
		}
	}
	l.Adapters = append(l.Adapters,
		plan.Adapter{In: s.dim, Out: inner, Forward: forward + 2*inner, Backward: backward + 2*s.dim + 2*inner, Gradient: s.dim, Shares: 2},
		plan.Adapter{In: inner, Out: s.dim, Forward: forward + inner + out, Backward: backward + out + 4*inner, Gradient: inner, Adds: !e.SharedGate},
	)
	l.MACs += 3 * inner * int64(c.Dim)
}
