package transformer

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/fused"
	"github.com/snug-ml/snug/internal/fault"
	"github.com/snug-ml/snug/layers"
)

// Embeddings are vectors in place of the embeddings of tokens, see [layers.Embeddings].
type Embeddings = layers.Embeddings

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
	// Positions, unless nil, has the position of each token: one list, or three for a Config.Rope with Sections, whose axes
	// are time, height and width. A position is 0 or more and less than Config.Context; without learned positions it may also
	// be less than the longest sequence, if that is longer. A token of text has one position in all axes. Without Positions
	// the positions of each sequence count from 0. They turn queries and keys, or choose learned positions. Which tokens a
	// token sees depends on the order of tokens alone. Three axes take 4·HeadDim bytes a token.
	Positions [][]int32
	// Spans are ranges of rows, lo to hi-1 of the batch, whose tokens see each other in both directions besides what they
	// see anyway, such as the tokens of an image in Gemma 3 or the prefix of a PaliGemma. They ascend, do not overlap, and
	// each lies within a sequence. As in transformers, a layer with a window hides earlier tokens of a span beyond it, and no
	// later ones; in a PaliGemma it hides no token of the span.
	//
	// Attention then runs by masks, one for each length of windows, which the model makes for the batch. A mask takes 4 bytes
	// for each 64 by 64 tokens of every sequence, all as long as the longest, and 512 more where not all of these see each
	// other. GPUs take a slower kernel for it. Spans do not go with Options.PlainAttention.
	Spans [][2]int
	// Embeddings are vectors in place of the embeddings of some tokens, such as the output of a tower of images, with Dim
	// elements each. Vectors are not multiplied by Config.EmbeddingScale; learned positions are added. The tokens there, such
	// as a placeholder for images, are in the vocabulary. They give the embedding no gradient where a vector is in their
	// place; a tied head has its gradient as ever.
	//
	// With a Grad the backward pass goes down to the first layer, also where nothing trains there. If ranks have their weights
	// in one accum.Pages, then either all their batches have a Grad or none has. Where no label counts, Grad becomes zeros.
	Embeddings Embeddings
	// Added are vectors that are added to the outputs of the first layers, Added[i] to that of layer i, at their Rows: DeepStack (Meng
	// et al. 2024, arXiv:2406.04334). Values, Grad and errors are those of Embeddings. There are at most Config.Layers.
	Added []Embeddings
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

// begin checks a batch and prepares buffers, positions and ropes for it.
func (m *Model) begin(b Batch) error {
	rows := len(b.Tokens)
	m.pass.Number++
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
	if err := m.pass.Batch.Shape(rows, b.Sequences, b.Starts); err != nil {
		return errors.Unwrap(err) // without the name of package layers
	}
	if err := m.checkTokens(b.Tokens); err != nil {
		return err
	}
	if m.config.LearnedPositions && m.pass.Batch.Longest > m.config.Context {
		return fmt.Errorf("a sequence of %d tokens, and the model has %d positions: %w", m.pass.Batch.Longest, m.config.Context, snug.ErrShape)
	}
	if err := m.checkEmbeddings(b); err != nil {
		return err
	}
	m.added = b.Added
	if err := cmp.Or(m.place(&m.pass.Batch, b.Positions), m.span(&m.pass.Batch, b.Spans)); err != nil {
		return err
	}
	m.pass.Batch.Tokens, m.pass.Batch.Embeddings, m.pass.Batch.Draw = b.Tokens, b.Embeddings, b.Draw
	reach := cmp.Or(m.pass.Batch.Reach, m.pass.Batch.Longest)
	if err := m.reserveKeyValues(false); err != nil {
		return err
	}
	return m.prepare(reach, reach)
}

// place gives c, which has its shape, the positions of a batch, if it has any.
func (m *Model) place(c *layers.Batch, positions [][]int32) error {
	if positions == nil {
		return nil
	}
	most := m.config.Context
	if !m.config.LearnedPositions {
		most = max(most, c.Longest)
	}
	if len(positions) == 3 && (len(m.ropes) == 0 || slices.ContainsFunc(m.ropes, func(a *layers.Angles) bool { return a.Rope().Sections == [3]int{} })) {
		return fmt.Errorf("the batch has positions in three axes, and the model no rope with Sections: %w", snug.ErrConfig)
	}
	return errors.Unwrap(c.Place(positions, most)) // without the name of package layers
}

