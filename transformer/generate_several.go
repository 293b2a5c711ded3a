package transformer

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/internal/fault"
	"github.com/snug-ml/snug/layers"
	"github.com/snug-ml/snug/meter"
)

// maxTexts is the most rows of a pass for several texts.
const maxTexts = 1 << 12

// ComputeNext computes, in one pass, what Next of each of several generators would compute in passes of their own: the keys and
// values of the last token, and the Logits after it. A Next that follows then only chooses, and those of several generators may do so at the same time. Texts join and leave between two calls:
//
//	for len(list) > 0 {
//		err := m.ComputeNext(ctx, list, 8)
//		...
//		for _, g := range list {
//			token, err := g.Next(ctx)
//			...
//		}
//	}
//
// The pass has one row for each text, and rows in all if these are more. The last bits of a product depend on its number of rows. So
// calls with one number of rows, which is not less than the texts, give a text the same bits beside any others, while the processor
// computes rows that nobody reads, except where the product of a row has the same bits beside any others, see [qlora.Linear.ForwardUsed].
// 0 is as many as texts. Models with experts, whose products have as many rows as
// chose the expert, and those whose rope depends on the length compute one text after the other, each alone.
//
// Besides the caches it takes 4·rows·Config.Vocab bytes, as workspace of the model. Generators of prompts that are computed with their
// last token, see [Generator.PromptBatch], are left as they are.
//
// The error wraps [snug.ErrConfig] for no generators, for one of another model, for one that comes twice, and for rows out of range, and
// [snug.ErrShape] for one without a prompt, or whose Context is full. Or it comes from the device or ctx: call Reset of all then.
func (m *Model) ComputeNext(ctx context.Context, list []*Generator, rows int) (err error) {
	defer fault.Named(&err, "transformer: ComputeNext")
	if m == nil {
		return fmt.Errorf("the model is nil: %w", snug.ErrConfig)
	}
	if err := cmp.Or(m.usable(), m.checkTexts(ctx, list, rows)); err != nil {
		return err
	}
	alone := m.config.Experts.Count > 0 || m.dynamic()
	var left []*Generator
	for _, g := range list {
		switch {
		case alone:
			if err := g.compute(ctx, len(g.tokens)); err != nil {
				return err
			}
		case g.done < len(g.tokens):
			left = append(left, g)
		}
	}
	if len(left) == 0 {
		return nil
	}
	return m.computeTexts(ctx, left, max(rows, len(left)))
}

// dynamic reports whether angles depend on the length of a text.
func (m *Model) dynamic() bool {
	return slices.ContainsFunc(m.ropes, func(a *layers.Angles) bool { return a.Rope().Kind.ByLength() })
}

// checkTexts returns an error unless ComputeNext can compute the generators.
func (m *Model) checkTexts(ctx context.Context, list []*Generator, rows int) error {
	if len(list) == 0 || len(list) > maxTexts || rows < 0 || rows > maxTexts {
		return fmt.Errorf("%d generators and %d rows, want 1 to %d, and 0 to %d: %w", len(list), rows, maxTexts, maxTexts, snug.ErrConfig)
	}
	for i, g := range list {
		if err := g.usable(ctx); err != nil {
			return fmt.Errorf("generator %d: %w", i, err)
		}
		switch n := len(g.tokens); {
		case g.m != m:
			return fmt.Errorf("generator %d is of another model: %w", i, snug.ErrConfig)
		case slices.Contains(list[:i], g):
			return fmt.Errorf("generator %d is there twice: %w", i, snug.ErrConfig)
		case n == 0 || g.done < n-1:
			return fmt.Errorf("generator %d has %d tokens, and %d of them are computed, want a prompt: %w", i, n, g.done, snug.ErrShape)
		case n == g.options.Context:
			return fmt.Errorf("generator %d: the Context of %d tokens is full: %w", i, n, snug.ErrShape)
		}
	}
	return ctx.Err()
}

// computeTexts computes the last tokens of texts in a pass of so many rows. The rows that are too many repeat the first.
func (m *Model) computeTexts(ctx context.Context, list []*Generator, rows int) error {
	b := layers.Batch{Rows: rows, Sequences: rows, Used: len(list), Tokens: m.lastTokens[:0], Positions: m.pass.Batch.Positions[:0]}
	most := 0
	for i := range rows {
		g := list[0]
		if i < len(list) {
			g = list[i]
		}
		if i < len(list) && g.done == 0 {
			m.pass.Number++ // as in pass
		}
		b.Tokens, b.Positions = append(b.Tokens, g.tokens[g.done]), append(b.Positions, int32(g.next))
		b.Longest, b.Reach, most = max(b.Longest, len(g.tokens)), max(b.Reach, g.next+1), max(most, g.options.Context)
	}
	m.lastTokens = b.Tokens
	if err := m.beginAt(b, most); err != nil {
		return err
	}
	defer m.end()
	vocab := m.config.Vocab
	if err := m.growWorkspace(rows * vocab); err != nil {
		return err
	}
	m.turned = false
	x, err := m.attendAll(ctx, list, 1)
	if err != nil {
		return err
	}
	o := m.begins(ctx, m.headStage(), meter.Forward)
	m.normalize(o, x, layers.Stats{}, x)
	o.Do(func() error {
		return m.head.With(false, func(w snug.View) error {
			return amp.MatMul(part(m.ws(), 0, rows*vocab), x.View, w, amp.MatMulOptions{M: rows, N: vocab, K: m.config.Dim, TransB: true})
		})
	})
	for i, g := range list {
		o.Do(func() error { return snug.Copy(g.logits, part(m.ws(), i*vocab, vocab)) })
		m.capLogits(g.logits)
	}
	m.pass.Put(x)
	if o.Err != nil {
		return o.Err
	}
	for _, g := range list {
		g.done, g.next = g.done+1, g.next+1
	}
	return nil
}
