package tokenizer

import (
	"slices"
	"strings"
)

// piece is a part of the text on its way through the chain.
type piece struct {
	text string
	// head is how many bytes at the front stand for the first character of the whole
	// text: 0 for a piece from further back.
	head int
	// raw says that text is bytes, which the model sees as characters of ByteLevel.
	raw bool
	// at has the place in the whole text of each byte of text. It is nil if nobody asks for it.
	at []Span
	// inner says that the front is where an [Encoder] has cut a text: nothing is added or stripped there.
	inner bool
	// sum is the sum of the scores up to the front of an inner piece. Unigram sets it to the sum up to the end. It is nil if nobody
	// goes on behind the piece.
	sum *float64
}

// cut returns a part of a piece.
func (p piece) cut(from, to int) piece {
	part := piece{text: p.text[from:to], head: max(0, min(p.head, to)-from), raw: p.raw, inner: p.inner && from == 0, sum: p.sum}
	if p.at != nil {
		part.at = p.at[from:to]
	}
	return part
}

// prepend puts s before the text, as a part of its first character.
func (p *piece) prepend(s string) {
	p.text = s + p.text
	if p.head > 0 {
		p.head += len(s)
	}
	if len(p.at) > 0 {
		first := p.at[0].Begin
		p.at = append(slices.Repeat([]Span{{first, first}}, len(s)), p.at...)
	}
}

// headBy returns how many bytes at the front of text, which f has made of the piece, stand for the first character of the whole text.
func (p *piece) headBy(f func(string) string, text string) int {
	if p.head == 0 {
		return 0
	}
	if part := f(p.text[:min(p.head, len(p.text))]); part != "" && strings.HasPrefix(text, part) {
		return len(part)
	}
	return firstSize(text)
}

// rewrite sets the text to one whose first character stems from the same place. It calls stems, if anybody asks for places,
// which calls add for all parts of the new text in order: the next n bytes stem from the bytes from to to-1 of the old one.
func (p *piece) rewrite(text string, stems func(old string, add func(n, from, to int))) {
	if p.at != nil {
		at := make([]Span, 0, len(text))
		stems(p.text, func(n, from, to int) {
			if n == to-from {
				at = append(at, p.at[from:to]...)
				return
			}
			place := Span{}
			switch {
			case from < to:
				place = Span{p.at[from].Begin, p.at[to-1].End}
			case from > 0:
				place = Span{p.at[from-1].End, p.at[from-1].End}
			case len(p.at) > 0:
				place = Span{p.at[0].Begin, p.at[0].Begin}
			}
			for range n {
				at = append(at, place)
			}
		})
		p.at = at
	}
	p.text = text
	if p.head > 0 {
		p.head = firstSize(text)
	}
}
