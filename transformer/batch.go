package transformer

import (
	"fmt"
	"math"
	"math/bits"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/fused"
)

// Batch is the tokens of one pass: sequences one after the other, without padding.
type Batch struct {
	Tokens []int32
	// Labels has for each token the token that follows it, which the model learns to predict.
	// A negative label is ignored; on the CPU the head leaves out its row. Labels may be nil for [Model.Logits].
	//
	// transformers takes the tokens themselves as labels, and shifts them by one. Labels are
	// already shifted: transformers' labels[1:], with -100 at the end of each sequence.
	Labels []int32
	// Weights has for each token the weight of its label in the mean loss, finite and 0 or more; nil: all are 1. LogProbs
	// and BackpropLogProbs take none.
	Weights []float32
	// Sequences is the number of sequences of equal length; 0 is 1.
	Sequences int
	// Starts, unless nil, packs sequences of different lengths instead. Sequence i has the
	// tokens Starts[i] to Starts[i+1]-1; the first start is 0 and the last len(Tokens).
	// No sequence sees another, and the positions of each begin at 0. There is no padding: the
	// embedding of Config.Pad trains like all others. In transformers, of all families but gpt2, a token whose number is
	// pad_token_id gives its embedding no gradient where it is read, also where it ends a turn or a text and is no padding;
	// where head and embedding are one matrix, the row has the gradient of the head there.
	Starts []int
	// Temperature, unless 0, divides the logits of LogProbs and BackpropLogProbs: the temperature that the labels were
	// sampled at. Other methods refuse it.
	Temperature float32
	// Draw and Options.Seed determine the random numbers of adapters' dropout. Give each micro-batch of a run a Draw of
	// its own, below 2^48.
	Draw uint64
}

// Weight returns the weight of a batch in a mean over several: the sum of the weights of the labels that are not
// ignored, or without Weights their number.
func (b Batch) Weight() (sum float64) {
	for i, t := range b.Labels {
		switch {
		case t < 0:
		case b.Weights == nil:
			sum++
		case i < len(b.Weights):
			sum += float64(b.Weights[i])
		}
	}
	return sum
}

// plain returns an error if the batch has what only log-probabilities have.
func (b Batch) plain() error {
	if b.Temperature != 0 {
		return fmt.Errorf("the batch has the Temperature %v, which only LogProbs and BackpropLogProbs have: %w", b.Temperature, snug.ErrConfig)
	}
	return nil
}

// batch is the batch that the model computes.
type batch struct {
	rows, sequences int
	longest         int // tokens of the longest sequence
	starts          []int
	tokens          []int32
	draw            uint64
	positions       []int32 // of each row within its sequence; the model's own
}

// begin checks a batch and prepares buffers, positions and ropes for it.
func (m *Model) begin(b Batch) error {
	rows := len(b.Tokens)
	m.calls++
	m.turned = false
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
	if err := m.checkTokens(b.Tokens); err != nil {
		return err
	}
	if m.config.LearnedPositions && m.batch.longest > m.config.Context {
		return fmt.Errorf("a sequence of %d tokens, and the model has %d positions: %w", m.batch.longest, m.config.Context, snug.ErrShape)
	}
	m.batch.tokens, m.batch.draw = b.Tokens, b.Draw
	return m.prepare(m.batch.longest, m.batch.longest)
}

// Reserve allocates buffers and workspace for batches of so many sequences, each of so many tokens, so that the first
// batch does not. LogProbs and BackpropLogProbs then need 12 bytes a token more. The error wraps [snug.ErrShape] or
// [snug.ErrNoMemory].
func (m *Model) Reserve(sequences, tokens int) error {
	if err := m.reserve(sequences, tokens); err != nil {
		return fmt.Errorf("transformer: Reserve: %w", err)
	}
	return nil
}

func (m *Model) reserve(sequences, tokens int) error {
	if err := m.usable(); err != nil {
		return err
	}
	if sequences < 1 || tokens < 1 || sequences > math.MaxInt32/tokens || sequences*tokens > math.MaxInt/16/m.widest() {
		return fmt.Errorf("%d sequences of %d tokens, want 1 to 2^31-1 tokens: %w", sequences, tokens, snug.ErrShape)
	}
	m.batch.rows, m.batch.longest = sequences*tokens, tokens
	return m.prepare(tokens, tokens)
}

