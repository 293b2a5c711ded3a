package layers

import (
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/attention"
	"github.com/snug-ml/snug/internal/fault"
)

// This file has spans: rows of a sequence that see each other in both directions, besides what a causal attention shows
// them, such as the tokens of an image in Gemma 3 and the prefix of a PaliGemma. Row i of a sequence sees rows lo to hi-1, with
//
//	lo = max(0, i+1-window), or 0 without a window      hi = the end of the span of row i, or i+1 outside of spans
//
// which is a mask of ranges. As in transformers, a window hides earlier rows of the span too, unless spans are Prefixes: then lo is not
// behind the first row of the span of row i.

// Span sets Spans after Shape: ranges of rows, lo to hi-1, in ascending order, each within one sequence, which do not
// overlap. It keeps the list. The error wraps [snug.ErrShape].
func (c *Batch) Span(spans [][2]int) (err error) {
	defer fault.Named(&err, "layers: Span")
	if c == nil || c.Longest < 1 {
		return fmt.Errorf("spans of a batch without rows: %w", snug.ErrShape)
	}
	end, sequence := 0, 0
	for i, s := range spans {
		lo, hi := s[0], s[1]
		if lo < end || hi <= lo || hi > c.Rows {
			return fmt.Errorf("span %d is rows %d to %d, want a row or more behind row %d and before %d: %w", i, lo, hi-1, end-1, c.Rows, snug.ErrShape)
		}
		for c.end(sequence) <= lo {
			sequence++
		}
		if end = hi; hi > c.end(sequence) {
			return fmt.Errorf("span %d is rows %d to %d, and sequence %d ends before row %d: %w", i, lo, hi-1, sequence, c.end(sequence), snug.ErrShape)
		}
	}
	c.Spans = spans
	return nil
}

// end returns the row behind a sequence.
func (c *Batch) end(sequence int) int {
	if c.Starts != nil {
		return c.Starts[sequence+1]
	}
	return (sequence + 1) * c.Longest
}

// spanMask is the mask of the spans of a batch for layers with a window.
type spanMask struct {
	window int
	mask   *attention.Mask
}

// seeSpans replaces what c says of causal attention by a mask of the batch's spans. The pass makes it once for each window
// and keeps it until the next batch begins.
func (b *Attention) seeSpans(p *Pass, c *attention.Options) error {
	if len(p.Batch.Spans) == 0 || b.Bidirectional || b.Source != nil {
		return nil
	}
	if b.Plain {
		return fmt.Errorf("layers: spans, which a Plain Attention does not have: %w", snug.ErrConfig)
	}
	window := c.Window.Left
	c.Causal, c.Window = false, attention.Window{}
	for _, m := range p.masks {
		if m.window == window {
			c.Mask = m.mask
			return nil
		}
	}
	mask, err := p.Batch.mask(window)
	if err != nil {
		return err
	}
	there, err := mask.On(p.dev)
	if err != nil {
		return err
	}
	p.masks = append(p.masks, spanMask{window, there})
	c.Mask = there
	return nil
}

// mask returns the mask of the spans of a batch for a window, 0 for none.
func (c *Batch) mask(window int) (*attention.Mask, error) {
	begins, ends := make([]int, c.Rows), make([]int, c.Rows) // of the span of a row, by itself outside of spans
	for i := range ends {
		begins[i], ends[i] = i, i+1
	}
	for _, s := range c.Spans {
		for i := s[0]; i < s[1]; i++ {
			begins[i], ends[i] = s[0], s[1]
		}
	}
	return attention.NewRangeMask(c.Sequences, 1, c.Longest, c.Longest, func(b, _, i int) (lo, hi int) {
		first := 0
		if b > 0 {
			first = c.end(b - 1)
		}
		if first+i >= c.end(b) {
			return 0, 0
		}
		if window > 0 {
			if lo = max(0, i+1-window); c.Prefixes {
				lo = min(lo, begins[first+i]-first)
			}
		}
		return lo, ends[first+i] - first
	})
}

// dropMasks frees the masks of the last batch.
func (p *Pass) dropMasks() error {
	var err error
	for _, m := range p.masks {
		if e := m.mask.Close(); err == nil {
			err = e
		}
	}
	p.masks = p.masks[:0]
	return err
}

// maskBytes returns the bytes of the masks on the device.
func (p *Pass) maskBytes() (sum int64) {
	for _, m := range p.masks {
		n := m.mask.Bytes()
		if !p.dev.IsCPU() {
			n /= 2 // the other half is on the host
		}
		sum += n
	}
	return sum
}
