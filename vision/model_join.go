package vision

import (
	"context"
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/fused"
	"github.com/snug-ml/snug/layers"
	"github.com/snug-ml/snug/transformer"
)

// grouped returns what the projector reads, of which images have groups of so many rows each, with the rows of a group of all images one
// behind the other.
func (m *Model) grouped(images []int) []float32 {
	if m.per == 1 || len(images) == 1 {
		return m.x
	}
	m.groups = grown(m.groups, len(m.x))
	from, before, total := m.x, 0, len(m.join.rows)
	for _, n := range images {
		for group := range m.per {
			from = from[copy(m.groups[(group*total+before)*m.reads:][:n*m.reads], from):]
		}
		before += n
	}
	return m.groups
}

// ungrouped is the inverse of grouped, in its memory, which nothing reads any more.
func (m *Model) ungrouped(x []float32, images []int) []float32 {
	if m.per == 1 || len(images) == 1 {
		return x
	}
	to, before, total := m.groups, 0, len(m.join.rows)
	for _, n := range images {
		for group := range m.per {
			to = to[copy(to, x[(group*total+before)*m.reads:][:n*m.reads]):]
		}
		before += n
	}
	return m.groups
}

// place returns the positions in three axes of a batch, of whose sequences each begins at 0. begin has counted the placeholders.
func (m *Model) place(b Batch, rows []int) ([][]int32, error) {
	images := layoutsOf(b)
	tokens, all := b.Text.Tokens, make([][]int32, 3)
	for lo := 0; lo < len(tokens); {
		hi, own := lo, 0 // images and videos of the sequence
		for left := 0; hi == lo || hi < len(tokens) && !beginsAt(&b.Text, hi); hi++ {
			if !m.isPlaceholder(tokens[hi]) {
				continue
			}
			if left == 0 {
				left, own = rows[own], own+1
			}
			left--
		}
		positions, _, err := Positions(tokens[lo:hi], m.axes, images[:own])
		if err != nil {
			return nil, err
		}
		for axis := range all {
			all[axis] = append(all[axis], positions[axis]...)
		}
		lo, images, rows = hi, images[own:], rows[own:]
	}
	return all, nil
}

// join is the loss of a projector: that of a text whose placeholders are the projector's rows.
type join struct {
	text  *transformer.Model
	width int
	rows  []int32 // of the placeholders
	batch transformer.Batch
	ctx   context.Context
}

func (l *join) end() { l.batch, l.ctx = transformer.Batch{}, nil }

// with returns the text with rows of the projector: those in place of its placeholders, and groups of them that are added to the outputs
// of its first layers. The gradient may be empty.
func (l *join) with(y, dy snug.View) (transformer.Batch, error) {
	b, n := l.batch, len(l.rows)*l.width
	for lo := 0; lo < y.Len(); lo += n {
		e, err := transformer.Embeddings{Rows: l.rows}, error(nil)
		if e.Values, err = y.Slice(lo, lo+n); err == nil && dy.Len() > 0 {
			e.Grad, err = dy.Slice(lo, lo+n)
		}
		if err != nil {
			return b, err
		}
		if lo == 0 {
			b.Embeddings = e
		} else {
			b.Added = append(b.Added, e)
		}
	}
	return b, nil
}

// Weight implements [layers.Loss].
func (l *join) Weight(layers.Sample, int) float64 { return l.text.Weight(l.batch) }

// Check implements [layers.Loss].
func (l *join) Check(width int) error {
	if width != l.width {
		return fmt.Errorf("the projector has rows of %d elements, and the text of %d: %w", width, l.width, snug.ErrShape)
	}
	return nil
}

// Params implements [layers.Loss]: those of the text train by its own names.
func (l *join) Params(func(*layers.Param) bool) {}

// Evaluate implements [layers.Loss].
func (l *join) Evaluate(p *layers.Pass, y *layers.Tensor, _ layers.Sample) (loss fused.Loss) {
	p.Do(func() error {
		b, err := l.with(y.View, snug.View{})
		if err == nil {
			loss, err = l.text.Evaluate(l.ctx, b)
		}
		return err
	})
	return loss
}

// Backward implements [layers.Loss].
func (l *join) Backward(p *layers.Pass, y *layers.Tensor, _ layers.Sample, scale float32) (dy *layers.Tensor, loss fused.Loss) {
	dy = p.Get(l.width)
	p.Do(func() error {
		b, err := l.with(y.View, dy.View)
		if err == nil {
			loss, err = l.text.Backprop(l.ctx, b, scale, p.Window)
		}
		return err
	})
	return dy, loss
}
