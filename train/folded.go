package train

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/snug-ml/snug/fused"
	"github.com/snug-ml/snug/internal/fault"
	"github.com/snug-ml/snug/quant8"
)

// folded is inBackward with any number of micro-batches: their gradients are folded into the optimizer's state one by one.
type folded[B any] struct{ inBackward[B] }

func (*folded[B]) traits() traits { return traits{backward: true, changes: true, final: true} }

func (f *folded[B]) excludes(o *Options) []fault.Rule {
	return append(withoutAll("Folded", o),
		fault.Rule{o.SkipNonFinite, "Folded does not go with SkipNonFinite, because what is folded cannot be taken back"})
}

func (f *folded[B]) pass(ctx context.Context, batches []B, rate float32) (all fused.Loss, err error) {
	o := quant8.FoldOptions{MaxNorm: f.t.options.Clip}
	batches, o.Total = f.weighing(batches)
	f.advance(rate)
	for i, b := range batches {
		o.Weight = f.t.model.Weight(b)
		_, f.found.Norm, err = f.opt.FoldInBackward(o, func(ready quant8.Ready) error {
			loss, err := f.run(ctx, b, f.changing(ready))
			all = all.Plus(loss)
			return err
		})
		if err == nil {
			err = f.t.buffers.keep()
		}
		if err != nil {
			return all, fmt.Errorf("micro-batch %d: %w", i, err)
		}
	}
	return all, nil
}

// leastShare is the share of the weight of a folded step below which a micro-batch is left out. It is more than the
// tolerance with which FoldInBackward compares sums of weights.
const leastShare = 0x1p-29

// weighing returns the micro-batches of a folded step whose weight is not negligible, and the sum of their weights.
func (f *folded[B]) weighing(batches []B) (list []B, weight float64) {
	total, weightOf := 0.0, f.t.model.Weight
	for _, b := range batches {
		total += weightOf(b)
	}
	little := func(b B) bool { return weightOf(b) < leastShare*total }
	if math.IsInf(total, 1) || !slices.ContainsFunc(batches, little) {
		return batches, total
	}
	for _, b := range batches {
		if !little(b) {
			list, weight = append(list, b), weight+weightOf(b)
		}
	}
	return list, weight
}
