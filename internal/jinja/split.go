package jinja

import (
	"slices"
	"strings"
	"unicode/utf8"
)

func split(text string, p params) any {
	p.takes("sep", "maxsplit")
	p.s.scan(len(text))
	most := p.whole(1, "maxsplit", -1)
	if most < 0 {
		most = p.s.mostItems
	}
	if p.arg(0, "sep", nil) == nil {
		return p.s.texts(words(text, most))
	}
	separator := p.text(0, "sep", nil)
	if separator == "" {
		fail("split by an empty text")
	}
	return p.s.texts(strings.SplitN(text, separator, min(most, p.s.mostItems, strings.Count(text, separator))+1))
}

// words splits at white space, at most a number of times.
func words(text string, most int) (parts []string) {
	text = strings.TrimLeftFunc(text, space)
	for text != "" {
		i := strings.IndexFunc(text, space)
		if i < 0 || len(parts) == most {
			return append(parts, text)
		}
		parts = append(parts, text[:i])
		text = strings.TrimLeftFunc(text[i:], space)
	}
	return parts
}

func rsplit(text string, p params) any {
	p.takes("sep", "maxsplit")
	most := p.whole(1, "maxsplit", -1)
	if most < 0 {
		return split(text, p)
	}
	p.s.scan(len(text))
	if p.arg(0, "sep", nil) == nil {
		return p.s.texts(lastWords(text, most))
	}
	separator := p.text(0, "sep", nil)
	if separator == "" {
		fail("rsplit by an empty text")
	}
	var parts []string
	for len(parts) < min(most, p.s.mostItems) {
		i := strings.LastIndex(text, separator)
		if i < 0 {
			break
		}
		parts = append(parts, text[i+len(separator):])
		text = text[:i]
	}
	parts = append(parts, text)
	slices.Reverse(parts)
	return p.s.texts(parts)
}

// lastWords is words from the end.
func lastWords(text string, most int) (parts []string) {
	text = strings.TrimRightFunc(text, space)
	for text != "" && len(parts) < most {
		i := strings.LastIndexFunc(text, space)
		if i < 0 {
			break
		}
		_, size := utf8.DecodeRuneInString(text[i:])
		parts = append(parts, text[i+size:])
		text = strings.TrimRightFunc(text[:i], space)
	}
	if text != "" {
		parts = append(parts, text)
	}
	slices.Reverse(parts)
	return parts
}

// lines cuts a text where Python's splitlines does.
func (s *state) lines(text string) (parts []string) {
	s.scan(len(text))
	for text != "" {
		i := strings.IndexFunc(text, func(r rune) bool {
			return r >= '\n' && r <= '\r' || r >= 0x1c && r <= 0x1e || r == 0x85 || r == 0x2028 || r == 0x2029
		})
		if i < 0 {
			return append(parts, text)
		}
		if len(parts) == s.mostItems {
			s.items(s.mostItems + 1)
		}
		s.step()
		parts = append(parts, text[:i])
		_, n := utf8.DecodeRuneInString(text[i:])
		if strings.HasPrefix(text[i:], "\r\n") {
			n = 2
		}
		text = text[i+n:]
	}
	return parts
}
