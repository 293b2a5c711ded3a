package layers

import (
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/fused"
)

// Decoder makes a second model the [Loss] of a first one, the encoder. An encoder and a decoder, or networks for two kinds of data,
// then train as one [Model]:
//
//	src := &layers.Source{Each: n}          // n: rows of the encoder's output that a sequence of the decoder sees
//	dec, err := layers.NewModel(...)        // its cross-attentions have Attention.Source = src
//	enc, err := layers.NewModel(width, layers.Decoder{Model: dec, Source: src}, ...) // trains the parameters of both
//
// A [Sample] of the encoder has the decoder's sample in Sample.Decoder, with as many sequences; neither has Starts. The
// cross-attentions read the encoder's output as [sequences, Source.Each, In], where In is the input width of their layers for keys
// and values: sequence i sees its own Each rows. If the encoder's output is an image with channels last, In is the number of its
// channels and Each that of its positions. Evaluate and Backprop return errors that wrap [snug.ErrShape] for other samples, and
// [snug.ErrDType] for a decoder of another DType or Device.
//
// The encoder's Trainable has the parameters of both models. Plans and Costs do not: each model has its own. In a training pass
// the decoder runs while the encoder holds its saved sets: the peak of the decoder comes on top of these and of the encoder's output
// with its gradient.
type Decoder struct {
	Model  *Model  // the decoder, of the encoder's Device and DType; the caller closes it
	Source *Source // of its cross-attentions; only Each is set
}

// Weight implements [Loss]: the decoder's weight of Sample.Decoder.
func (l Decoder) Weight(s Sample, _ int) float64 {
	if s.Decoder == nil {
		return 0
	}
	return l.Model.Weight(*s.Decoder)
}

// Check implements [Loss]. The error wraps [snug.ErrConfig].
func (l Decoder) Check(int) error {
	if l.Model == nil || l.Model.pass == nil || l.Source == nil || l.Source.Each < 1 || l.Source.Rows != 0 || l.Source.X != nil || l.Source.Starts != nil {
		return fmt.Errorf("layers: a Decoder without a Model, or whose Source has not Each alone: %w", snug.ErrConfig)
	}
	return nil
}

// Params implements [Loss]: a parameter comes as often as the decoder uses it.
func (l Decoder) Params(yield func(*Param) bool) {
	if l.Model == nil || l.Model.pass == nil {
		return
	}
	more := true
	Sequential(l.Model.layers).Params(func(w *Param) bool {
		more = yield(w)
		return more
	})
	if more {
		l.Model.loss.Params(yield)
	}
}

// run calls do with y as the X of the Source. If dy is not nil, the attentions add the gradient of y to it.
func (l Decoder) run(p *Pass, y, dy *Tensor, s Sample, do func(Sample) error) {
	p.Do(func() error {
		if d := l.Model.pass; d.DType != p.DType || d.dev != p.dev {
			return fmt.Errorf("the decoder's tensors are %s on %s, the encoder's %s on %s: %w", d.DType, d.dev, p.DType, p.dev, snug.ErrDType)
		}
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
