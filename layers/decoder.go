package layers

import (
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/fused"
)

// Decoder is the loss of an encoder: that of a model whose cross-attentions see the output of the encoder, for Sample.Decoder, which has
// as many sequences. So an encoder and a decoder, or networks for two kinds of data, train as one [Model], that of the encoder. Its
// parameters are those of both; plans and costs are of each alone, and the decoder runs while the encoder holds what it keeps.
// Sequence i of the decoder sees Source.Each rows: the output for sequence i of the encoder, cut into rows of the width that the
// attentions want. The rows of an image with channels last are its positions.
type Decoder struct {
	Model  *Model  // of the same Device and DType; close it too
	Source *Source // of its attentions, with Each alone
}

// Weight implements [Loss]: that of the decoder's sample.
func (l Decoder) Weight(s Sample, _ int) float64 {
	if s.Decoder == nil {
		return 0
	}
	return l.Model.Weight(*s.Decoder)
}

// Check implements [Loss].
func (l Decoder) Check(int) error {
	if l.Model == nil || l.Model.pass == nil || l.Source == nil || l.Source.Each < 1 || l.Source.Rows != 0 || l.Source.X != nil || l.Source.Starts != nil {
		return fmt.Errorf("layers: a Decoder without a Model, or whose Source has not Each alone: %w", snug.ErrConfig)
	}
	return nil
}

// Params implements [Loss].
func (l Decoder) Params(yield func(*Param) bool) { yieldAll(yield, l.Model.Params()) }

// run calls do while the attentions see y, and add its gradient to dy, unless it is nil.
func (l Decoder) run(p *Pass, y, dy *Tensor, s Sample, do func(Sample) error) {
	p.Do(func() error {
		if s.Decoder == nil || max(1, s.Decoder.Sequences) != p.Batch.Sequences || s.Decoder.Starts != nil || p.Batch.Starts != nil {
			return fmt.Errorf("Sample.Decoder is nil, or has not the %d sequences of equal length of the encoder: %w", p.Batch.Sequences, snug.ErrShape)
		}
		src := l.Source
		src.Rows, src.X, src.DX = src.Each*p.Batch.Sequences, y, dy
		defer func() { src.Rows, src.X, src.DX = 0, nil, nil }()
		return do(*s.Decoder)
	})
}

// Evaluate implements [Loss].
func (l Decoder) Evaluate(p *Pass, y *Tensor, s Sample) (loss fused.Loss) {
	if p == nil || l.Model == nil {
		return loss
	}
	l.run(p, y, nil, s, func(s Sample) (err error) {
		loss, err = l.Model.Evaluate(p.ctx, s)
		return err
	})
	return loss
}

// Backward implements [Loss].
func (l Decoder) Backward(p *Pass, y *Tensor, s Sample, scale float32) (dy *Tensor, loss fused.Loss) {
	if p == nil || l.Model == nil {
		return &Tensor{}, loss
	}
	dy = p.Get(p.width(y))
	l.run(p, y, dy, s, func(s Sample) (err error) {
		if err = multiply(dy.View, dy.Len(), 0); err == nil {
			loss, err = l.Model.Backprop(p.ctx, s, scale, p.Window)
		}
		return err
	})
	return dy, loss
}
