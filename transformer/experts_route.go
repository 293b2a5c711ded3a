package transformer

import (
	"github.com/snug-ml/snug/fused"
)

// This file has the choice of a router: which rows each expert gets, and how rows are copied from the tensors of all
// rows to the tensors of an expert, and added back.

// routed is the choice of a router for the rows of a batch, and the group of rows for which operations run now. The
// lists are on the host. Pairs are numbered as in [fused.Group].
type routed struct {
	chosen      []int32 // the chosen experts of each row, indexed by pair
	pairs, rows []int32 // the pairs, sorted by expert and then by number, and the row of each
	starts      []int32 // index in pairs and rows at which the group of each expert begins; then their length

	weights, dweights *tensor // float32, one for each pair: weights and, in a backward step, their gradients

	groupPairs, groupRows []int32
}

// grow makes room for a batch.
func (r *routed) grow(rows int, e *Experts) {
	if e.Count == 0 {
		return
	}
	n := rows * e.Chosen
	for _, list := range [...]*[]int32{&r.chosen, &r.pairs, &r.rows} {
		if cap(*list) < n {
			*list = make([]int32, n)
		}
		*list = (*list)[:n]
	}
	if r.starts == nil {
		r.starts = make([]int32, e.Count+1)
	}
}

// group makes the rows of an expert the current group, and reports whether the expert has rows.
func (r *routed) group(expert int) bool {
	lo, hi := r.starts[expert], r.starts[expert+1]
	r.groupPairs, r.groupRows = r.pairs[lo:hi], r.rows[lo:hi]
	return hi > lo
}

// after returns the next expert after the given one that has rows, or the number of experts if there is none.
func (r *routed) after(expert int) int {
	for expert++; expert < len(r.starts)-1 && r.starts[expert] == r.starts[expert+1]; expert++ {
	}
	return expert
}

// router returns the description of the router for package fused.
func (c *Config) router() fused.Router {
	return fused.Router{Experts: c.Experts.Count, Chosen: c.Experts.Chosen, Sigmoid: c.Experts.Sigmoid, Normalize: c.Experts.Normalize}
}

// route chooses the experts of each row. unroute frees what it holds.
func (o *ops) route(logits *tensor) {
	r := &o.routed
	r.weights = o.stat(o.config.Experts.Chosen)
	o.do(func() error {
		return fused.Route(o.config.router(), r.chosen, r.weights.View, logits.View, nil)
	})
	o.do(func() error { return fused.Group(r.rows, r.pairs, r.starts, r.chosen, o.config.Experts.Chosen) })
}

func (o *ops) unroute() {
	o.pool.put(o.routed.weights, o.routed.dweights)
	o.routed.weights, o.routed.dweights = nil, nil
}

// routeBackward computes the gradient of the logits from the gradients of the weights.
func (o *ops) routeBackward(dlogits, logits *tensor) {
	r := &o.routed
	o.do(func() error {
		return fused.RouteBackward(o.config.router(), dlogits.View, r.dweights.View, logits.View, r.chosen, o.backward.balance)
	})
}

// pick returns a copy of the group's rows of x.
func (o *ops) pick(x *tensor) *tensor {
	width := o.config.Dim
	in := o.get(width)
	o.do(func() error {
		return fused.Embedding(in.View, x.View, o.routed.groupRows, part(x.View, 0, 0), nil, width)
	})
	return in
}

// addPicked adds x to the group's rows of y.
func (o *ops) addPicked(y, x *tensor) {
	o.do(func() error {
		return fused.AddRows(y.View, x.View, none32, o.routed.groupPairs, o.config.Experts.Chosen, o.config.Dim)
	})
}

// addWeighted adds x, times the weights of its rows, to the group's rows of y.
func (o *ops) addWeighted(y, x *tensor) {
	r := &o.routed
	o.do(func() error {
		return fused.AddRows(y.View, x.View, r.weights.View, r.groupPairs, o.config.Experts.Chosen, o.config.Dim)
	})
}

// addWeightedBackward turns x of addWeighted into its gradient, for the gradient d of y, and sets the gradients of the
// weights.
func (o *ops) addWeightedBackward(x, d *tensor) {
	r := &o.routed
	o.do(func() error {
		return fused.AddRowsBackward(x.View, r.dweights.View, d.View, x.View, r.weights.View, r.groupPairs, o.config.Experts.Chosen, o.config.Dim)
	})
}

// activateExpert computes the activation of an expert.
func (o *ops) activateExpert(out, gate, up *tensor) {
	e := &o.config.Experts
	if !e.Clamped {
		o.activate(out, gate, up, nil)
		return
	}
	o.do(func() error {
		return fused.ClampedSwiGLU(out.View, gate.View, up.View, float32(e.Alpha), float32(e.Limit))
	})
}

// activateExpertBackward turns gate and up into their gradients.
func (o *ops) activateExpertBackward(d, gate, up *tensor) {
	e := &o.config.Experts
	if !e.Clamped {
		o.activateBackward(d, gate, up, nil)
		return
	}
	o.do(func() error {
		return fused.ClampedSwiGLUBackward(gate.View, up.View, d.View, gate.View, up.View, float32(e.Alpha), float32(e.Limit))
	})
}
