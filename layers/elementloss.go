package layers

import (
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/fused"
)

// ElementLoss is the mean over all elements of the output of a loss against Sample.Y, such as the binary cross-entropy of pixels: see
// [fused.Elementwise], whose Form must be set, and whose Weights and Losses must be nil. Sample.Y has the shape of the output.
//
// Targets are converted to the type of the pass. They take a tensor of the size of the output while the loss runs, and so does the
// gradient in training.
type ElementLoss struct{ fused.Elementwise }

// DiceLoss is the mean Dice loss against Sample.Y: see [fused.Dice], whose Weights and Losses must be nil. The mean is over groups
// of Cols successive elements, such as the pixels of a class of an image; the width of the output must be a multiple of Cols. The
// shape of Sample.Y, types and memory are as for [ElementLoss].
type DiceLoss struct{ fused.Dice }

// Weight implements [Loss]: the number of elements.
func (ElementLoss) Weight(s Sample, _ int) float64 { return float64(len(s.Y)) }

// Check implements [Loss]. The error wraps [snug.ErrConfig].
func (l ElementLoss) Check(int) error {
	if l.Form == 0 || l.Weights != nil || l.Losses != nil {
		return fmt.Errorf("layers: an ElementLoss without Form, or with Weights or Losses: %w", snug.ErrConfig)
	}
	return nil
}

// Params implements [Loss].
func (ElementLoss) Params(func(*Param) bool) {}

// Evaluate implements [Loss].
func (l ElementLoss) Evaluate(p *Pass, y *Tensor, s Sample) fused.Loss {
	return evaluateAgainst(p, y, s, func(t snug.View) (fused.Loss, error) { return fused.ElementwiseLoss(l.Elementwise, y.View, t) })
}

// Backward implements [Loss].
func (l ElementLoss) Backward(p *Pass, y *Tensor, s Sample, scale float32) (*Tensor, fused.Loss) {
	return backwardAgainst(p, y, s, func(dy, t snug.View) (fused.Loss, error) {
		return fused.ElementwiseBackward(l.Elementwise, dy, y.View, t, scale/float32(l.Weight(s, p.rows)))
	})
}

// Weight implements [Loss]: the number of groups of Cols elements.
func (l DiceLoss) Weight(s Sample, _ int) float64 { return float64(len(s.Y) / max(1, l.Cols)) }

// Check implements [Loss]. The error wraps [snug.ErrConfig].
func (l DiceLoss) Check(width int) error {
	if l.Cols < 1 || width%l.Cols != 0 || l.Weights != nil || l.Losses != nil {
		return fmt.Errorf("layers: a DiceLoss of %d Cols for rows of %d elements, or with Weights or Losses: %w", l.Cols, width, snug.ErrConfig)
	}
	return nil
}

// Params implements [Loss].
func (DiceLoss) Params(func(*Param) bool) {}

// Evaluate implements [Loss].
func (l DiceLoss) Evaluate(p *Pass, y *Tensor, s Sample) fused.Loss {
	return evaluateAgainst(p, y, s, func(t snug.View) (fused.Loss, error) { return fused.DiceLoss(l.Dice, y.View, t) })
}

// Backward implements [Loss].
func (l DiceLoss) Backward(p *Pass, y *Tensor, s Sample, scale float32) (*Tensor, fused.Loss) {
	return backwardAgainst(p, y, s, func(dy, t snug.View) (fused.Loss, error) {
		return fused.DiceBackward(l.Dice, dy, y.View, t, scale/float32(l.Weight(s, p.rows)))
	})
}

// evaluateAgainst calls do with targets t, which are Sample.Y in the type of the pass. It fails with [snug.ErrShape] if Y has not the
// length of y.
func evaluateAgainst(p *Pass, y *Tensor, s Sample, do func(t snug.View) (fused.Loss, error)) (loss fused.Loss) {
	if p == nil || y == nil {
		return loss
	}
	t := p.Get(p.width(y))
	p.Do(func() (err error) {
		if len(s.Y) != y.Len() {
			return fmt.Errorf("the sample has %d elements of Y, want %d rows of %d: %w", len(s.Y), p.rows, p.width(y), snug.ErrShape)
		}
		if err = p.set(t.View, s.Y); err == nil {
			loss, err = do(t.View)
		}
		return err
	})
	p.Put(t)
	return loss
}

// backwardAgainst is evaluateAgainst for a do that also writes the gradient of y to dy.
func backwardAgainst(p *Pass, y *Tensor, s Sample, do func(dy, t snug.View) (fused.Loss, error)) (dy *Tensor, loss fused.Loss) {
	if p == nil || y == nil {
		return &Tensor{}, loss
	}
	dy = p.Get(p.width(y))
	return dy, evaluateAgainst(p, y, s, func(t snug.View) (fused.Loss, error) { return do(dy.View, t) })
}
