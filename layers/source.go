package layers

import (
	"cmp"
	"fmt"

	"github.com/snug-ml/snug"
)

// Source is what the queries of a cross-attention see, such as the output of an encoder: sequence i of the batch sees all rows of
// sequence i of the source. It is the caller's, and does not change while a batch runs forward and backward. That of a [Decoder] has
// Each alone.
type Source struct {
	Each   int // rows of each sequence, where Rows is 0
	Rows   int
	Starts []int   // as of [Batch], which then has Starts too; nil: sequences of equal length
	X      *Tensor // [Rows, width] in the type of the pass
	DX     *Tensor // the gradient of X is added to it; nil: it is left out
}

// check returns an error unless the source fits the layers of keys and values.
func (s *Source) check(kv []Linear) error {
	for i := range kv {
		if _, err := kv[i].Width(kv[0].In); err != nil {
			return err
		}
	}
	if s.Each > 0 && s.Rows == 0 && s.X == nil {
		return nil // so far
	}
	n := s.Rows * kv[0].In
	if s.Rows < 1 || s.X == nil || s.X.Len() != n || s.DX != nil && s.DX.Len() != n {
		return fmt.Errorf("layers: a Source of %d rows, want X and DX of %d elements: %w", s.Rows, n, snug.ErrShape)
	}
	return nil
}

// fits returns an error unless the source has the sequences of a batch, with all its rows.
func (s *Source) fits(b Batch) error {
	if s == nil {
		return nil
	}
	n := len(s.Starts) - 1
	if s.Starts == nil && (b.Starts != nil || s.Rows%b.Sequences != 0) || s.Starts != nil && (n != b.Sequences || s.Starts[0] != 0 || s.Starts[n] != s.Rows) {
		return fmt.Errorf("a Source of %d rows with Starts %v for a batch of %d sequences with Starts %v: %w", s.Rows, s.Starts, b.Sequences, b.Starts, snug.ErrShape)
	}
	return nil
}

// rows returns all rows for a batch.
func (s *Source) rows(b Batch) int { return cmp.Or(s.Rows, s.Each*b.Sequences) }

// onSource calls do with the rows of the source, if there is one.
func (b *Attention) onSource(p *Pass, do func()) {
	if b.Source == nil {
		do()
		return
	}
	rows := p.rows
	p.rows = b.Source.rows(p.Batch)
	p.Do(func() error {
		if b.Source.X == nil {
			return fmt.Errorf("a Source without X, outside of its Decoder: %w", snug.ErrConfig)
		}
		return nil
	})
	do()
	p.rows = rows
}

// backward adds the gradients of the layers of keys and values, and of the source.
func (s *Source) backward(p *Pass, kv []Linear, dy ...*Tensor) {
	for i := range kv {
		l := &kv[i]
		l.weightGradients(p, s.X, dy[i])
		dx, beta := s.DX, float32(1)
		if dx == nil && s.Each == 0 && l.Adapter != nil { // whose gradients come with that of its input
			dx, beta = p.Get(l.In), 0
		}
		if dx != nil || s.Each > 0 { // in a pass that counts, X and DX are not there yet
			l.inputGradients(p, dx, dy[i], s.X, inner(p, s.X, kv[i:i+1])[0], beta)
		}
		if dx != s.DX {
			p.Put(dx)
		}
		p.Done(l.Weight, l.Bias)
	}
}
