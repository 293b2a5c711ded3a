package tokenizer

import (
	"encoding/json"
	"strings"
	"unicode/utf8"

	"github.com/snug-ml/snug/internal/ucd"
)

// precompiled applies SentencePiece's table of rules as the library tokenizers does, which differs from SentencePiece: a grapheme of
// less than 6 bytes becomes the result of the shortest rule at its front as a whole, so that marks behind the rule are lost.
// Otherwise each character becomes the result of its own.
type precompiled struct{ table *charsmap }

// wholeGrapheme is the size from which on the characters of a grapheme are looked up one by one.
const wholeGrapheme = 6

func init() {
	normalizerKinds.add("Precompiled", func(part json.RawMessage) ([]normalizer, error) {
		var f struct {
			Type  string `json:"type"`
			Table []byte `json:"precompiled_charsmap,omitempty"`
		}
		if err := read(part, &f); err != nil {
			return nil, err
		}
		table, err := newCharsmap(f.Table)
		if table == nil {
			return nil, err
		}
		return []normalizer{precompiled{table}}, nil
	})
}

func (n precompiled) growth() int { return n.table.growth() }

func (n precompiled) normalize(p *piece) error {
	var b strings.Builder
	changed := false
	head := 0
	n.parts(p.text, func(result string, from, to int) {
		if from == 0 && to == firstSize(p.text) {
			head = len(result)
		}
		if !changed && result == p.text[from:to] {
			return
		}
		if !changed {
			changed = true
			b.Grow(len(p.text) + len(p.text)/8)
			b.WriteString(p.text[:from])
		}
		b.WriteString(result)
	})
	if changed {
		p.rewrite(b.String(), func(old string, add func(n, from, to int)) {
			n.parts(old, func(result string, from, to int) { add(len(result), from, to) })
		})
		if p.head > 0 && head > 0 {
			p.head = head
		}
	}
	return nil
}

// parts calls add with the results of the parts of a text, in order.
func (n precompiled) parts(text string, add func(result string, from, to int)) {
	for at := 0; at < len(text); {
		from := at
		for at < len(text) && text[at] < utf8.RuneSelf && n.table.ascii[text[at]] && (at+1 == len(text) || text[at+1] < utf8.RuneSelf) {
			at++ // a letter that no mark follows
		}
		if at > from {
			add(text[from:at], from, at)
			continue
		}
		end := at + grapheme(text[at:])
		if end-at < wholeGrapheme {
			if result, size, _ := n.table.find(text[at:end], false); size > 0 {
				add(result, at, end)
				at = end
				continue
			}
		}
		for at < end {
			to := at + firstSize(text[at:])
			result, size, _ := n.table.find(text[at:to], false)
			if size == 0 {
				result = text[at:to]
			}
			add(result, at, to)
			at = to
		}
	}
}

func (n precompiled) halve(h *halves) bool {
	return h.settleBy(func(before, after rune) bool { return safe(before, after) && !prepends(before) }) && n.normalize(&h.left) == nil && n.normalize(&h.right) == nil
}

// grapheme returns the size of the first grapheme of a text, by Unicode Standard Annex 29 as far as it decides about those of less
// than 6 bytes: a character with the marks behind it, a sign that belongs to what follows, a line break of two characters.
func grapheme(text string) int {
	r, size := utf8.DecodeRuneInString(text)
	if r == '\r' && strings.HasPrefix(text[size:], "\n") {
		return size + 1
	}
	joins := ucd.MustClass("peer:joins")
	for !controls(r) && size < len(text) {
		next, n := utf8.DecodeRuneInString(text[size:])
		if !joins.Contains(next) && (!prepends(r) || controls(next)) {
			break
		}
		r = next
		size += n
	}
	return size
}

// controls reports whether r is a grapheme of its own: Grapheme_Cluster_Break=CR, LF and Control.
func controls(r rune) bool {
	switch {
	case r < 0x80:
		return r < ' ' || r == 0x7F
	case r < 0x300:
		return r < 0xA0 || r == 0xAD
	}
	return r == 0x61C || r == 0x180E || r == 0x200B || r == 0x200E || r == 0x200F || r >= 0x2028 && r <= 0x202E || r >= 0x2060 && r <= 0x206F ||
		r == 0xFEFF || r >= 0xFFF0 && r <= 0xFFFB || r >= 0x13430 && r <= 0x1343F || r >= 0x1BCA0 && r <= 0x1BCA3 || r >= 0x1D173 && r <= 0x1D17A ||
		r >= 0xE0000 && r <= 0xE001F || r >= 0xE0080 && r <= 0xE00FF || r >= 0xE01F0 && r <= 0xE0FFF
}

// prepends reports whether r belongs to the character behind it: Grapheme_Cluster_Break=Prepend.
func prepends(r rune) bool {
	switch {
	case r < 0x600:
		return false
	case r <= 0x605, r == 0x6DD, r == 0x70F, r == 0x890, r == 0x891, r == 0x8E2, r == 0xD4E:
		return true
	}
	return r == 0x110BD || r == 0x110CD || r == 0x111C2 || r == 0x111C3 || r == 0x113D1 || r == 0x1193F || r == 0x11941 || r >= 0x11A84 && r <= 0x11A89 ||
		r == 0x11D46 || r == 0x11F02
}
