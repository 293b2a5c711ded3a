package tokenizer

import (
	"encoding/json"
	"strings"
	"unicode/utf8"
)

// wordPiece is the model of BERT: Schuster and Nakajima, "Japanese and Korean Voice Search", 2012. A word is cut from the front, each
// time at the longest token that fits; tokens that do not begin a word have a prefix. A word that cannot be cut so, or
// is too long, is the unknown token.
type wordPiece struct {
	ids         map[string]int32
	first, next *trie // tokens that begin a word, and those that do not, without the prefix
	prefix      string
	unknown     string
	most        int // characters of a word
	cache       *cache
}

// wordPieceFile is a model of type WordPiece.
type wordPieceFile struct {
	Type    string            `json:"type,omitempty"`
	Unknown string            `json:"unk_token"`
	Prefix  string            `json:"continuing_subword_prefix"`
	Most    uint32            `json:"max_input_chars_per_word"`
	Vocab   map[string]uint32 `json:"vocab"`
}

func init() {
	modelKinds["WordPiece"] = modelKind{func() modelSource { return new(wordPieceFile) }, []string{"vocab", "unk_token", "continuing_subword_prefix", "max_input_chars_per_word"}, 2}
	decoderKinds.add("WordPiece", func(part json.RawMessage) ([]decoder, error) {
		var f struct {
			Type    string `json:"type"`
			Prefix  string `json:"prefix"`
			Cleanup bool   `json:"cleanup"`
		}
		err := read(part, &f)
		return []decoder{wordPieceDecoder{f.Prefix, f.Cleanup}}, err
	})
}

func (f *wordPieceFile) make(t *Tokenizer) (m model, err error) {
	w := &wordPiece{prefix: f.Prefix, unknown: f.Unknown, most: int(min(f.Most, maxText)), cache: newCache()}
	if w.ids, err = t.enter(f.Vocab); err != nil {
		return nil, err
	}
	var first, next []keyed
	for token, id := range w.ids {
		if len(token) > maxPiece {
			return nil, refused("vocab: %.40q has %d bytes, want %d at most", token, len(token), maxPiece)
		}
		first = append(first, keyed{token, id})
		if rest, is := strings.CutPrefix(token, w.prefix); is {
			next = append(next, keyed{rest, id})
		}
	}
	w.first, w.next = newTrie(first), newTrie(next)
	return w, nil
}

func (m *wordPiece) id(token string) (int32, bool) {
	id, ok := m.ids[token]
	return id, ok
}

func (m *wordPiece) size() int { return len(m.ids) }

func (m *wordPiece) encode(dst []int32, p piece) ([]int32, error) {
	if p.text == "" {
		return dst, nil
	}
	return m.cache.cached(dst, p.text, false, func(dst []int32) ([]int32, error) { return m.word(dst, spelled(p)) })
}

func (m *wordPiece) long(p piece, emit func(ids []int32) error) error { return encodeWhole(m, p, emit) }

func (m *wordPiece) apart(halves) bool { return false }

// word appends the tokens of a word.
func (m *wordPiece) word(dst []int32, word string) ([]int32, error) {
	n := len(dst)
	tokens, whole := m.first, utf8.RuneCountInString(word) <= m.most
	for from := 0; whole && from < len(word); {
		id, end := int32(-1), from
		for node, at := uint32(0), from; at < len(word); {
			if node = tokens.next(node, word[at]); node == 0 {
				break
			}
			at++
			if tokens.value[node] >= 0 {
				id, end = tokens.value[node], at
			}
		}
		dst = append(dst, id)
		whole = id >= 0
		from, tokens = end, m.next
	}
	if whole {
		return dst, nil
	}
	id, ok := m.ids[m.unknown]
	if !ok {
		return dst[:n], refused("no tokens for the word %.100q, and the unknown token %.100q is not in the vocabulary", word, m.unknown)
	}
	return append(dst[:n], id), nil
}

func (m *wordPiece) span(token string, _ int32, word piece, at int, last bool) int {
	rest := word.text[at:]
	if at > 0 {
		token = strings.TrimPrefix(token, m.prefix)
	}
	switch {
	case last:
		return len(rest)
	case strings.HasPrefix(rest, token):
		return len(token)
	}
	return 0
}

// wordPieceDecoder puts spaces between words, and may take those out that stand before punctuation.
type wordPieceDecoder struct {
	prefix  string
	cleanup bool
}

// cleanups are replaced one after the other.
var cleanups = []string{" .", ".", " ?", "?", " !", "!", " ,", ",", " ' ", "'", " n't", "n't", " 'm", "'m", " do not", " don't", " 's", "'s", " 've", "'ve", " 're", "'re"}

func (d wordPieceDecoder) stream() step {
	begun := false
	return each(func(token string) string {
		if begun {
			rest, continues := strings.CutPrefix(token, d.prefix)
			if token = rest; !continues {
				token = " " + token
			}
		}
		begun = true
		for i := 0; d.cleanup && i < len(cleanups); i += 2 {
			token = strings.ReplaceAll(token, cleanups[i], cleanups[i+1])
		}
		return token
	})
}
