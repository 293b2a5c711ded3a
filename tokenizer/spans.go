package tokenizer

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/snug-ml/snug"
)

// Span is a range of bytes of a text: from Begin to End-1.
type Span struct{ Begin, End int }

// EncodeSpans returns the ids that [Tokenizer.Encode] returns, and the bytes of the text that each of them stands for.
//
// Neither Begin nor End decreases from a token to the next. A token that the post-processor adds, or a sign that stands for
// nothing in the text (such as a ▁ in front), has a place without bytes. A token of a part of a character, as byte-level
// vocabularies have them, has those bytes; where a normalizer rewrote the character, such as a letter and its accents, it
// has all of them, as the tokens of the other parts have. An added token has the bytes of its name; white space that it
// takes besides (lstrip, rstrip) is in no place.
//
// It takes 16 bytes of memory for each byte of the longest text between two added tokens, and 16 for a token. Errors are
// those of Encode; a text that is not UTF-8 is [snug.ErrCorrupt], and Truncate and Pad are [snug.ErrConfig].
func (t *Tokenizer) EncodeSpans(text string, o EncodeOptions) ([]int32, []Span, error) {
	if t == nil || t.model == nil {
		return nil, nil, fmt.Errorf("tokenizer: a Tokenizer that was not opened: %w", snug.ErrConfig)
	}
	if len(text) > maxText {
		return nil, nil, fmt.Errorf("tokenizer: a text of %d bytes, want %d at most: %w", len(text), maxText, snug.ErrShape)
	}
	if o.Truncate || o.Pad {
		return nil, nil, fmt.Errorf("tokenizer: EncodeSpans neither truncates nor pads: %w", snug.ErrConfig)
	}
	if !utf8.ValidString(text) {
		return nil, nil, fmt.Errorf("tokenizer: the text is not UTF-8: %w", snug.ErrCorrupt)
	}
	ids, places, err := t.tokens(text, o.PlainSpecial, true)
	if err == nil {
		err = t.within(ids)
	}
	if err != nil {
		return nil, nil, err
	}
	if o.NoSpecial || len(t.post) == 0 {
		return ids, places, nil
	}
	order := make([]int32, len(ids)) // the post-processor moves numbers of tokens, which are negative
	for i := range order {
		order[i] = ^int32(i)
	}
	for _, p := range t.post {
		order = p.apply(order)
	}
	all, spans := make([]int32, len(order)), make([]Span, len(order))
	at := 0
	for i, id := range order {
		if all[i] = id; id < 0 {
			all[i], spans[i] = ids[^id], places[^id]
			at = spans[i].End
			continue
		}
		spans[i] = Span{at, at}
	}
	return all, spans, t.within(all)
}

// place returns the place in the whole text of a part of a piece.
func (p *piece) place(from, to int) Span {
	if p.at == nil || from >= to {
		return Span{}
	}
	return Span{p.at[from].Begin, p.at[to-1].End}
}

// place appends the places of the tokens of a word. If the lengths of the tokens are not those of the word, each has the
// place of the whole word.
func (t *Tokenizer) place(places []Span, ids []int32, word piece) []Span {
	n, at := len(places), 0
	for i, id := range ids {
		size := t.model.span(t.texts[id], id, word, at, i == len(ids)-1)
		if size == 0 && i < len(ids)-1 || at+size > len(word.text) {
			at = -1
			break
		}
		places = append(places, word.place(at, at+size))
		at += size
	}
	if at != len(word.text) {
		places = places[:n]
		for range ids {
			places = append(places, word.place(0, len(word.text)))
		}
	}
	return places
}

// span returns how many bytes of a word, from at on, a token stands for, and 0 where that is not known.
func (m *bpe) span(token string, id int32, word piece, at int, last bool) int {
	rest := word.text[at:]
	if last {
		return len(rest)
	}
	if at > 0 {
		token = strings.TrimPrefix(token, m.prefix)
	}
	switch {
	case word.raw && m.prefix == "":
		return utf8.RuneCountInString(token)
	case strings.HasPrefix(rest, token):
		return len(token)
	case m.fallback != nil && m.fallback[rest[0]] == id:
		return 1
	case m.unknown != nil && token == *m.unknown && !m.fuseUnknown:
		return firstSize(rest)
	}
	return 0
}

// pieces returns the function for rewrite of a text that f has made. It cuts the old text where f of the parts is the
// parts of f.
func pieces(f func(string) string, text string) func(old string, add func(n, from, to int)) {
	return func(old string, add func(n, from, to int)) {
		for _, begins := range []func(r rune) bool{
			func(r rune) bool { return !unicode.IsMark(r) && !(r >= 0x1160 && r <= 0x11ff) }, // vowels and finals of Hangul
			func(r rune) bool { return r < utf8.RuneSelf },                                   // which joins nothing before it
		} {
			var sizes [][3]int
			done, from, fits := 0, 0, true
			for at := 0; at < len(old) && fits; {
				_, size := utf8.DecodeRuneInString(old[at:])
				if at += size; at < len(old) {
					if r, _ := utf8.DecodeRuneInString(old[at:]); !begins(r) {
						continue
					}
				}
				part := f(old[from:at])
				fits = strings.HasPrefix(text[done:], part)
				sizes = append(sizes, [3]int{len(part), from, at})
				done += len(part)
				from = at
			}
			if fits && done == len(text) {
				for _, s := range sizes {
					add(s[0], s[1], s[2])
				}
				return
			}
		}
		add(len(text), 0, len(old))
	}
}
