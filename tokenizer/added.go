package tokenizer

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/snug-ml/snug/internal/ucd"
)

// maxAdded is the longest added token in bytes. A search takes this many steps a byte at
// worst.
const maxAdded = 1024

// maxNodes is how many beginnings of added tokens there may be in all: each takes 9 bytes.
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
// there. It is made by add for each token, and then by done.
type matcher struct {
	tokens []addedToken
	words  []keyed   // of tokens, by their numbers, until done
	trie   *trie     // of the numbers of tokens
	starts [256]bool // the bytes that tokens begin with
	most   int       // bytes of the longest token
}

// add enters a token that is spelled text.
func (m *matcher) add(text string, token addedToken) error {
	if text == "" || len(text) > maxAdded {
		return fmt.Errorf("an added token of %d bytes after the normalizer, want 1 to %d", len(text), maxAdded)
	}
	m.words = append(m.words, keyed{text, int32(len(m.tokens))})
	m.tokens = append(m.tokens, token)
	m.starts[text[0]] = true
	m.most = max(m.most, len(text))
	return nil
}

// done makes the matcher of the tokens that were added.
func (m *matcher) done() error {
	sortKeyed(m.words)
	for i := 1; i < len(m.words); i++ {
		if m.words[i].token == m.words[i-1].token {
			return fmt.Errorf("two added tokens that match the same text %.100q", m.words[i].token)
		}
	}
	if n := beginnings(m.words); n > maxNodes {
		return fmt.Errorf("added tokens with %d different beginnings, want %d at most", n, maxNodes)
	}
	m.trie, m.words = newTrie(m.words), nil
	return nil
}

// longest returns the longest token at the front of text and its length, -1 for none.
func (m *matcher) longest(text string) (token, size int) {
	token = -1
	for node, i := uint32(0), 0; i < len(text); {
		if node = m.trie.next(node, text[i]); node == 0 {
			break
		}
		i++
		if end := m.trie.value[node]; end >= 0 {
			token, size = int(end), i
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
