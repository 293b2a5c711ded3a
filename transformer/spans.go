package transformer

import (
	"errors"
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/attention"
	"github.com/snug-ml/snug/layers"
)

// This file has spans: tokens that see each other in both directions, see [layers.Batch.Span].

// span gives c, which has its shape, the spans of a batch.
func (m *Model) span(c *layers.Batch, spans [][2]int) error {
	if len(spans) == 0 {
		return nil
	}
	if m.options.PlainAttention {
		return fmt.Errorf("the batch has Spans, and the model the option PlainAttention: %w", snug.ErrConfig)
	}
	if m.config.latent() {
		return fmt.Errorf("the batch has Spans, and the model latent attention: %w", snug.ErrConfig)
	}
	c.Prefixes = m.prefixes()
	return errors.Unwrap(c.Span(spans)) // without the name of package layers
}

// prefixes reports whether spans are prefixes, of a model for images and text that has them.
func (m *Model) prefixes() bool {
	w := wholes[m.whole]
	return w != nil && w.prefixes
}

// makeMasks makes the masks of the batch's spans, before the model counts what it holds.
func (m *Model) makeMasks() error {
	if len(m.pass.Batch.Spans) == 0 {
		return nil
	}
	for _, s := range m.stages {
		if a, is := s.half.(attends); is {
			a.Options(m.pass)
		}
	}
	return m.pass.Failed()
}

// holds returns an error unless a chunk of a prompt holds each span whole.
func (g *Generator) holds(spans [][2]int) error {
	for i, s := range spans {
		if n := s[1] - s[0]; n > g.options.Chunk {
			return fmt.Errorf("span %d has %d tokens, and a Chunk %d: want a Chunk of so many: %w", i, n, g.options.Chunk, snug.ErrConfig)
		}
	}
	return nil
}

// wholeSpans returns how many of the next rows to compute at a time, so that no span of the prompt is cut.
func (g *Generator) wholeSpans(rows int) int {
	end := g.done + rows
	for _, s := range g.prompt.Spans {
		if lo := g.begins + s[0]; lo < end && end < g.begins+s[1] {
			end = lo
		}
	}
	return end - g.done
}

// chunkMask is the mask of a chunk of a prompt for layers with a window and so many keys.
type chunkMask struct {
	window, keys int
	mask         *attention.Mask
}

// seeSpans replaces what c says of causal attention by a mask, if there is a span among the next rows.
func (g *Generator) seeSpans(c *attention.Options, rows int) error {
	begins, ends := g.spans(rows)
	if ends == nil {
		return nil
	}
	window := c.Window.Left
	c.Causal, c.Window = false, attention.Window{}
	for _, m := range g.masks {
		if m.window == window && m.keys == c.SeqK {
			c.Mask = m.mask
			return nil
		}
	}
	first := g.done + rows - c.SeqK // token of the first key
	mask, err := attention.NewRangeMask(1, 1, rows, c.SeqK, func(_, _, i int) (lo, hi int) {
		if window > 0 {
			if lo = g.done + i + 1 - window - first; g.m.prefixes() {
				lo = min(lo, begins[i]-first)
			}
		}
		return lo, ends[i] - first
	})
	if err != nil {
		return err
	}
	if c.Mask, err = mask.On(g.m.dev); err == nil {
		g.masks = append(g.masks, chunkMask{window, c.SeqK, c.Mask})
	}
	return err
}

// spans returns of each of the next rows the first token of its span, and the token behind the last one that it sees; nil if there is no
// span among them. A row outside of spans is one of its own.
func (g *Generator) spans(rows int) (begins, ends []int) {
	for _, s := range g.prompt.Spans {
		lo, hi := g.begins+s[0], g.begins+s[1]
		if hi <= g.done || lo >= g.done+rows {
			continue
		}
		for i := len(ends); i < rows; i++ {
			begins, ends = append(begins, g.done+i), append(ends, g.done+i+1)
		}
		for i := lo; i < hi; i++ {
			begins[i-g.done], ends[i-g.done] = lo, hi
		}
	}
	return begins, ends
}

// dropMasks frees the masks of a chunk.
func (g *Generator) dropMasks() error {
	var err error
	for _, m := range g.masks {
		err = errors.Join(err, m.mask.Close())
	}
	g.masks = g.masks[:0]
	return err
}
