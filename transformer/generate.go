package transformer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/internal/fault"
	"github.com/snug-ml/snug/layers"
	"github.com/snug-ml/snug/meter"
)

// GenerateOptions are the options of [Model.Generate].
type GenerateOptions struct {
	Context  int // maximum number of tokens of a text, prompt included; 0 is Config.Context
	Chunk    int // tokens of a prompt that are computed at a time; 0 is 256
	Sampling Sampling
}

// Generator writes text. It holds the tokens so far and a cache of their keys and values in all layers, so that a
// further token costs one row of each product.
//
// The cache has the model's type. A layer has Context rows of keys and as many of values, KVHeads·HeadDim elements
// each, or those of Config.Full; a layer with a window has at most 2·(window−1) + Chunk rows.
//
// A layer without attention has a state in place of keys and values, of float32, which does not grow: see Config.Mixers.
//
// A Generator uses its model's buffers, so the two must not be used concurrently. The model may train between two
// calls; the cache keeps the keys and values of the old weights until Reset.
type Generator struct {
	m       *Model
	options GenerateOptions
	layers  []cache
	bytes   int64
	tokens  []int32
	done    int // tokens whose keys are in the cache
	logits  []float32
	scores  snug.View // logits on the device
	last    tensor    // output of the last token
	free    []func() error
	sampler *sampler
	gather  [2][]int32 // positions of k and v of each row within packed rows
	next    int        // position of the token after those in the cache
	prompt  Batch      // of a running PromptBatch
	batched bool       // there was a prompt of PromptBatch
	begins  int        // its first token
	reach   int        // more than its Positions, if it has any
	axes    [3][]int32 // of the rows of a pass
	masks   []chunkMask
	alone   [1]*Generator // itself, for passes of one text
	sight   sight         // while a layer is computed
}

// cache is the keys and values of a layer.
type cache struct {
	k, v   snug.View
	state  snug.View // in place of k and v, of a layer with a [Mixer]; before the first row it is 0, whatever it holds
	widths [2]int    // elements of a row of k, and of v
	rows   int       // maximum number of rows
	used   int
	keep   int // rows that a later query can see, 0 for all
}

// Generate returns a Generator without tokens, and allocates its cache. Begin with [Generator.Prompt].
//
// The error wraps [snug.ErrConfig] for options out of range and for a Context above the number of learned positions, or
// [snug.ErrNoMemory].
func (m *Model) Generate(o GenerateOptions) (_ *Generator, err error) {
	defer fault.Named(&err, "transformer: Generate")
	if err := m.usable(); err != nil {
		return nil, err
	}
	if o, err = m.checkGenerate(o); err != nil {
		return nil, err
	}
	g := &Generator{m: m, options: o, logits: make([]float32, m.config.Vocab), sampler: newSampler(o.Sampling, m.config.Vocab)}
	g.alone[0] = g
	if err := g.make(); err != nil {
		return nil, errors.Join(err, g.Close())
	}
	return g, nil
}

// checkGenerate returns the options with their defaults, or an error.
func (m *Model) checkGenerate(o GenerateOptions) (GenerateOptions, error) {
	c := &m.config
	o.Context = cmp.Or(o.Context, c.Context)
	if o.Chunk == 0 {
		o.Chunk = 256
	}
	const most = 1 << 24
	switch {
	case o.Context < 1 || o.Context > most || o.Chunk < 1 || o.Chunk > most:
		return o, fmt.Errorf("a Context of %d tokens and a Chunk of %d, want 1 to %d: %w", o.Context, o.Chunk, most, snug.ErrConfig)
	case c.LearnedPositions && o.Context > c.Context:
		return o, fmt.Errorf("a Context of %d tokens, and the model has %d positions: %w", o.Context, c.Context, snug.ErrConfig)
	}
	o.Chunk = min(o.Chunk, o.Context)
	return o, o.Sampling.check()
}

// cacheRows returns the most rows of the cache of a layer with a window, 0 for none, and how many of them a later query can see.
func (o *GenerateOptions) cacheRows(window int) (rows, keep int) {
	if window > 0 && 2*(window-1)+o.Chunk < o.Context {
		return 2*(window-1) + o.Chunk, window - 1
	}
	return o.Context, 0
}

