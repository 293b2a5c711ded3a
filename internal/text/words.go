package text

import (
	"bytes"
	"cmp"
	"slices"
	"strings"
)

// Vocabulary maps text to tokens: tokens 0 to 255 are the bytes, the others
// the most frequent words of a text. A word is at most one space and then a run
// of letters, digits and underscores, or one of anything else but spaces.
type Vocabulary struct {
	words []string // words[i] is token 256+i
	token map[string]uint16
}

// NewVocabulary makes a vocabulary of the bytes and the words of a text, at most size tokens.
func NewVocabulary(text []byte, size int) *Vocabulary {
	counts := map[string]*int{} // pointers, so that counting makes no strings
	for word := range words(text) {
		if len(word) < 2 || len(word) > 32 {
			continue
		}
		n := counts[string(word)]
		if n == nil {
			n = new(int)
			counts[string(word)] = n
		}
		*n++
	}
	all := make([]string, 0, len(counts))
	for w := range counts {
		all = append(all, w)
	}
	slices.SortFunc(all, func(a, b string) int {
		return cmp.Or(cmp.Compare(*counts[b], *counts[a]), strings.Compare(a, b))
	})
	v := &Vocabulary{words: all[:min(len(all), max(0, size-256))], token: map[string]uint16{}}
	for i, w := range v.words {
		v.token[w] = uint16(256 + i)
	}
	return v
}

// Len returns the number of tokens.
func (v *Vocabulary) Len() int { return 256 + len(v.words) }

// words yields the pieces of text in order; together they are the text.
func words(text []byte) func(yield func([]byte) bool) {
	return func(yield func([]byte) bool) {
		for len(text) > 0 {
			n := 0
			if text[0] == ' ' && len(text) > 1 && isWord(text[1]) {
				n = 1
			}
			kind := isWord(text[n])
			for n < len(text) && isWord(text[n]) == kind && (n == 0 || kind || text[n] != ' ') {
				n++
			}
			if !yield(text[:n]) {
				return
			}
			text = text[n:]
		}
	}
}

func isWord(c byte) bool {
	return c == '_' || c >= 0x80 || '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}

// Encode returns the tokens of text.
func (v *Vocabulary) Encode(text []byte) []uint16 {
	tokens := make([]uint16, 0, len(text)/3)
	for word := range words(text) {
		if t, ok := v.token[string(word)]; ok {
			tokens = append(tokens, t)
			continue
		}
		for _, c := range word {
			tokens = append(tokens, uint16(c))
		}
	}
	return tokens
}

// Decode returns the text of tokens. Those that the vocabulary lacks are U+FFFD.
func (v *Vocabulary) Decode(tokens []int32) string {
	var b bytes.Buffer
	for _, t := range tokens {
		switch {
		case t >= 0 && t < 256:
			b.WriteByte(byte(t))
		case t >= 256 && int(t) < v.Len():
			b.WriteString(v.words[t-256])
		default:
			b.WriteRune('\uFFFD')
		}
	}
	return b.String()
}
