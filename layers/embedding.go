package layers

import (
	"cmp"
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/fused"
	"github.com/x448/float16"
)

// Embedding is the first layer of a chain: for each of the batch's tokens a row of a table, times Scale, and with
// Positions plus a row for its position. It does not read its input.
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
	y := p.Get(dim)
	p.Do(func() error {
		return e.Table.With(false, func(table snug.View) error {
			if e.Positions == nil {
				return fused.Embedding(y.View, table, p.Batch.Tokens, part(table, 0, 0), nil, dim)
			}
			return e.Positions.With(false, func(positions snug.View) error {
				return fused.Embedding(y.View, table, p.Batch.Tokens, positions, p.Batch.Positions, dim)
			})
		})
	})
	if scale := e.scale(p); scale != 1 {
		p.Do(func() error { return multiply(y.View, p.rows*dim, scale) })
	}
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

// gradients adds to the gradients of the table and of the positions.
func (e *Embedding) gradients(p *Pass, dy *Tensor) {
	for _, t := range [...]struct {
		w    *Param
		rows []int32
	}{{e.Table, p.Batch.Tokens}, {e.Positions, p.Batch.Positions}} {
		if t.w == nil || !t.w.Trains {
			continue
		}
		p.Do(func() error {
			acc, into, err := p.Gradient(t.w)
			if err != nil {
				return err
			}
			into.Alpha = cmp.Or(into.Alpha, 1)
			into.Alpha *= e.scale(p)
			return fused.EmbeddingBackward(acc, dy.View, t.rows, t.w.Shape[1], into)
		})
		p.Done(t.w)
	}
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