func (g *Generator) make() (err error) {
	c := &g.m.config
	for i, window := range c.Windows {
		l := cache{widths: [2]int{c.keys(i), c.values(i)}}
		if x := c.mixer(i); x != nil {
			if l.state, err = g.vector(snug.F32, 1, max(1, x.state(c))); err != nil {
				return err
			}
			if l.state = part(l.state, 0, x.state(c)); !c.Mamba.Beside {
				g.layers = append(g.layers, l)
				continue
			}
		}
		l.rows, l.keep = g.options.cacheRows(window)
		if l.widths[0] == 0 { // it reads the cache of another layer
			g.layers = append(g.layers, l)
			continue
		}
		for j, v := range []*snug.View{&l.k, &l.v} {
			if *v, err = g.vector(g.m.dtype, l.rows, l.widths[j]); err != nil {
				return err
			}
		}
		g.layers = append(g.layers, l)
	}
	if g.scores = snug.ViewOf(g.logits); !g.m.dev.IsCPU() {
		g.scores, err = g.vector(snug.F32, 1, c.Vocab)
	}
	return err
}

// vector allocates rows·width elements.
func (g *Generator) vector(dt snug.DType, rows, width int) (snug.View, error) {
	const most = 1 << 40 // elements; int may be smaller
	if int64(rows) > most/int64(width) || int64(rows)*int64(width) != int64(rows*width) {
		return snug.View{}, fmt.Errorf("%d rows of %d elements are too many: %w", rows, width, snug.ErrNoMemory)
	}
	v, free, err := snug.MakeView(g.m.dev, dt, rows*width)
	if err != nil {
		return v, err
	}
	g.free = append(g.free, free)
	g.bytes += int64(v.Bytes())
	return v, nil
}

// Bytes returns the bytes of the cache on the model's device.
func (g *Generator) Bytes() int64 {
	if g == nil {
		return 0
	}
	return g.bytes
}

// Tokens returns the tokens so far: prompts and what Next returned. The list is the Generator's own.
func (g *Generator) Tokens() []int32 {
	if g == nil {
		return nil
	}
	return g.tokens
}

// Logits returns the Config.Vocab logits from which the last call of Next chose its token, capped by Config.LogitCap.
// The next call of Next overwrites them.
func (g *Generator) Logits() []float32 {
	if g == nil {
		return nil
	}
	return g.logits
}

// Ends reports whether a token is one of Config.EOS.
func (g *Generator) Ends(token int32) bool {
	return g != nil && g.m != nil && slices.Contains(g.m.config.EOS, int(token))
}

// Reset forgets all tokens.
func (g *Generator) Reset() {
	if g == nil {
		return
	}
	g.tokens, g.done, g.next, g.batched = g.tokens[:0], 0, 0, false
	for i := range g.layers {
		g.layers[i].used = 0
	}
}

// Close frees the cache. On the CPU the garbage collector does.
func (g *Generator) Close() (err error) {
	if g == nil {
		return nil
	}
	for _, free := range g.free {
		err = errors.Join(err, free())
	}
	g.free, g.layers = nil, nil
	return err
}

// Model returns the model that generates.
func (g *Generator) Model() *Model {
	if g == nil {
		return nil
	}
	return g.m
}

// Prompt appends tokens, and computes the keys and values of all except the last. It computes Chunk tokens at a time,
// so that its memory, apart from the cache, does not grow with the prompt.
//
// The error wraps [snug.ErrShape], with nothing appended, for no tokens, for a token that the vocabulary lacks, and for
// more tokens than Context. Or it comes from the device or ctx: call Reset then.
func (g *Generator) Prompt(ctx context.Context, tokens []int32) (err error) {
	defer fault.Named(&err, "transformer: Prompt")
	if err := g.usable(ctx); err != nil {
		return err
	}
	if err := g.checkPrompt(tokens); err != nil {
		return err
	}
	g.tokens = append(g.tokens, tokens...)
	return g.compute(ctx, len(g.tokens)-1)
}

