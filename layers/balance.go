package layers

import (
	"cmp"
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/fused"
)

// Balance is the loss that balances the load of experts, see [fused.AuxLoss], of all layers that share it. The forward pass counts
// how often each expert was chosen in all layers together, and adds up the scores of each expert. The gradient of the loss follows
// from these sums once the last layer has run forward. A [Model] adds it to its loss, also for Experts within [Sequential] and [Residual]; who runs layers otherwise calls Begin before,
// Loss between forward and backward, and End after.
type Balance struct {
	Factor float64 // of the loss

	on           bool
	counts       []int64 // rows of each expert
	rows         int     // of all layers
	sums         scratch // scores of each expert, on the device
	scores       []float32
	coefficients []float32
	derivatives  []float32 // in the scores of experts, empty until Loss
}

// Grow allocates the counters of the experts.
func (b *Balance) Grow(p *Pass, experts int) error {
	if b == nil || !p.made() || len(b.counts) == experts {
		return nil
	}
	if len(b.counts) > 0 {
		return fmt.Errorf("a Balance of layers of %d and of %d experts: %w", len(b.counts), experts, snug.ErrConfig)
	}
	b.sums.dev, b.sums.dt = p.dev, snug.F32
	b.counts, b.scores, b.coefficients = make([]int64, experts), make([]float32, experts), make([]float32, experts)
	return b.sums.grow(experts)
}

// Begin begins a forward pass.
func (b *Balance) Begin() error {
	if b == nil || len(b.counts) == 0 {
		return nil
	}
	b.on, b.rows, b.derivatives = true, 0, nil
	clear(b.counts)
	return multiply(b.sums.v, b.sums.v.Len(), 0)
}

// add adds the choice of a layer, the first time that it runs in a pass.
func (b *Experts) add(p *Pass, logits *Tensor) {
	if p.counts || b.Balance == nil || !b.Balance.on || b.entered == p.Number {
		return
	}
	b.entered = p.Number
	p.Do(func() error {
		starts := p.routed.starts
		for e := range b.Balance.counts {
			b.Balance.counts[e] += int64(starts[e+1] - starts[e])
		}
		b.Balance.rows += p.Batch.Rows
		ws, err := p.Workspace(b.Routing.WorkspaceLen(p.Batch.Rows))
		if err != nil {
			return err
		}
		return fused.AddScores(b.Routing, b.Balance.sums.v, logits.View, ws)
	})
}

// Loss returns Factor times the balancing loss, 0 where Begin was not called. The gradients that follow are those of scale times it.
func (b *Balance) Loss(scale float32) (loss float64, err error) {
	if b == nil || !b.on {
		return 0, nil
	}
	err = snug.Copy(b.scores, b.sums.v)
	loss, e := fused.AuxLoss(b.coefficients, b.scores, b.counts, b.rows, scale*float32(b.Factor))
	b.derivatives = b.coefficients
	return b.Factor * loss, cmp.Or(err, e)
}

// End ends a pass.
func (b *Balance) End() {
	if b != nil {
		b.on, b.derivatives = false, nil
	}
}

// Bytes returns the bytes on the device.
func (b *Balance) Bytes() int64 {
	if b == nil {
		return 0
	}
	return b.sums.bytes()
}

// Close frees the memory of a device.
func (b *Balance) Close() error {
	if b == nil {
		return nil
	}
	b.counts = nil
	return b.sums.close()
}

// current returns the derivatives of the balancing loss.
func (b *Balance) current() []float32 {
	if b == nil {
		return nil
	}
	return b.derivatives
}
