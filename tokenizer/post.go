package tokenizer

import (
	"fmt"
	"slices"

	"github.com/snug-ml/snug"
)

// postProcessor adds special tokens to the tokens of a text.
type postProcessor interface {
	apply(ids []int32) []int32
	adds() int // how many tokens
}

// template is the tokens around a text.
type template []templatePart

// templatePart is the text, or tokens.
type templatePart struct {
	text bool
	ids  []int32
}

func (t template) apply(ids []int32) []int32 {
	var out []int32
	for _, part := range t {
		if part.text {
			out = append(out, ids...)
		} else {
			out = append(out, part.ids...)
		}
	}
	return out
}

func (t template) adds() (n int) {
	for _, part := range t {
		n += len(part.ids)
	}
	return n
}

// truncation has the keys of the file's section "truncation" that matter for one text.
type truncation struct {
	length int
	left   bool
}

func (t *Tokenizer) truncate(ids []int32, special bool) ([]int32, error) {
	n := t.truncation.length
	if special {
		for _, p := range t.post {
			n -= p.adds()
		}
	}
	if n < 0 {
		return nil, fmt.Errorf("tokenizer: truncation to %d tokens, fewer than the special ones: %w", t.truncation.length, snug.ErrConfig)
	}
	if t.truncation.left {
		return ids[max(0, len(ids)-n):], nil
	}
	return ids[:min(n, len(ids))], nil
}

// padding is the file's section "padding".
type padding struct {
	fixed    int // length to pad to; 0 is the length of the longest text of a batch
	multiple int
	left     bool
	id       int32
}

// maxPadding is the longest padded text.
const maxPadding = 1 << 26

func (p *padding) apply(ids []int32) ([]int32, error) {
	n := max(p.fixed, len(ids))
	if p.multiple > 1 {
		n = (n + p.multiple - 1) / p.multiple * p.multiple
	}
	pads := slices.Repeat([]int32{p.id}, n-len(ids))
	if p.left {
		return append(pads, ids...), nil
	}
	return append(ids, pads...), nil
}
