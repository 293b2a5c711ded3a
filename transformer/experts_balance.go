package transformer

import (
	"cmp"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/fused"
)

// This file has the loss that balances the load of experts. The forward pass counts how often each expert was chosen in
// all layers together, and adds up the scores of each expert. The gradient of the loss follows from these sums once the
// last layer has run forward.

// balance has the sums for the balancing loss of one call of Backprop.
type balance struct {
	counts       []int64 // rows of each expert
	rows         int     // of all layers
	sums         scratch // scores of each expert, on the model's device
	scores       []float32
	coefficients []float32
}

// prepare makes room, unless the model has no balancing loss.
func (b *balance) prepare(e *Experts) error {
	if e.RouterLoss == 0 || b.counts != nil {
		return nil
	}
	if err := b.sums.grow(e.Count); err != nil {
		return err
	}
	b.counts = make([]int64, e.Count)
	b.scores, b.coefficients = make([]float32, e.Count), make([]float32, e.Count)
	return nil
}

// beginBalance begins the balancing loss of a call of Backprop.
func (m *Model) beginBalance() error {
	b := &m.balance
	if b.counts == nil {
		return nil
	}
	m.backward.balances = true
	clear(b.counts)
	b.rows = 0
	return scale(b.sums.v, b.sums.v.Len(), 0)
}

// enter adds the choice of a layer to the balancing loss, the first time that the layer runs in a call.
func (b *expertsHalf) enter(o *ops, logits *tensor) {
	if !o.backward.balances || b.entered == o.calls {
		return
	}
	b.entered = o.calls
	o.do(func() error {
		starts := o.routed.starts
		for e := range o.balance.counts {
			o.balance.counts[e] += int64(starts[e+1] - starts[e])
		}
		o.balance.rows += o.batch.rows
		return fused.AddScores(o.config.router(), o.balance.sums.v, logits.View, o.ws.v)
	})
}

// balanceLoss adds the balancing loss to the loss of a call, and computes its derivatives by the scores.
func (m *Model) balanceLoss() error {
	c, b := &m.backward, &m.balance
	if !c.balances {
		return nil
	}
	factor := m.config.Experts.RouterLoss
	err := snug.Copy(b.scores, b.sums.v)
	loss, e := fused.AuxLoss(b.coefficients, b.scores, b.counts, b.rows, c.whole*float32(factor))
	c.balance = b.coefficients
	c.loss.Sum += factor * loss * c.loss.Weight
	return cmp.Or(err, e)
}