// PromptBatch is Prompt for the Tokens of a batch with Embeddings, Added, Positions, and Spans of up to Chunk tokens. It computes
// the last token too, and keeps nothing of the batch when it returns. Tokens that follow go on behind the last of the
// Positions, the largest of its axes. The batch has one sequence, and no Grad; Labels and Weights are not read.
//
// Errors are the errors of Prompt. They also wrap [snug.ErrShape], [snug.ErrDType], [snug.ErrDevice] or [snug.ErrConfig] for
// a batch that Evaluate would refuse, and for more than one sequence.
func (g *Generator) PromptBatch(ctx context.Context, b Batch) (err error) {
	defer fault.Named(&err, "transformer: PromptBatch")
	if err := g.usable(ctx); err != nil {
		return err
	}
	if err := g.checkPrompt(b.Tokens); err != nil {
		return err
	}
	if b.Sequences > 1 || b.Starts != nil && len(b.Starts) != 2 {
		return fmt.Errorf("the batch has %d sequences, want one: %w", max(b.Sequences, len(b.Starts)-1), snug.ErrConfig)
	}
	for _, e := range append([]Embeddings{b.Embeddings}, b.Added...) {
		if e.Grad.Len() > 0 {
			return fmt.Errorf("the embeddings have a Grad, and there is no backward pass: %w", snug.ErrConfig)
		}
	}
	placed := layers.Batch{Rows: len(b.Tokens), Longest: len(b.Tokens)}
	if err := cmp.Or(b.plain(), g.m.checkEmbeddings(b), g.m.place(&placed, b.Positions), g.m.span(&placed, b.Spans), g.holds(b.Spans)); err != nil {
		return err
	}
	if err := g.compute(ctx, len(g.tokens)); err != nil { // an earlier prompt's last token
		return err
	}
	g.prompt, g.begins, g.reach, g.batched = b, len(g.tokens), placed.Reach, true
	defer func() { g.prompt, g.axes = Batch{}, [3][]int32{} }()
	g.tokens = append(g.tokens, b.Tokens...)
	if err := g.compute(ctx, len(g.tokens)); err != nil {
		return err
	}
	for axis, list := range b.Positions {
		if next := int(list[len(list)-1]) + 1; axis == 0 || next > g.next {
			g.next = next
		}
	}
	return nil
}

// Position returns the position of the token that would be next: the number of tokens, or behind the last of the Positions of a
// [Generator.PromptBatch] that had some.
func (g *Generator) Position() int {
	if g == nil {
		return 0
	}
	return g.next + len(g.tokens) - g.done
}

// checkPrompt returns an error unless tokens can follow.
func (g *Generator) checkPrompt(tokens []int32) error {
	if len(tokens) == 0 {
		return fmt.Errorf("the prompt has no tokens: %w", snug.ErrShape)
	}
	if have := len(g.tokens); len(tokens) > g.options.Context-have {
		return fmt.Errorf("%d tokens after %d, and the Context has %d: %w", len(tokens), have, g.options.Context, snug.ErrShape)
	}
	return g.m.checkTokens(tokens)
}

// Next chooses the token after Tokens, appends it and returns it.
//
// The error wraps [snug.ErrShape] without a prompt and when the text has Context tokens, and [snug.ErrNonFinite] for
// logits that are not finite. Or it comes from the device or ctx: call Reset then.
func (g *Generator) Next(ctx context.Context) (token int32, err error) {
	defer fault.Named(&err, "transformer: Next")
	if err := g.usable(ctx); err != nil {
		return 0, err
	}
	switch n := len(g.tokens); {
	case n == 0:
		return 0, fmt.Errorf("there is no prompt: %w", snug.ErrShape)
	case n == g.options.Context:
		return 0, fmt.Errorf("the Context of %d tokens is full: %w", n, snug.ErrShape)
	}
	if err := g.compute(ctx, len(g.tokens)); err != nil {
		return 0, err
	}
	token, err = g.sampler.next(g.logits, len(g.tokens))
	if errors.Is(err, snug.ErrNonFinite) && g.m.dtype == snug.F16 {
		err = fmt.Errorf("in float16, which goes up to 65504, what models trained in bfloat16, such as Gemma, exceed: compute in bf16: %w", err)
	}
	if err != nil {
		return 0, err
	}
	g.tokens = append(g.tokens, token)
	return token, nil
}

