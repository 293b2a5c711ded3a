package transformer

import (
	"fmt"
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/fused"
)

// Batch is the tokens of one pass: sequences one after the other, without padding.
type Batch struct {
	Tokens []int32
	// Labels has for each token the token that follows it, which the model is to predict;
	// a negative one is not counted. It may be nil for [Model.Logits].
	//
	// transformers' labels are the tokens themselves, and it moves them by one: its
	// labels[1:] are these, with a -100 at the end of each sequence.
	Labels []int32
	// Sequences is the number of sequences of equal length; 0 is 1.
	Sequences int
	// Starts, unless nil, packs sequences of different lengths instead. Sequence i is the
	// tokens Starts[i] to Starts[i+1]-1; the first start is 0 and the last len(Tokens).
	// No sequence sees another, and positions begin anew in each. There is no padding: the
	// embedding of Config.Pad trains like all others, while torch leaves out its gradient.
	Starts []int
}

// batch is the batch at hand.
type batch struct {
	rows, sequences int
	longest         int // tokens of the longest sequence
	starts          []int
	tokens          []int32
	positions       []int32 // of each row within its sequence; the model's own
}

// begin checks a batch and prepares buffers, positions and ropes for it.
func (m *Model) begin(b Batch) error {
	rows := len(b.Tokens)
	switch {
	case rows == 0 || rows > math.MaxInt32:
		return fmt.Errorf("%d tokens, want 1 to 2^31-1: %w", rows, snug.ErrShape)
	case b.Sequences < 0 || b.Sequences > 0 && b.Starts != nil:
		return fmt.Errorf("the batch has Sequences %d and %d Starts, want one of the two: %w", b.Sequences, len(b.Starts), snug.ErrConfig)
	}
	if widest := m.widest(); rows > math.MaxInt/16/widest {
		return fmt.Errorf("%d tokens of %d elements are too many: %w", rows, widest, snug.ErrShape)
	}
	if err := m.shape(b, rows); err != nil {
		return err
	}
	for i, t := range b.Tokens {
		if t < 0 || int(t) >= m.config.Vocab {
			return fmt.Errorf("token %d is %d, want 0 to %d: %w", i, t, m.config.Vocab-1, snug.ErrShape)
		}
	}
	if m.config.LearnedPositions && m.batch.longest > m.config.Context {
		return fmt.Errorf("a sequence of %d tokens, and the model has %d positions: %w", m.batch.longest, m.config.Context, snug.ErrShape)
	}
	m.batch.tokens = b.Tokens
	if err := m.pool.begin(rows); err != nil {
		return err
	}
	for _, r := range m.ropes {
		if err := r.prepare(m.batch.longest); err != nil {
			return err
		}
	}
	m.ops = ops{Model: m}
	return m.ws.grow(m.workspaceLen(rows))
}

// widest returns the most elements of a row of an activation.
func (m *Model) widest() int {
	c := &m.config
	return max(c.Dim, c.Hidden, c.Heads*c.HeadDim)
}

// shape sets the sequences of the batch and the positions of its rows.
func (m *Model) shape(b Batch, rows int) error {
	c := &m.batch
	c.rows, c.sequences, c.starts, c.longest = rows, max(1, b.Sequences), b.Starts, 0
	c.positions = c.positions[:0]
	if b.Starts == nil {
		if rows%c.sequences != 0 {
			return fmt.Errorf("%d tokens, want a multiple of %d sequences: %w", rows, c.sequences, snug.ErrShape)
		}
		c.longest = rows / c.sequences
		for i := range rows {
			c.positions = append(c.positions, int32(i%c.longest))
		}
		return nil
	}
	n := len(b.Starts) - 1
	if n < 1 || b.Starts[0] != 0 || b.Starts[n] != rows {
		return fmt.Errorf("the batch has Starts %v, want 0 first and the %d tokens last: %w", b.Starts[:min(len(b.Starts), 8)], rows, snug.ErrShape)
	}
	c.sequences = n
	for i, lo := range b.Starts[:n] {
		hi := b.Starts[i+1]
		if hi <= lo || hi > rows {
			return fmt.Errorf("the batch has Starts[%d] = %d after %d, want more, and %d at most: %w", i+1, hi, lo, rows, snug.ErrShape)
		}
		c.longest = max(c.longest, hi-lo)
		for j := range hi - lo {
			c.positions = append(c.positions, int32(j))
		}
	}
	return nil
}

// workspaceLen returns the float32 elements that the hungriest operation needs; only one runs
// at a time.
func (m *Model) workspaceLen(rows int) int {
	c := &m.config
	queries := c.Heads * c.HeadDim
	n := max(m.loss.WorkspaceLen(rows), c.Heads*rows, // attention has an element for each query and head
		fused.BiasAddWorkspaceLen(rows, max(c.Dim, queries, c.Hidden)),
		fused.RMSNormWorkspaceLen(rows, c.Dim))
	if c.LayerNorm {
		n = max(n, fused.LayerNormWorkspaceLen(rows, c.Dim), fused.BiasGELUWorkspaceLen(rows, c.Hidden))
	}
	if c.QKNorm {
		n = max(n, fused.RMSNormWorkspaceLen(rows*c.Heads, c.HeadDim))
	}
	return n
}

// scratch is a vector of float32 that grows.
type scratch struct {
	dev  *snug.Device
	v    snug.View
	free func() error
}

// grow makes room for n elements, whose contents are then arbitrary.
func (s *scratch) grow(n int) error {
	if n <= s.v.Len() {
		return nil
	}
	if err := s.close(); err != nil {
		return err
	}
	v, free, err := snug.MakeView(s.dev, snug.F32, n)
	if err != nil {
		return err
	}
	s.v, s.free = v, free
	return nil
}

func (s *scratch) bytes() int64 { return int64(s.v.Bytes()) }

func (s *scratch) close() error {
	if s.free == nil {
		return nil
	}
	err := s.free()
	s.v, s.free = snug.View{}, nil
	return err
}

// angles is the table that [fused.Rotary] takes, for positions from 0 on.
type angles struct {
	rope      Rope
	table     scratch
	known     int     // positions in the table
	length    int     // for which the frequencies were made, of the rope dynamic
	attention float64 // factor of sines and cosines
}

// prepare fills the table for sequences of up to n tokens. The rope dynamic has the
// frequencies of the longest sequence of the batch, as in a fresh model of transformers.
func (a *angles) prepare(n int) error {
	length := 0
	if a.rope.Kind == RopeDynamic {
		length = max(n, a.rope.MaxPositions)
	}
	if n <= a.known && length == a.length {
		return nil
	}
	inverse, attention, err := a.rope.Frequencies(length)
	if err != nil {
		return err
	}
	n = max(n, a.known)
	dim, half := a.rope.Dim, len(inverse)
	if n > math.MaxInt/4/dim {
		return fmt.Errorf("angles of %d positions are too many: %w", n, snug.ErrShape)
	}
	host := make([]float32, n*dim)
	for p := range n {
		row := host[p*dim : (p+1)*dim]
		for i, f := range inverse {
			sin, cos := math.Sincos(float64(float32(p) * f)) // the angle is float32 in transformers
			row[i], row[half+i] = float32(cos), float32(sin)
		}
	}
	a.known = 0
	if err := a.table.grow(len(host)); err != nil {
		return err
	}
	if err := snug.Copy(part(a.table.v, 0, len(host)), host); err != nil {
		return err
	}
	a.known, a.length, a.attention = n, length, attention
	return nil
}
