package tokenizer

import (
	"encoding/json"
	"strings"
	"unicode/utf8"

	"github.com/snug-ml/snug/internal/ucd"
)

// bertNormalizer is that of BERT: it drops control characters and writes spaces for white space, puts spaces around ideographs, takes
// accents off letters, and writes lower case, in this order.
type bertNormalizer struct{ clean, ideographs, accents, lower bool }

func init() {
	normalizerKinds.add("BertNormalizer", func(part json.RawMessage) ([]normalizer, error) {
		var f struct {
			Type       string `json:"type"`
			Clean      bool   `json:"clean_text"`
			Ideographs bool   `json:"handle_chinese_chars"`
			Accents    *bool  `json:"strip_accents,omitempty"` // as Lower if it is null
			Lower      bool   `json:"lowercase"`
		}
		if err := read(part, &f); err != nil {
			return nil, err
		}
		n := bertNormalizer{f.Clean, f.Ideographs, f.Lower, f.Lower}
		if f.Accents != nil {
			n.accents = *f.Accents
		}
		return []normalizer{n}, nil
	})
	normalizerKinds.add("StripAccents", func(part json.RawMessage) ([]normalizer, error) {
		return simple[normalizer](part, accents{"peer:accent"})
	})
	preTokenizerKinds.add("BertPreTokenizer", func(part json.RawMessage) ([]preTokenizer, error) {
		all, err := simple[preTokenizer](part, splitRunes("peer:space", removed))
		return append(all, splitRunes("peer:punct", isolated)), err
	})
}

func (bertNormalizer) growth() int { return 3 } // an ideograph with spaces, from 3 bytes to 5; a form of a letter, from 2 to 6

func (n bertNormalizer) normalize(p *piece) error {
	if n.clean || n.ideographs {
		var b strings.Builder
		n.parts(p.text, func(text string, _, _ int) { b.WriteString(text) })
		if text := b.String(); text != p.text {
			first, _ := utf8.DecodeRuneInString(p.text)
			if n.clean && first != '\t' && first != '\n' && first != '\r' && ucd.MustClass("peer:control").Contains(first) {
				p.head = 0
			}
			p.rewrite(text, func(old string, add func(n, from, to int)) {
				n.parts(old, func(text string, from, to int) { add(len(text), from, to) })
			})
			if p.head > 0 && n.ideographs && ideograph(first) {
				p.head += utf8.RuneLen(first) + 1 // with a space on both sides
			}
		}
	}
	if n.accents {
		if err := (unicodeForm{ucd.NFD}).normalize(p); err != nil {
			return err
		}
		if err := (accents{"peer:bert"}).normalize(p); err != nil {
			return err
		}
	}
	if n.lower {
		return lowercase{}.normalize(p)
	}
	return nil
}

// parts calls add with what characters become, in order.
func (n bertNormalizer) parts(text string, add func(text string, from, to int)) {
	control, space := ucd.MustClass("peer:control"), ucd.MustClass("peer:space")
	for at := 0; at < len(text); {
		from := at
		for at < len(text) && text[at] >= ' ' && text[at] < 0x7F {
			at++
		}
		if from < at {
			add(text[from:at], from, at)
			continue
		}
		r, size := utf8.DecodeRuneInString(text[at:])
		at += size
		result := text[from:at]
		switch {
		case n.clean && (r == '\t' || r == '\n' || r == '\r'):
			result = " "
		case n.clean && control.Contains(r):
			result = ""
		case n.clean && space.Contains(r):
			result = " "
		case n.ideographs && ideograph(r):
			result = " " + result + " "
		}
		add(result, from, at)
	}
}

// ideograph reports whether BERT takes r for a word of its own.
func ideograph(r rune) bool {
	return r >= 0x4E00 && r <= 0x9FFF || r >= 0x3400 && r <= 0x4DBF || r >= 0x20000 && r <= 0x2A6DF || r >= 0x2A700 && r <= 0x2B73F ||
		r >= 0x2B740 && r <= 0x2B81F || r >= 0x2B920 && r <= 0x2CEAF || r >= 0xF900 && r <= 0xFAFF || r >= 0x2F800 && r <= 0x2FA1F
}

func (n bertNormalizer) halve(h *halves) bool {
	return h.settle() && n.normalize(&h.left) == nil && n.normalize(&h.right) == nil
}

// accents takes the characters of a class out.
type accents struct{ class string }

func (a accents) normalize(p *piece) error {
	set := ucd.MustClass(a.class)
	if strings.IndexFunc(p.text, set.Contains) < 0 {
		return nil
	}
	find := findRunes(set)
	strip := func(text string) string {
		var b strings.Builder
		_ = replaced(text, find, 0, func(n, from, to int) { // findRunes has no errors
			if n > 0 {
				b.WriteString(text[from:to])
			}
		})
		return b.String()
	}
	first, _ := utf8.DecodeRuneInString(p.text)
	text := strip(p.text)
	head := p.headBy(strip, text)
	p.rewrite(text, func(old string, add func(n, from, to int)) { _ = replaced(old, find, 0, add) })
	if p.head = head; set.Contains(first) {
		p.head = 0
	}
	return nil
}

func (a accents) halve(h *halves) bool {
	return h.settle() && a.normalize(&h.left) == nil && a.normalize(&h.right) == nil
}
