package dataset

import (
	"errors"
	"fmt"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/chat"
	"github.com/snug-ml/snug/internal/jinja"
	"github.com/snug-ml/snug/tokenizer"
)

// span is a range of bytes of a text that is learned.
type span = tokenizer.Span

// labels returns the tokens of a text. A token counts as a label if it has a byte of a span, so a token that crosses a
// border of a span is learned; other tokens are complemented, see [Set]. Spans are in order and do not overlap.
//
// A token without bytes, such as a ▁ in front of a text or a </s> that the tokenizer adds behind it, belongs to the span that
// begins at its place, or that ends with the text.
//
// It encodes the text once, so time is linear in its length. end is a token to append as a label unless the text ends with
// it, -1 for none.
func labels(tok *tokenizer.Tokenizer, text string, spans []span, end int32, o tokenizer.EncodeOptions) ([]int32, error) {
	ids, places, err := tok.EncodeSpans(text, o)
	if err != nil {
		return nil, err
	}
	for i, p := range places {
		for len(spans) > 0 && spans[0].End <= p.Begin && !(spans[0].End == len(text) && p.Begin == len(text)) {
			spans = spans[1:]
		}
		if !learned(spans, p, len(text)) {
			ids[i] = ^ids[i]
		}
	}
	if n := len(ids); end >= 0 && (n == 0 || ids[n-1] != end && ids[n-1] != ^end) {
		ids = append(ids, end)
	}
	return ids, nil
}

// learned reports whether a token at a place is a label. spans begins with the first span that ends behind the place.
func learned(spans []span, p span, size int) bool {
	switch {
	case len(spans) == 0:
		return false
	case p.Begin == p.End:
		return spans[0].Begin <= p.Begin && (p.Begin < spans[0].End || spans[0].End == size)
	}
	return spans[0].Begin < p.End && p.Begin < spans[0].End
}

// labelText returns the tokens of a text that a tokenizer's special tokens surround and its end token ends, such as a prompt
// with its completion.
func (r *reader) labelText(text string, learned ...span) ([]int32, error) {
	end, err := r.ending()
	if err != nil {
		return nil, err
	}
	o := tokenizer.EncodeOptions{}
	if text, err = r.beginning(text, o); err != nil {
		return nil, err
	}
	return labels(r.tok, text, learned, end, o)
}

// beginning returns the beginning of a text that has all tokens of a sample and one more, or the whole text.
func (r *reader) beginning(text string, o tokenizer.EncodeOptions) (string, error) {
	most := r.options.Context + 2
	for n := 16 * most; n < len(text)/2; n *= 4 {
		part := r.tok.Prefix(text, n, o)
		ids, err := r.tok.Encode(part, tokenizer.EncodeOptions{NoSpecial: true})
		if err != nil || len(ids) >= most {
			return part, err
		}
	}
	return text, nil
}

// labelChat returns the tokens of a conversation with images, whose labels are the assistant's turns, and its text. There is a
// template.
func (r *reader) labelChat(c chat.Conversation, pictures []picture) ([]int32, chat.Labeled, error) {
	if len(pictures) > 0 {
		c = inParts(c)
	}
	l, err := r.options.Template.Label(c)
	if errors.Is(err, jinja.ErrBound) {
		return nil, l, &encodeError{err}
	}
	if err != nil {
		return nil, l, err
	}
	if len(pictures) > 0 {
		if err := r.expand(&l, pictures); err != nil {
			return nil, l, &encodeError{err}
		}
	}
	var spans []span
	for _, turn := range l.Turns {
		spans = append(spans, span{Begin: turn.Begin, End: turn.End})
	}
	o := tokenizer.EncodeOptions{NoSpecial: r.options.Images == nil || !r.options.Images.AddsSpecial(r.tok.Config().BOS, l.Text)}
	var ids []int32
	text, err := r.beginning(l.Text, o)
	if err == nil {
		ids, err = labels(r.tok, text, spans, -1, o)
	}
	if err != nil {
		return nil, l, &encodeError{err}
	}
	if r.options.Images != nil {
		if err := r.checkRows(ids, pictures, len(text) < len(l.Text)); err != nil {
			return nil, l, &encodeError{err}
		}
	}
	return ids, l, nil
}

// encodeError says that the tokenizer refuses a text, or that the chat template takes more than it may: an error of the file.
type encodeError struct{ error }

func (e *encodeError) Unwrap() error { return e.error }

// labelPair makes the labels of two answers to one prompt begin at the same token, the earlier one: where the last token of
// the prompt crosses into one of the answers, it is learned in both. Before it both have the same tokens, or it is an error.
func labelPair(chosen, rejected []int32) error {
	begin := min(firstLabel(chosen), firstLabel(rejected))
	if begin > min(len(chosen), len(rejected)) || !slices.Equal(chosen[:begin], rejected[:begin]) {
		return fmt.Errorf("the chat template writes another prompt before the chosen answer than before the rejected one: %w", snug.ErrConfig)
	}
	for _, answer := range [][]int32{chosen, rejected} {
		for i := begin; i < len(answer) && answer[i] < 0; i++ {
			answer[i] = ^answer[i]
		}
	}
	return nil
}

// firstLabel returns the number of the first token that counts as a label, or how many tokens there are.
func firstLabel(tokens []int32) int {
	for i, t := range tokens {
		if t >= 0 {
			return i
		}
	}
	return len(tokens)
}