// checkEmbeddings checks the vectors of a batch.
func (m *Model) checkEmbeddings(b Batch) error {
	if len(b.Added) > m.config.Layers {
		return fmt.Errorf("%d vectors in Added, and the model has %d layers: %w", len(b.Added), m.config.Layers, snug.ErrShape)
	}
	if m.config.PerLayer > 0 && len(b.Embeddings.Rows) > 0 {
		return fmt.Errorf("vectors in place of tokens, and each layer of the model takes more than the token's: they are not supported for it: %w", snug.ErrConfig)
	}
	for i, e := range append([]Embeddings{b.Embeddings}, b.Added...) {
		err := errors.Unwrap(e.Check(len(b.Tokens), m.config.Dim, m.dtype, m.dev)) // without the name of package layers
		if err != nil && i > 0 {
			err = fmt.Errorf("of Added[%d]: %w", i-1, err)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// withoutLabels is the backward pass of a batch of weight 0.
func (m *Model) withoutLabels(b Batch) error {
	if err := m.checkEmbeddings(b); err != nil {
		return err
	}
	for _, e := range append([]Embeddings{b.Embeddings}, b.Added...) {
		if err := e.ZeroGrad(); err != nil {
			return err
		}
	}
	return nil
}

// Reserve allocates buffers and workspace for batches of so many sequences, each of so many tokens, so that the first
// batch does not. LogProbs and BackpropLogProbs then need 12 bytes a token more, and a batch with Spans or with Positions
// in three axes what these take. The error wraps [snug.ErrShape] or [snug.ErrNoMemory].
func (m *Model) Reserve(sequences, tokens int) (err error) {
	defer fault.Named(&err, "transformer: Reserve")
	if err := m.usable(); err != nil {
		return err
	}
	if sequences < 1 || tokens < 1 || sequences > math.MaxInt32/tokens || sequences*tokens > math.MaxInt/16/m.widest() {
		return fmt.Errorf("%d sequences of %d tokens, want 1 to 2^31-1 tokens: %w", sequences, tokens, snug.ErrShape)
	}
	m.pass.Batch = layers.Batch{Rows: sequences * tokens, Longest: tokens, Positions: m.pass.Batch.Positions[:0]}
	if err := m.prepare(tokens, tokens); err != nil {
		return err
	}
	return m.reserve()
}

// reserve makes memory for the activations of the batch, forward and backward.
func (m *Model) reserve() error {
	rows := m.pass.Batch.Rows
	if rows <= m.fits {
		return nil
	}
	longest := m.pass.Batch.Longest
	costs, err := m.Costs((rows-1)/longest+1, longest)
	if err != nil {
		return err
	}
	if err = m.pass.Reserve(m.plan, costs); err == nil {
		m.fits = rows
	}
	if err != nil || m.keeps == nil {
		return err
	}
	return cmp.Or(m.reserveKeyValues(true), m.countHeld())
}

// prepare begins the batch, and makes tables of angles for sequences that have n tokens now and will
// have up to most.
func (m *Model) prepare(n, most int) error {
	m.pass.Begin()
	for _, r := range m.ropes {
		tokens := most
		if r.Rope().Kind.ByLength() {
			tokens = n // its frequencies depend on it
		}
		if err := cmp.Or(r.Prepare(tokens), r.PrepareBatch(m.pass)); err != nil {
			return err
		}
	}
	if err := m.makeMasks(); err != nil {
		return err
	}
	if m.config.Experts.RouterLoss != 0 {
		m.balance.Factor = m.config.Experts.RouterLoss
		if err := m.balance.Grow(m.pass, m.config.Experts.Count); err != nil {
			return err
		}
	}
	if err := m.growWorkspace(m.workspaceLen(m.pass.Batch.Rows)); err != nil {
		return err
	}
	return m.countHeld()
}

// beginAt prepares for a batch of tokens that follow others of their sequence, whose positions will be below most, if not all are.
func (m *Model) beginAt(b layers.Batch, most int) error {
	m.pass.Batch = b
	return m.prepare(b.Reach, max(b.Reach, min(most, 1<<bits.Len(uint(b.Reach))))) // so that a text that grows makes few tables
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
	n := max(c.Dim, c.widestHidden(), c.queryRows(), c.Heads*(c.Latent.KeyDim+c.Latent.ValueDim), c.Experts.Hidden, c.Experts.Shared, c.Experts.Count, c.PerLayer, c.AltUp.Streams*c.Dim)
	for x := range c.mixes {
		n = max(n, x.width(c))
	}
	return n
}

// workspaceLen returns the float32 elements of the largest workspace of an operation. Operations run one at a time and
// share it.
func (m *Model) workspaceLen(rows int) int {
	c := &m.config
	n := max(m.loss.WorkspaceLen(rows), c.Heads*rows) // attention has an element for each query and head
	if m.options.PlainAttention {
		n = max(m.loss.WorkspaceLen(rows), m.pass.Batch.Longest*(2*m.pass.Batch.Longest+c.sinkColumns()))
	}
	if !m.dev.IsCPU() {
		n = max(n, c.Vocab) // Logits has a row there
	}
	if c.biased() {
		qkv := c.queryRows() + 2*c.widestKeys() // side by side, the widest row with a bias
		n = max(n, fused.BiasAddWorkspaceLen(rows, max(m.widest(), qkv)))
	}
	if c.LayerNorm {
		n = max(n, fused.LayerNormWorkspaceLen(rows, c.Dim))
	} else {
		n = max(n, fused.RMSNormWorkspaceLen(rows, max(c.Dim, c.Latent.Rank, c.Latent.QueryRank)))
	}
	if c.Sinks {
		n = max(n, fused.BiasAddWorkspaceLen(1, c.Heads))
	}
	if !c.Gated {
		n = max(n, fused.BiasGELUWorkspaceLen(rows, c.Hidden))
	}
	if q, k := c.qkNorms(); c.QKNorm && c.names().perHead {
		n = max(n, layers.GroupsWorkspaceLen(rows, q))
	} else if c.QKNorm && c.names().wide {
		n = max(n, fused.RMSNormWorkspaceLen(rows, q), fused.RMSNormWorkspaceLen(rows, k))
	} else if c.QKNorm {
		n = max(n, fused.RMSNormWorkspaceLen(rows*c.Heads, c.HeadDim), fused.RMSNormWorkspaceLen(rows*c.Heads, c.widestHead()))
	}
	for x := range c.mixes {
		if x.norm != nil {
			heads, cols := x.norm(c)
			n = max(n, fused.RMSNormWorkspaceLen(rows*heads, cols))
		}
	}
	if c.PerLayer > 0 {
		n = max(n, fused.RMSNormWorkspaceLen(rows, c.PerLayer))
	}
	if c.Experts.RouterLoss != 0 {
		n = max(n, c.router().WorkspaceLen(rows))
	}
	return n
}

// sinkColumns returns the number of probabilities of a row that are not of keys: its sink's, if there is one.
func (c *Config) sinkColumns() int {
	if c.Sinks {
		return 1
	}
	return 0
}

// freesSaved reports whether the backward step of attention frees what it keeps as soon as it can, as in
// [layers.Attention].
func (c *Config) freesSaved() bool { return c.Heads*c.HeadDim == c.Dim }

func (m *Model) growWorkspace(n int) error {
	_, err := m.pass.Workspace(n)
	return err
}

// ws returns the workspace, which operations share.
func (m *Model) ws() snug.View {
	v, _ := m.pass.Workspace(0)
	return v
}

// part returns n elements of v from lo on, which v must have.
func part(v snug.View, lo, n int) snug.View {
	s, err := v.Slice(lo, lo+n)
	if err != nil {
		panic(err) // the layout of the model is wrong
	}
	return s
}