func (g *Generator) usable(ctx context.Context) error {
	if g == nil || g.m == nil || g.layers == nil {
		return fmt.Errorf("the Generator is closed, or Generate did not make it: %w", snug.ErrConfig)
	}
	if ctx == nil {
		return fmt.Errorf("the context is nil: %w", snug.ErrConfig)
	}
	return g.m.usable()
}

// compute adds the keys and values of the first n tokens to the cache, unless they are there.
func (g *Generator) compute(ctx context.Context, n int) error {
	if err := g.turnAgain(); err != nil {
		return err
	}
	for g.done < n {
		if err := ctx.Err(); err != nil {
			return err
		}
		rows := g.wholeSpans(min(g.options.Chunk, n-g.done))
		if err := g.pass(ctx, rows); err != nil {
			return err
		}
		g.done, g.next = g.done+rows, g.next+rows
	}
	return nil
}

// turnAgain forgets the keys in the cache when a text becomes as long as the rope has other frequencies for, as transformers does.
func (g *Generator) turnAgain() error {
	for _, a := range g.m.ropes {
		r := a.Rope()
		if g.done == 0 || !r.Turns(g.next, g.next+len(g.tokens)-g.done) {
			continue
		}
		if g.batched {
			return fmt.Errorf("the text is longer than the %d positions of the rope's first frequencies, and the prompt had more than tokens: %w", r.OriginalPositions, snug.ErrConfig)
		}
		g.next, g.done = g.next-g.done, 0
		for i := range g.layers {
			g.layers[i].used = 0
		}
	}
	return nil
}

// pass computes the next rows tokens, and the logits of the last of them.
func (g *Generator) pass(ctx context.Context, rows int) (err error) {
	m := g.m
	if g.done == 0 {
		m.pass.Number++ // parameters may have changed; while there is a cache they have not
	}
	if err := m.beginAt(g.batch(rows), g.options.Context); err != nil {
		return err
	}
	m.added = g.added(rows)
	defer m.end()
	defer func() { err = errors.Join(err, g.dropMasks()) }()
	m.turned = false
	x, err := m.attendAll(ctx, g.alone[:], rows)
	if err != nil {
		return err
	}
	if g.done+rows < len(g.tokens) { // more of the prompt follows
		m.pass.Put(x)
		return nil
	}
	o, dim := m.begins(ctx, m.headStage(), meter.Forward), m.config.Dim
	g.last.View = part(x.View, (rows-1)*dim, dim)
	m.normalize(o, &g.last, layers.Stats{}, &g.last)
	o.Do(func() error {
		return m.head.With(false, func(w snug.View) error {
			return amp.MatMul(g.scores, g.last.View, w, amp.MatMulOptions{M: 1, N: m.config.Vocab, K: dim, TransB: true})
		})
	})
	if o.Err == nil && !m.dev.IsCPU() {
		o.Err = snug.Copy(g.logits, g.scores)
	}
	m.capLogits(g.logits)
	m.pass.Put(x)
	return o.Err
}

// added returns what a prompt adds to outputs at the next rows.
func (g *Generator) added(rows int) (list []Embeddings) {
	for _, e := range g.prompt.Added {
		list = append(list, e.Part(g.done-g.begins, rows))
	}
	return list
}

// batch returns the next rows tokens, with the vectors and the positions of a prompt that has them.
func (g *Generator) batch(rows int) layers.Batch {
	b := layers.Batch{Rows: rows, Sequences: 1, Longest: len(g.tokens), Tokens: g.tokens[g.done:][:rows],
		Positions: g.m.pass.Batch.Positions[:0], Reach: len(g.tokens) + g.next - g.done}
	lo, lists := g.done-g.begins, g.prompt.Positions
	if len(g.prompt.Tokens) > 0 {
		b.Embeddings = g.prompt.Embeddings.Part(lo, rows)
	}
	for i := range rows {
		if lists == nil {
			b.Positions = append(b.Positions, int32(g.next+i))
		} else {
			b.Positions = append(b.Positions, lists[0][lo+i])
		}
	}
	if lists != nil {
		b.Reach = g.reach
	}
	if len(lists) == len(g.axes) {
		for axis, list := range lists {
			g.axes[axis] = list[lo:][:rows]
		}
		b.Axes = g.axes[:]
	}
	return b
}
