package layers

import (
	"cmp"
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/fused"
	"github.com/x448/float16"
)

// Embedding is the first layer of a chain: for each of the batch's tokens a row of a table, with Positions plus a row for its
// position, times Scale. The batch's [Embeddings] take the place of rows of the table. It does not read its input.
type Embedding struct {
	Table     *Param // [tokens, width]
	Positions *Param // [positions, width]; nil for none
	Scale     float32
}

// NewEmbedding returns an Embedding with the parameter name.weight, which begins normally distributed with a deviation
// of 1/√width.
func NewEmbedding(name string, tokens, width int) *Embedding {
	return &Embedding{Table: newTable(name+".weight", tokens, width), Scale: 1}
}

// Forward implements [Layer].
func (e *Embedding) Forward(p *Pass, _ *Tensor) *Tensor {
	if p.refuses(e, nil) {
		return &Tensor{}
	}
	dim := e.Table.Shape[1]
	y, vectors := p.Get(dim), &p.Batch.Embeddings
	p.Do(func() error { return vectors.Check(p.rows, dim, p.DType, p.dev) })
	p.Do(func() error {
		return e.Table.With(false, func(table snug.View) error {
			if e.Positions == nil {
				return fused.Embedding(y.View, table, p.Batch.Tokens, part(table, 0, 0), nil, dim)
			}
			return e.Positions.With(false, func(positions snug.View) error {
				if err := fused.Embedding(y.View, table, p.Batch.Tokens, positions, p.Batch.Positions, dim); err != nil {
					return err
				}
				return vectors.runs(func(_, row, n int) error { // which have their position there, before they are added
					return fused.Embedding(rowsOf(y.View, p.rows, row, n), positions, p.Batch.Positions[row:][:n], part(table, 0, 0), nil, dim)
				})
			})
		})
	})
	if scale := e.scale(p); scale != 1 {
		p.Do(func() error { return multiply(y.View, p.rows*dim, scale) })
	}
	p.Do(func() error { return vectors.copyTo(p, y.View, e.Positions != nil) })
	return y
}

// scale returns the factor of the embedding, which transformers rounds to the type of the weights.
func (e *Embedding) scale(p *Pass) float32 {
	switch p.DType {
	case snug.BF16:
		return snug.ToBFloat16(e.Scale).Float32()
	case snug.F16:
		return float16.Fromfloat32(e.Scale).Float32()
	}
	return e.Scale
}

// gradients adds to the gradients of the table and of the positions, and sets the gradient of vectors in place of rows of the
// table. It may clear rows of dy.
func (e *Embedding) gradients(p *Pass, dy *Tensor) {
	e.gradient(p, e.Positions, p.Batch.Positions, dy)
	vectors := &p.Batch.Embeddings
	p.Do(func() error { return vectors.takeGrad(p, dy.View) })
	if e.Table.Trains {
		p.Do(func() error { return vectors.clearRows(p, dy.View) })
	}
	e.gradient(p, e.Table, p.Batch.Tokens, dy)
}

// gradient adds the rows of dy to rows of the gradient of w.
func (e *Embedding) gradient(p *Pass, w *Param, rows []int32, dy *Tensor) {
	if w == nil || !w.Trains {
		return
	}
	p.Do(func() error {
		acc, into, err := p.Gradient(w)
		if err != nil {
			return err
		}
		into.Alpha = cmp.Or(into.Alpha, 1)
		into.Alpha *= e.scale(p)
		return fused.EmbeddingBackward(acc, dy.View, rows, w.Shape[1], into)
	})
	p.Done(w)
}

// Width implements [Layer].
func (e *Embedding) Width(in int) (int, error) {
	if e == nil || e.Table == nil || len(e.Table.Shape) != 2 || e.Positions != nil && (len(e.Positions.Shape) != 2 || e.Positions.Shape[1] != e.Table.Shape[1]) {
		return 0, fmt.Errorf("layers: an Embedding without Table, or with tables of other shapes: %w", snug.ErrConfig)
	}
	return e.Table.Shape[1], widthOf("the input of an Embedding", in, 0)
}

// Params implements [Layer].
func (e *Embedding) Params(yield func(*Param) bool) {
	yieldAll(yield, []*Param{e.Table, e.Positions})
}

// ForwardSave implements [Layer]. It keeps the output alone.
func (e *Embedding) ForwardSave(p *Pass, x *Tensor) (*Tensor, Saved) { return saveOutput(p, e, x) }

// Backward implements [Layer]. It returns x, which has no gradient.
func (e *Embedding) Backward(p *Pass, x *Tensor, _ Saved, dy *Tensor) *Tensor {
	if !p.refuses(e, nil) {
		e.gradients(p, dy)
		p.Put(dy)
	}
	return x
}
