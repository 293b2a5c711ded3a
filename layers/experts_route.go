package layers

import (
	"fmt"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
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
	b.scale(p, r.weights)
}

// scale multiplies what there is for each row and chosen expert by the Scales.
func (b *Experts) scale(p *Pass, t *Tensor) {
	if b.Scales == nil {
		return
	}
	p.Do(func() error {
		scales, err := b.scales()
		if err != nil {
			return err
		}
		x := t.Float32s()
		for i, e := range p.routed.chosen {
			x[i] *= scales[e]
		}
		return nil
	})
}

// scales returns the elements of Scales.
func (b *Experts) scales() ([]float32, error) {
	if !b.Scales.Value.Device().IsCPU() {
		return nil, fmt.Errorf("Experts with Scales on %s, want the CPU: %w", b.Scales.Value.Device().Name(), snug.ErrDevice)
	}
	if b.factors == nil {
		b.factors, b.sums = make([]float32, b.Scales.Len()), make([]float64, b.Scales.Len())
	}
	return b.factors, amp.Cast(snug.ViewOf(b.factors), b.Scales.Value)
}

// scalesBackward adds the gradient of the Scales, and turns the gradients of weights times scales into those of weights.
func (b *Experts) scalesBackward(p *Pass, logits *Tensor) {
	if b.Scales == nil {
		return
	}
	r := &p.routed
	if b.Scales.Trains {
		p.Do(func() error { // the weights without the scales
			bias, err := b.corrections()
			if err != nil {
				return err
			}
			return fused.Route(b.Routing, r.chosen, r.weights.View, logits.View, bias)
		})
		p.Do(func() error {
			acc, into, err := p.Gradient(b.Scales)
			if err != nil {
				return err
			}
			alpha, beta, err := into.Factors()
			if err != nil {
				return err
			}
			clear(b.sums)
			w, dw := r.weights.Float32s(), r.dweights.Float32s()
			for i, e := range r.chosen {
				b.sums[e] += float64(w[i]) * float64(dw[i])
			}
			g := acc.Float32s()
			for e, sum := range b.sums {
				if beta == 0 {
					g[e] = 0
				}
				g[e] = beta*g[e] + alpha*float32(sum)
			}
			return nil
		})
		p.Done(b.Scales)
	}
	b.scale(p, r.dweights)
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
	in := p.Get(b.dim())
	b.pickInto(p, in, x)
	return in
}

// pickInto copies the group's rows of x.
func (b *Experts) pickInto(p *Pass, in, x *Tensor) {
	p.Do(func() error {
		return fused.Embedding(in.View, x.View, p.routed.groupRows, part(x.View, 0, 0), nil, b.dim())
	})
}

// groupWeights returns the weights of the group's rows, which the caller frees.
func (b *Experts) groupWeights(p *Pass) *Tensor {
	w := p.Stat(1)
	p.Do(func() error {
		return fused.Embedding(w.View, p.routed.weights.View, p.routed.groupPairs, part(w.View, 0, 0), nil, 1)
	})
	return w
}

// weigh multiplies each of the group's rows by its weight.
func (b *Experts) weigh(p *Pass, in *Tensor) {
	w, rows := b.groupWeights(p), p.Get(b.dim())
	p.copyTo(rows, in)
	b.clear(p, in)
	p.Do(func() error { return fused.AddRows(in.View, rows.View, w.View, p.routed.all(p.rows), 1, b.dim()) })
	p.Put(w, rows)
}

// weighBackward turns the gradient of weighed rows into the gradient of the rows of h, and sets the gradients of the weights.
func (b *Experts) weighBackward(p *Pass, din, h *Tensor) {
	w, rows, dw := b.groupWeights(p), b.pick(p, h), p.Stat(1)
	p.Do(func() error {
		return fused.AddRowsBackward(rows.View, dw.View, din.View, rows.View, w.View, p.routed.all(p.rows), 1, b.dim())
	})
	p.copyTo(din, rows)
	p.Do(func() error {
		return fused.EmbeddingBackward(p.routed.dweights.View, dw.View, p.routed.groupPairs, 1, snug.Into{Beta: 1})
	})
	p.Put(w, rows, dw)
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
