package layers

import (
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/fused"
)

// Loss is the end of a model. Backward and Evaluate take the output of the last layer, which they only borrow.
type Loss interface {
	// Weight returns the weight of a sample of so many rows in a mean over several, the number of its targets.
	Weight(s Sample, rows int) float64
	// Evaluate returns the loss.
	Evaluate(p *Pass, y *Tensor, s Sample) fused.Loss
	// Backward also returns the gradient of scale times the mean loss, in memory of its own.
	Backward(p *Pass, y *Tensor, s Sample, scale float32) (*Tensor, fused.Loss)
	// Check returns an error unless the loss takes rows of so many elements.
	Check(width int) error
	// Params calls yield for each parameter.
	Params(yield func(*Param) bool)
}

// MSE is the mean squared error against Sample.Y. The loss of a row is the mean over its elements.
type MSE struct{}

// Weight implements [Loss]: rows count.
func (MSE) Weight(_ Sample, rows int) float64 { return float64(rows) }

// Check implements [Loss].
func (MSE) Check(int) error { return nil }

// Params implements [Loss].
func (MSE) Params(func(*Param) bool) {}

// elements is the loss of elements, whose sum counts the mean of each row.
func (MSE) elements(loss fused.Loss, rows int) fused.Loss {
	if loss.Targets > 0 {
		loss.Sum *= float64(rows) / loss.Weight
		loss.Targets, loss.Weight = rows, float64(rows)
	}
	return loss
}

// Evaluate implements [Loss].
func (l MSE) Evaluate(p *Pass, y *Tensor, s Sample) fused.Loss {
	if p == nil {
		return fused.Loss{}
	}
	return l.elements(ElementLoss{fused.Elementwise{Form: fused.MSE}}.Evaluate(p, y, s), p.rows)
}

// Backward implements [Loss].
func (l MSE) Backward(p *Pass, y *Tensor, s Sample, scale float32) (*Tensor, fused.Loss) {
	if p == nil {
		return &Tensor{}, fused.Loss{}
	}
	dy, loss := ElementLoss{fused.Elementwise{Form: fused.MSE}}.Backward(p, y, s, scale)
	return dy, l.elements(loss, p.rows)
}

// CrossEntropy is the cross-entropy against Sample.Labels of the logits y·Headᵀ + Bias. The logits of some rows exist at a
// time, see [fused.CrossEntropy]. Negative labels are ignored. An output whose rows are images, channels last, has a label for each
// position.
type CrossEntropy struct {
	Head *Param // [classes, width]; the Table of an [Embedding] ties them
	Bias *Param // [classes], or nil
}

// NewCrossEntropy returns a CrossEntropy with the parameter name.weight.
func NewCrossEntropy(name string, classes, width int) *CrossEntropy {
	return &CrossEntropy{Head: newTable(name+".weight", classes, width)}
}

// Weight implements [Loss]: labels count that are not ignored.
func (*CrossEntropy) Weight(s Sample, _ int) (n float64) {
	for _, t := range s.Labels {
		if t >= 0 {
			n++
		}
	}
	return n
}

// Check implements [Loss].
func (l *CrossEntropy) Check(width int) error {
	if l == nil || l.Head == nil || len(l.Head.Shape) != 2 || l.Head.Len() < 1 {
		return fmt.Errorf("layers: a CrossEntropy without Head, or with one without elements: %w", snug.ErrConfig)
	}
	if l.Bias != nil && l.Bias.Len() != l.Head.Shape[0] {
		return widthOf(l.Bias.Name, l.Bias.Len(), l.Head.Shape[0])
	}
	return widthOf(l.Head.Name, width, max(1, width/l.Head.Shape[1])*l.Head.Shape[1])
}

// checkImages returns an error if the loss would take other elements of images for the channels of a position.
func (l *CrossEntropy) checkImages(i image) error { return i.cut(l.Head.Shape[1]) }

// Params implements [Loss].
func (l *CrossEntropy) Params(yield func(*Param) bool) { yieldAll(yield, []*Param{l.Head, l.Bias}) }

// begin returns the loss of package fused and its workspace.
func (l *CrossEntropy) begin(p *Pass, y *Tensor) (c fused.CrossEntropy, ws snug.View, err error) {
	c = fused.CrossEntropy{Vocab: l.Head.Shape[0], Cols: l.Head.Shape[1]}
	if l.Bias != nil {
		c.Bias = l.Bias.Value
	}
	if !p.dev.IsCPU() {
		c.Tile, c.Chunk = c.Vocab, c.DeviceChunk()
	}
	ws, err = p.Workspace(c.WorkspaceLen(y.Len() / c.Cols))
	return c, ws, err
}

// Evaluate implements [Loss].
func (l *CrossEntropy) Evaluate(p *Pass, y *Tensor, s Sample) (loss fused.Loss) {
	if p == nil || l == nil || l.Head == nil {
		return loss
	}
	p.Do(func() error {
		c, ws, err := l.begin(p, y)
		if err != nil {
			return err
		}
		return l.Head.With(false, func(w snug.View) (err error) {
			loss, err = fused.CrossEntropyLoss(c, y.View, w, s.Labels, ws)
			return err
		})
	})
	return loss
}

// Backward implements [Loss].
func (l *CrossEntropy) Backward(p *Pass, y *Tensor, s Sample, scale float32) (dy *Tensor, loss fused.Loss) {
	if p == nil || l == nil || l.Head == nil {
		return &Tensor{}, loss
	}
	dy = p.Get(p.width(y))
	p.Do(func() error {
		c, ws, err := l.begin(p, y)
		if err != nil {
			return err
		}
		acc, into, err := p.Gradient(l.Head)
		if err == nil && l.Bias != nil {
			var other snug.Into
			if c.DBias, other, err = p.Gradient(l.Bias); err == nil && l.Bias.Trains && l.Head.Trains && other != into {
				err = fmt.Errorf("the window's Into of %s and of %s differ: %w", l.Head.Name, l.Bias.Name, snug.ErrConfig)
			}
			if !l.Head.Trains {
				into = other
			}
		}
		if err != nil {
			return err
		}
		return l.Head.With(false, func(w snug.View) (err error) {
			loss, err = fused.CrossEntropyBackward(c, dy.View, acc, y.View, w, s.Labels, scale/float32(l.Weight(s, p.rows)), into, ws)
			return err
		})
	})
	p.Done(l.Head, l.Bias)
	return dy, loss
}

// set writes x to a vector of the type of activations.
func (p *Pass) set(v snug.View, x []float32) error {
	if p.dev.IsCPU() {
		return amp.Cast(v, x)
	}
	low, _, err := snug.MakeView(snug.CPU(), v.DType(), len(x))
	if err != nil {
		return err
	}
	if err := amp.Cast(low, x); err != nil {
		return err
	}
	return snug.Copy(v, low)
}

// read writes a vector of the type of activations to x.
func (p *Pass) read(x []float32, v snug.View) error {
	low, _, err := snug.MakeView(snug.CPU(), p.DType, len(x))
	if err != nil {
		return err
	}
	if err := snug.Copy(low, v); err != nil {
		return err
	}
	return amp.Cast(snug.ViewOf(x), low)
}
