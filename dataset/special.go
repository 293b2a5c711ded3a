package dataset

import (
	"slices"
	"strings"

	"github.com/snug-ml/snug/chat"
	"github.com/snug-ml/snug/tokenizer"
)

// specials are the special tokens of a tokenizer, which its vocabulary has by the thousand.
type specials struct {
	ids    map[string]int32
	starts [256]bool // the first bytes
	sizes  []int     // falling
}

// specialTokens returns the tokenizer's special tokens but the tags of reasoning, which answers have.
func specialTokens(tok *tokenizer.Tokenizer) *specials {
	s := &specials{ids: map[string]int32{}}
	for id := range int32(tok.Len()) {
		text, known := tok.Token(id)
		if !known || text == "" || !tok.Special(id) || text == "<think>" || text == "</think>" {
			continue
		}
		s.ids[text], s.starts[text[0]] = id, true
		if !slices.Contains(s.sizes, len(text)) {
			s.sizes = append(s.sizes, len(text))
		}
	}
	slices.Sort(s.sizes)
	slices.Reverse(s.sizes)
	return s
}

// in returns the first special token in a text, the longest of those at its place.
func (s *specials) in(text string) string {
	for at := range len(text) {
		if !s.starts[text[at]] {
			continue
		}
		for _, size := range s.sizes {
			if at+size <= len(text) {
				if _, found := s.ids[text[at:at+size]]; found {
					return text[at : at+size]
				}
			}
		}
	}
	return ""
}

// special warns of texts that have a special token: chat templates write texts as they are, and tokenizers encode
// what looks like a special token as that token, as transformers does.
//
// A token that ends a text is said by [rows.otherEnd], and one that begins a turn of a text by [rows.markup].
func (f *rows) special(at string, c content) {
	r := f.reader
	for _, conversation := range c.chats {
		for i, m := range conversation.Messages {
			text := m.Content
			if m.Role == "assistant" && !m.Untrained {
				text = withoutEnd(text)
			}
			token := r.specialIn(text)
			eachText(m.Fields, func(text string) {
				if token == "" {
					token = r.specialIn(text)
				}
			})
			if token != "" {
				f.warn(at, "special", "the text of message %d (%.40s) has the special token %q, which is encoded as that token", i, m.Role, token)
				return
			}
		}
	}
	if c.chats != nil {
		return
	}
	end := ""
	if r.eos != nil {
		end, _ = r.tok.Token(*r.eos)
	}
	for _, text := range []string{c.prompt, withoutEnd(strings.TrimSuffix(c.answer, end)), withoutEnd(strings.TrimSuffix(c.rejected, end))} {
		if token := r.specialIn(text); token != "" && !slices.Contains(markups, token) {
			f.warn(at, "special", "a text has the special token %q, which is encoded as that token", token)
			return
		}
	}
}

// withoutEnd returns a text without the token of another model that ends it.
func withoutEnd(text string) string {
	text = strings.TrimRight(text, " \t\r\n")
	for _, end := range ends {
		if before, found := strings.CutSuffix(text, end); found {
			return before
		}
	}
	return text
}

// specialIn returns the first special token in a text, if the tokenizer encodes it so.
func (r *reader) specialIn(text string) string {
	if r.specials == nil {
		r.specials = specialTokens(r.tok)
	}
	token := r.specials.in(text)
	if token == "" {
		return ""
	}
	if ids, err := r.tok.Encode(text, tokenizer.EncodeOptions{NoSpecial: true}); err != nil || !slices.Contains(ids, r.specials.ids[token]) {
		return "" // the tokenizer wants it alone, or reads it otherwise
	}
	return token
}

// eachText calls f with the texts of a value.
func eachText(v any, f func(string)) {
	switch v := v.(type) {
	case string:
		f(v)
	case []any:
		for _, x := range v {
			eachText(x, f)
		}
	case chat.Object:
		for _, x := range v {
			eachText(x.Value, f)
		}
	}
}