// prepare makes buffers for the rows of the batch, and tables of angles for sequences that have n tokens now and will
// have up to most.
func (m *Model) prepare(n, most int) error {
	if err := m.pool.begin(m.batch.rows, m.options.Tiles); err != nil {
		return err
	}
	for _, r := range m.ropes {
		tokens := most
		if r.rope.Kind == RopeDynamic {
			tokens = n // its frequencies depend on it
		}
		if err := r.prepare(tokens); err != nil {
			return err
		}
	}
	m.ops = ops{Model: m}
	m.routed.grow(m.batch.rows, &m.config.Experts)
	if err := m.balance.prepare(&m.config.Experts); err != nil {
		return err
	}
	if err := m.ws.grow(m.workspaceLen(m.batch.rows)); err != nil {
		return err
	}
	return m.countHeld()
}

// beginAt prepares for tokens that follow the first position tokens of a sequence. The sequence has n tokens so far,
// and will have up to most.
func (m *Model) beginAt(tokens []int32, position, n, most int) error {
	c := &m.batch
	*c = batch{rows: len(tokens), sequences: 1, longest: n, tokens: tokens, positions: c.positions[:0]}
	for i := range tokens {
		c.positions = append(c.positions, int32(position+i))
	}
	return m.prepare(n, min(most, 1<<bits.Len(uint(n)))) // so that a text that grows makes few tables
}

// checkTokens returns an error unless the vocabulary has all tokens.
func (m *Model) checkTokens(tokens []int32) error {
	for i, t := range tokens {
		if t < 0 || int(t) >= m.config.Vocab {
			return fmt.Errorf("token %d is %d, want 0 to %d: %w", i, t, m.config.Vocab-1, snug.ErrShape)
		}
	}
	return nil
}

// widest returns the number of elements of a row of the widest activation.
func (m *Model) widest() int {
	c := &m.config
	return max(c.Dim, c.Hidden, c.Heads*c.HeadDim, c.Experts.Hidden, c.Experts.Count)
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

// workspaceLen returns the float32 elements of the largest workspace of an operation. Operations run one at a time and
// share it.
func (m *Model) workspaceLen(rows int) int {
	c := &m.config
	n := max(m.loss.WorkspaceLen(rows), c.Heads*rows) // attention has an element for each query and head
	if m.options.PlainAttention {
		n = max(m.loss.WorkspaceLen(rows), m.batch.longest*(2*m.batch.longest+c.sinkColumns()))
	}
	if !m.dev.IsCPU() {
		n = max(n, c.Vocab) // Logits has a row there
	}
	if c.biased() {
		qkv := (c.Heads + 2*c.KVHeads) * c.HeadDim // side by side, the widest row with a bias
		n = max(n, fused.BiasAddWorkspaceLen(rows, max(c.Dim, qkv, c.Hidden, c.Experts.Hidden, c.Experts.Count)))
	}
	if c.LayerNorm {
		n = max(n, fused.LayerNormWorkspaceLen(rows, c.Dim))
	} else {
		n = max(n, fused.RMSNormWorkspaceLen(rows, c.Dim))
	}
	if c.Sinks {
		n = max(n, fused.BiasAddWorkspaceLen(1, c.Heads))
	}
	if !c.Gated {
		n = max(n, fused.BiasGELUWorkspaceLen(rows, c.Hidden))
	}
	if c.QKNorm {
		n = max(n, fused.RMSNormWorkspaceLen(rows*c.Heads, c.HeadDim))
	}
	if c.Experts.RouterLoss != 0 {
		n = max(n, c.router().WorkspaceLen(rows))
	}
	return n
}

// scratch is a vector of float32 that grows.
type scratch struct {
	dev  *snug.Device
	v    snug.View
	free func() error
}

// grow makes room for n elements. Their contents are arbitrary afterwards.
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
	length    int     // sequence length for which the frequencies of a dynamic rope were made
	attention float64 // factor of sines and cosines
}

// prepare fills the table for sequences of up to n tokens. A dynamic rope has the frequencies for the longest sequence
// of the batch, as in a fresh model of transformers.
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
