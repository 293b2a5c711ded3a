package tokenizer

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/snug-ml/snug/internal/ucd"
)

// maxAdded is the longest added token in bytes. A search takes this many steps a byte at
// worst.
const maxAdded = 1024

// maxNodes is how many beginnings of added tokens there may be in all: each takes about 50 bytes.
const maxNodes = 1 << 21

// added are the added tokens. They are found before the model sees the text: first those
// that match the text itself, and between them, after the normalizer, the others.
type added struct {
	raw, normalized matcher
	special         map[string]bool // by the token
}

// addedToken is an added token of a matcher.
type addedToken struct {
	id                              int32
	single, lstrip, rstrip, special bool
}

// matcher finds the leftmost of its tokens in a text, and the longest of those that begin
// there.
type matcher struct {
	tokens []addedToken
	next   map[uint64]int32 // from a node and a byte to a node; 0 is the root
	ends   []int32          // by node: 1 and the token that ends there, 0 for none
	starts [256]bool        // the bytes that tokens begin with
	most   int              // bytes of the longest token
}

// add enters a token that is spelled text.
func (m *matcher) add(text string, token addedToken) error {
	if text == "" || len(text) > maxAdded {
		return fmt.Errorf("an added token of %d bytes after the normalizer, want 1 to %d", len(text), maxAdded)
	}
	if m.ends == nil {
		m.next, m.ends = map[uint64]int32{}, make([]int32, 1)
	}
	node := int32(0)
	for i := range len(text) {
		key := uint64(node)<<8 | uint64(text[i])
		to, ok := m.next[key]
		if !ok {
			if len(m.ends) == maxNodes {
				return fmt.Errorf("added tokens with more than %d different beginnings", maxNodes)
			}
			to = int32(len(m.ends))
			m.next[key] = to
			m.ends = append(m.ends, 0)
		}
		node = to
	}
	if m.ends[node] != 0 {
		return errors.New("two added tokens that match the same text")
	}
	m.tokens = append(m.tokens, token)
	m.ends[node] = int32(len(m.tokens))
	m.starts[text[0]] = true
	m.most = max(m.most, len(text))
	return nil
}

// longest returns the longest token at the front of text and its length, -1 for none.
func (m *matcher) longest(text string) (token, size int) {
	token = -1
	node := int32(0)
	for i := range len(text) {
		to, ok := m.next[uint64(node)<<8|uint64(text[i])]
		if !ok {
			break
		}
		node = to
		if end := m.ends[node]; end != 0 {
			token, size = int(end)-1, i+1
		}
	}
	return token, size
}

// each calls token with the ids and places of the tokens in text and rest with the text between them,
// in order. White space that a token takes belongs to no place. Special tokens are text where plain is set.
func (m *matcher) each(text string, plain bool, token func(id int32, from, to int), rest func(from, to int) error) error {
	done := 0
	if len(m.tokens) > 0 {
		for at := 0; at < len(text); {
			if !m.starts[text[at]] {
				at++
				continue
			}
			i, size := m.longest(text[at:])
			if i < 0 {
				at++
				continue
			}
			t := &m.tokens[i]
			from, to := at, at+size
			begin, end := from, to
			at = to
			if plain && t.special || t.single && !single(text, from, to) {
				continue
			}
			space := ucd.MustClass("peer:space").Contains
			if t.lstrip {
				from = max(done, len(strings.TrimRightFunc(text[:from], space)))
			}
			if t.rstrip {
				to = len(text) - len(strings.TrimLeftFunc(text[to:], space))
			}
			if from >= to { // the token before took the spaces that this one matches
				continue
			}
			if done < from {
				if err := rest(done, from); err != nil {
					return err
				}
			}
			token(t.id, begin, end)
			done = to
		}
	}
	if done < len(text) {
		return rest(done, len(text))
	}
	return nil
}

// single reports whether no word character touches text[from:to].
func single(text string, from, to int) bool {
	word := ucd.MustClass("peer:word")
	before, n := utf8.DecodeLastRuneInString(text[:from])
	after, m := utf8.DecodeRuneInString(text[to:])
	return !(n > 0 && word.Contains(before)) && !(m > 0 && word.Contains(after))
}
