package layers

import (
	"cmp"
	"fmt"

	"github.com/snug-ml/snug"
)

// Source has the rows that cross-attention computes keys and values from, such as the output of an encoder. Queries of sequence i
// of the batch see all rows of sequence i of the source. Its fields and tensors belong to the caller, who must not change them
// between the forward and the backward pass of a batch.
//
// There are two ways to fill it. For a [Decoder] set Each alone; the Decoder sets the others for each batch. Otherwise set Rows and
// X, and leave Each 0.
type Source struct {
	Each   int     // rows of every sequence, for a Decoder
	Rows   int     // rows of all sequences
	Starts []int   // unless nil, sequence i has the rows Starts[i] to Starts[i+1]-1; nil: all have equally many, and Batch.Starts is nil
	X      *Tensor // [Rows, width] in the type of the pass
	DX     *Tensor // [Rows, width]: the backward pass adds the gradient of X; nil leaves it out
}

// check returns an error unless the source fits kv, the layers that compute keys and values.
func (s *Source) check(kv []Linear) error {
	for i := range kv {
		if _, err := kv[i].Width(kv[0].In); err != nil {
			return err
		}
	}
	if s.Each > 0 && s.Rows == 0 && s.X == nil {
		return nil // a Decoder sets X later
	}
	n := s.Rows * kv[0].In
	if s.Rows < 1 || s.X == nil || s.X.Len() != n || s.DX != nil && s.DX.Len() != n {
		return fmt.Errorf("layers: a Source of %d rows, want X and DX of %d elements: %w", s.Rows, n, snug.ErrShape)
	}
	return nil
}

// fits returns an error unless the source has as many sequences as the batch, and they cover its rows.
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

// untiled implements untiled.
func (b *Attention) untiled() string {
	if b != nil && (b.Keeps != nil || b.Reads != nil) {
		return "an Attention that shares its keys and values with other layers"
	}
	if b == nil || b.Source == nil {
		return ""
	}
	return "an Attention with a Source, whose rows are of all sequences"
}

// rows returns the rows of all sequences of a batch.
func (s *Source) rows(b Batch) int { return cmp.Or(s.Rows, s.Each*b.Sequences) }

// onSource calls do while tensors of the pass have the rows of the source, if there is one.
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

// backward adds the gradients of the layers kv, which compute keys and values, and of the source. dy are those of their outputs.
func (s *Source) backward(p *Pass, kv []Linear, dy ...*Tensor) {
	for i := range kv {
		l := &kv[i]
		l.weightGradients(p, s.X, dy[i])
		dx, beta := s.DX, float32(1)
		if dx == nil && s.Each == 0 && l.Adapter != nil { // inputGradients also computes the gradients of the adapter
			dx, beta = p.Get(l.In), 0
		}
		if dx != nil || s.Each > 0 { // a pass that counts bytes runs before a Decoder sets X and DX
			l.inputGradients(p, dx, dy[i], s.X, inner(p, s.X, kv[i:i+1])[0], beta)
		}
		if dx != s.DX {
			p.Put(dx)
		}
		p.Done(l.Weight, l.Bias)
	}
}
