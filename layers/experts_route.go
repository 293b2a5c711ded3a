package layers

import (
	"slices"

	"github.com/snug-ml/snug"
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

	weights, dweights *Tensor // float32, one for each pair: weights and, in a backward step, their gradients

	groupPairs, groupRows []int32

	zeros, numbers []int32 // as long as the longest batch of a shared expert
}

// grow makes room for a batch.
func (r *routed) grow(rows int, c fused.Router) {
	n := rows * c.Chosen
	for _, list := range [...]*[]int32{&r.chosen, &r.pairs, &r.rows} {
		*list = slices.Grow((*list)[:0], n)[:n]
	}
	r.starts = slices.Grow(r.starts[:0], c.Experts+1)[:c.Experts+1]
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

// route chooses the experts of each row. unroute frees what it holds.
func (b *Experts) route(p *Pass, logits *Tensor) {
	r := &p.routed
	r.weights = p.Stat(b.Routing.Chosen)
	p.Do(func() error {
		r.grow(p.Batch.Rows, b.Routing)
		bias, err := b.corrections()
		if err != nil {
			return err
		}
		return fused.Route(b.Routing, r.chosen, r.weights.View, logits.View, bias)
	})
	p.Do(func() error { return fused.Group(r.rows, r.pairs, r.starts, r.chosen, b.Routing.Chosen) })
}

// corrections returns the elements of the Correction on the host.
func (b *Experts) corrections() ([]float32, error) {
	switch {
	case b.Correction == nil || b.correction != nil:
		return b.correction, nil
	case b.Correction.Value.Device().IsCPU():
		return b.Correction.Value.Float32s(), nil
	}
	x := make([]float32, b.Correction.Len())
	if err := snug.Copy(snug.SliceView(x), b.Correction.Value); err != nil {
		return nil, err
	}
	b.correction = x
	return x, nil
}

func (b *Experts) unroute(p *Pass) {
	p.Put(p.routed.weights, p.routed.dweights)
	p.routed.weights, p.routed.dweights = nil, nil
}

// routeBackward computes the gradient of the logits from the gradients of the weights.
func (b *Experts) routeBackward(p *Pass, dlogits, logits *Tensor) {
	r := &p.routed
	p.Do(func() error {
		return fused.RouteBackward(b.Routing, dlogits.View, r.dweights.View, logits.View, r.chosen, b.Balance.current())
	})
}

// pick returns a copy of the group's rows of x.
func (b *Experts) pick(p *Pass, x *Tensor) *Tensor {
	width := b.dim()
	in := p.Get(width)
	p.Do(func() error {
		return fused.Embedding(in.View, x.View, p.routed.groupRows, part(x.View, 0, 0), nil, width)
	})
	return in
}

// addRows adds x, times the weights of its rows unless they are nil, to the group's rows of y.
func (b *Experts) addRows(p *Pass, y, x, weights *Tensor) {
	p.Do(func() error {
		return fused.AddRows(y.View, x.View, viewOf(weights), p.routed.groupPairs, b.Routing.Chosen, b.dim())
	})
}

// addWeightedBackward turns x of addRows into its gradient, for the gradient d of y, and sets the gradients of the
// weights.
func (b *Experts) addWeightedBackward(p *Pass, x, d *Tensor) {
	r := &p.routed
	p.Do(func() error {
		return fused.AddRowsBackward(x.View, r.dweights.View, d.View, x.View, r.weights.View, r.groupPairs, b.Routing.Chosen, b.dim())
	})
}
