package train

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/fused"
	"github.com/snug-ml/snug/internal/fault"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/quant8"
)

// Forward is the part of a [Model] that an optimizer without gradients needs.
type Forward[B any] interface {
	Trainable() iter.Seq2[string, snug.View]
	Weight(batch B) float64
	Evaluate(ctx context.Context, batch B) (fused.Loss, error)
}

// ForwardOnly makes a [Model] of a model without a backward pass, for an optimizer that is ForwardOnly:
//
//	t, err := train.New(train.ForwardOnly[Batch](model), train.Options{
//		Optimizer: rule, Schedule: train.Constant(1e-6),
//	})
//
// A step calls Evaluate twice for each micro-batch, and takes no memory beyond that of Evaluate. The loss of a step is
// the mean of the losses of its micro-batches, weighted by Weight. Backprop of the Model returns an error that wraps
// [snug.ErrConfig]. For a nil model ForwardOnly returns nil, which New refuses.
func ForwardOnly[B any](model Forward[B]) Model[B] {
	if model == nil {
		return nil
	}
	return forwardOnly[B]{model}
}

type forwardOnly[B any] struct{ Forward[B] }

func (forwardOnly[B]) Backprop(context.Context, B, float32, Window) (fused.Loss, error) {
	return fused.Loss{}, fmt.Errorf("train: a model of ForwardOnly has no backward pass, want an optimizer that is ForwardOnly: %w", snug.ErrConfig)
}

// zerothOrder estimates the gradients from losses, and holds none.
type zerothOrder[B any] struct {
	t *Trainer[B]
	inPass
	opt *quant8.ZerothOrder
}

func (*zerothOrder[B]) traits() traits { return traits{} }

func (*zerothOrder[B]) excludes(o *Options) (list []fault.Rule) {
	for _, c := range []fault.Rule{
		{o.Clip > 0, "Clip, because there are no gradients"},
		{o.Measure, "Measure, because there are no gradients"},
		{o.Scaler != nil, "a loss scale, because there are no gradients"},
		{o.Fill != nil, "Fill, because there are no master weights"},
	} {
		list = append(list, fault.Rule{c.Broken, "the optimizer " + quant8.TraitsOf(o.Optimizer).Name + " does not go with " + c.What})
	}
	return list
}

func (z *zerothOrder[B]) make() (err error) {
	o := &z.t.options
	z.opt, err = quant8.NewZerothOrder(o.Optimizer, quant8.ZerothOptions{Seed: o.Seed, Params: o.Params})
	return err
}

// pass makes a step. Its loss is the mean of the two losses that the step has computed.
func (z *zerothOrder[B]) pass(ctx context.Context, batches []B, rate float32) (fused.Loss, error) {
	model, all := z.t.model, fused.Loss{Weight: 1}
	e, err := z.opt.Step(rate, model.Trainable(), func() (float64, error) {
		sum, weights, targets := 0.0, 0.0, 0
		for i, b := range batches {
			loss, err := model.Evaluate(ctx, b)
			if err != nil {
				return 0, fmt.Errorf("micro-batch %d: %w", i, err)
			}
			weight := model.Weight(b)
			sum, weights, targets = sum+weight*loss.Mean(), weights+weight, targets+loss.Targets
		}
		all.Targets = targets
		return sum / weights, nil
	})
	z.found = found{}
	switch {
	case err == nil:
		all.Sum, z.found.Norm = (e.Plus+e.Minus)/2, max(e.Projected, -e.Projected)
	case errors.Is(err, snug.ErrNonFinite) && z.t.options.SkipNonFinite:
		z.found.NonFinite, z.found.overflows = 1, err.Error()
		err = nil
	}
	return all, err
}

func (*zerothOrder[B]) bytes() (none meter.Bytes) { return none }
func (*zerothOrder[B]) lost() []counter           { return nil }

func (z *zerothOrder[B]) parts() []savedPart {
	return []savedPart{{weightsPart, z.t.writeWeights, z.t.readWeights}, small(optimizerPart, z.opt)}
}

func (*zerothOrder[B]) begin() error                     { return nil }
func (*zerothOrder[B]) average(bool) error               { return nil }
func (*zerothOrder[B]) gather() error                    { return nil }
func (*zerothOrder[B]) together(save func() error) error { return save() }
