package layers

import (
	"cmp"
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/fused"
)

// Pooled is a Loss of means of rows: one target for a sequence, such as the class of an image or of a text. The inner Loss gets a row
// for each sequence, the means side by side. Sample.Y and Sample.Labels are those of the inner Loss: one for each sequence.
type Pooled struct {
	Loss  Loss
	Means []Mean
}

// Mean is the mean of some rows of each sequence, in float32, rounded once: the rows From to To-1, counted from the first, or with a To
// of 0 all from From on. Mean{0, 1} is the first row.
type Mean struct{ From, To int }

// Weight implements [Loss]: that of the inner one, of a row for each sequence.
func (l Pooled) Weight(s Sample, rows int) float64 {
	if l.Loss == nil {
		return 0
	}
	if n := len(s.Starts) - 1; n >= 1 {
		return l.Loss.Weight(s, n)
	}
	return l.Loss.Weight(s, min(rows, max(1, s.Sequences)))
}

// Check implements [Loss].
func (l Pooled) Check(width int) error {
	if l.Loss == nil || len(l.Means) == 0 {
		return fmt.Errorf("layers: a Pooled without Loss or Means: %w", snug.ErrConfig)
	}
	switch l.Loss.(type) {
	case Pooled, *Pooled:
		return fmt.Errorf("layers: a Pooled of a Pooled, whose rows are means already: %w", snug.ErrConfig)
	}
	for _, m := range l.Means {
		if m.From < 0 || m.To != 0 && m.To <= m.From {
			return fmt.Errorf("layers: a Mean of the rows from %d to %d: %w", m.From, m.To, snug.ErrConfig)
		}
	}
	return l.Loss.Check(width * len(l.Means))
}

// Params implements [Loss].
func (l Pooled) Params(yield func(*Param) bool) {
	if l.Loss != nil {
		l.Loss.Params(yield)
	}
}

// each calls do with each mean of each sequence: its place in the pooled rows, and its rows of y.
func (l Pooled) each(p *Pass, pooled, y *Tensor, width int, do func(one, rows snug.View, n int) error) {
	p.Do(func() error {
		at := 0
		for i := range p.Batch.Sequences {
			lo, hi := p.sequence(i)
			for _, m := range l.Means {
				from, to := lo+m.From, min(hi, lo+cmp.Or(m.To, hi-lo))
				if from >= to || m.To > hi-lo {
					return fmt.Errorf("sequence %d has %d rows, and a Mean is of the rows from %d to %d: %w", i, hi-lo, m.From, m.To, snug.ErrShape)
				}
				if err := p.GrowOnes(to - from); err != nil {
					return err
				}
				if err := do(part(pooled.View, at, width), part(y.View, from*width, (to-from)*width), to-from); err != nil {
					return err
				}
				at += width
			}
		}
		return nil
	})
}

// sequence returns the rows of sequence i of the batch.
func (p *Pass) sequence(i int) (lo, hi int) {
	if s := p.Batch.Starts; s != nil {
		return s[i], s[i+1]
	}
	each := p.Batch.Rows / p.Batch.Sequences
	return i * each, (i + 1) * each
}

// onSequences calls do while tensors of the pass have a row for each sequence.
func (p *Pass) onSequences(do func()) {
	rows := p.rows
	p.rows = p.Batch.Sequences
	do()
	p.rows = rows
}

// pool returns the means of y, of width elements each.
func (l Pooled) pool(p *Pass, y *Tensor, width int) (pooled *Tensor) {
	p.onSequences(func() { pooled = p.Get(width * len(l.Means)) })
	l.each(p, pooled, y, width, func(one, rows snug.View, n int) error {
		return amp.MatMul(one, part(p.ones.v, 0, n), rows, amp.MatMulOptions{M: 1, N: width, K: n, Into: snug.Into{Alpha: 1 / float32(n)}})
	})
	return pooled
}

// Evaluate implements [Loss].
func (l Pooled) Evaluate(p *Pass, y *Tensor, s Sample) (loss fused.Loss) {
	if !p.made() || l.Loss == nil {
		return loss
	}
	pooled := l.pool(p, y, p.width(y))
	p.onSequences(func() { loss = l.Loss.Evaluate(p, pooled, s) })
	p.Put(pooled)
	return loss
}

// Backward implements [Loss].
func (l Pooled) Backward(p *Pass, y *Tensor, s Sample, scale float32) (dy *Tensor, loss fused.Loss) {
	if !p.made() || l.Loss == nil {
		return &Tensor{}, loss
	}
	width := p.width(y)
	pooled := l.pool(p, y, width)
	var d *Tensor
	p.onSequences(func() { d, loss = l.Loss.Backward(p, pooled, s, scale) })
	p.Put(pooled)
	dy = p.Get(width)
	p.Do(func() error { return multiply(dy.View, dy.Len(), 0) })
	l.each(p, d, dy, width, func(one, rows snug.View, n int) error {
		return amp.MatMul(rows, part(p.ones.v, 0, n), one, amp.MatMulOptions{M: n, N: width, K: 1, Into: snug.Into{Alpha: 1 / float32(n), Beta: 1}})
	})
	p.Put(d)
	return dy, loss
}
