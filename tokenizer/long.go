package tokenizer

import (
	"errors"
	"slices"
)

// Words beyond longWord bytes are merged in windows of symbolWindow symbols.
const (
	longWord     = 64 << 10
	symbolWindow = 16 << 10
)

// errFar is the error for a long word some of whose tokens depend on more symbols than a window has.
var errFar = errors.New("a word whose tokens depend on all of it: write spaces or line breaks into it")

// span is a token of a row of symbols, and the range of its symbols.
type span struct {
	id         int32
	begin, end int
}

// long calls emit with the tokens of a long word, some at a time.
func (m *bpe) long(p piece, emit func(ids []int32) error) error {
	word := spelled(p)
	if m.wholeWords {
		if id, ok := m.vocab[word]; ok {
			return emit([]int32{id})
		}
	}
	var ids []int32
	flush := func(least int) error {
		if len(ids) <= least {
			return nil
		}
		err := emit(ids)
		ids = ids[:0]
		return err
	}
	err := m.parts(word, func(part string) (err error) {
		if len(part) > longWord {
			if err := flush(0); err != nil {
				return err
			}
			return m.windows(part, symbolWindow, emit)
		}
		if ids, err = m.part(ids, part); err != nil {
			return err
		}
		return flush(symbolWindow)
	})
	if err != nil {
		return err
	}
	return flush(0)
}

// windows calls emit with the tokens of a long word, some at a time. It holds a window of the word's symbols, so that the
// memory does not grow with the word, and the time is linear in its length.
//
// The tokens are those of merging the whole word, for any list of merges, by this theorem: if every two neighbors of a row
// of tokens are what the symbols of these two alone are merged to, then the row is what all its symbols are merged to.
// Proof: consider the first merge over a border between two tokens of the row. Up to it, the merges among the symbols of
// these two are those, in the same order, of these two alone, since the first of all merges is each time the first one
// among theirs when it is one of them. So the two alone would have been merged over their border as well, which they are
// not. In the tokens of a window all neighbors are as in the theorem, by the same argument. At the border of two windows
// the two neighbors are merged alone; if that gives other tokens, the border moves back. If no border is found, which takes
// merges that no list of a trained tokenizer has, the window grows, or else the error is errFar.
func (m *bpe) windows(word string, window int, emit func(ids []int32) error) error {
	in := &characters{bpe: m, word: word}
	s := scratches.Get().(*scratch)
	defer scratches.Put(s)
	var symbols []int32 // of the text that is not emitted, and of the last token before
	first := 0          // the symbols of the token before
	var before span     // that token
	var ids []int32
	give := func(tokens []span) error {
		ids = ids[:0]
		for _, t := range tokens {
			ids = append(ids, t.id)
		}
		return emit(ids)
	}
	// merged returns the tokens of the next window from a symbol on.
	merged := func(from int) ([]span, error) {
		s.reset()
		for _, id := range symbols[from:] {
			s.add(id)
		}
		known := len(s.symbols)
		if err := in.add(s, window); err != nil {
			return nil, err
		}
		for _, x := range s.symbols[known:] {
			symbols = append(symbols, x.id)
		}
		s.merge(m)
		return s.spans(from), nil
	}
	tokens, err := merged(first)
	if err != nil {
		return err
	}
	for in.at < len(word) {
		// The border is behind the last token that is not near the end of the window, where other text may change tokens.
		far := len(symbols) - (len(symbols)-first)/8
		border, _ := slices.BinarySearchFunc(tokens, far, func(t span, far int) int { return t.end - far })
		var next []span
		for step := 1; border > 0; step *= 2 {
			if next, err = merged(tokens[border-1].end); err != nil {
				return err
			}
			if m.apart2(s, symbols, tokens[border-1], next[0]) {
				break
			}
			border -= step
		}
		if border <= 0 { // tokens as long as the window
			window *= 2
			if tokens, err = merged(first); err != nil {
				return err
			}
			if first > 0 && !m.apart2(s, symbols, before, tokens[0]) {
				return errFar
			}
			continue
		}
		if err := give(tokens[:border]); err != nil {
			return err
		}
		before = tokens[border-1]
		gone := before.begin
		first = before.end - gone
		before = span{before.id, 0, first}
		symbols = append(symbols[:0], symbols[gone:]...)
		tokens = next
		for i := range tokens {
			tokens[i].begin, tokens[i].end = tokens[i].begin-gone, tokens[i].end-gone
		}
	}
	return give(tokens)
}

// apart2 reports whether the symbols of two neighbors alone are merged to these tokens.
func (m *bpe) apart2(s *scratch, symbols []int32, a, b span) bool {
	s.reset()
	for _, id := range symbols[a.begin:b.end] {
		s.add(id)
	}
	s.merge(m)
	got := s.spans(a.begin)
	return len(got) == 2 && got[0] == a && got[1] == b
}

// spans returns the tokens that are left after merges. Their symbols are numbered from a number on.
func (s *scratch) spans(from int) (tokens []span) {
	for i := 0; i >= 0 && i < len(s.symbols); {
		next := int(s.symbols[i].next)
		end := next
		if next < 0 {
			end = len(s.symbols)
		}
		tokens = append(tokens, span{s.symbols[i].id, from + i, from + end})
		i = next
	}
	return tokens
}
