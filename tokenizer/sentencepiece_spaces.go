package tokenizer

import (
	"strings"
	"unicode/utf8"
)

// spSpaces is SentencePiece's normalizer: the longest rule of a table at each place, ▁ for spaces, and one in front of the text.
type spSpaces struct {
	table  *charsmap // nil for none
	user   *matcher  // tokens that rules leave alone, nil for none
	prefix bool      // a space is added in front
	suffix bool      // it is added behind the text, not in front
	extra  bool      // spaces around the text are removed, and of several spaces all but one
	escape bool      // spaces become ▁
	always bool      // a text between two added tokens gets a space as the whole text does
}

func (n spSpaces) growth() int {
	return 3 * n.table.growth() // a rule and then ▁ for spaces
}

// find returns what the front of a text becomes, how many bytes that is, and whether more text could change it.
func (n spSpaces) find(text string) (result string, size int, open bool) {
	if n.user != nil && n.user.starts[text[0]] {
		if i, size := n.user.longest(text); i >= 0 {
			return text[:size], size, len(text) < n.user.most
		}
		open = len(text) < n.user.most
	}
	if n.table != nil {
		result, size, more := n.table.find(text, true)
		if open = open || more; size > 0 {
			return result, size, open
		}
	}
	size = firstSize(text)
	return text[:size], size, open
}

func (n spSpaces) normalize(p *piece) error {
	text, at := p.text, 0
	if n.extra && !p.inner {
		for at < len(text) {
			result, size, _ := n.find(text[at:])
			if result != " " {
				break
			}
			at += size
		}
	}
	out := make([]byte, 0, len(text)+len(text)/4+3)
	var parts [][3]int // bytes of out, and the place of what they stand for
	space := " "
	if n.escape {
		space = blank
	}
	add := func(result string, from, to int) {
		size := len(out)
		if n.escape && strings.Contains(result, " ") {
			result = strings.ReplaceAll(result, " ", space)
		}
		if out = append(out, result...); p.at != nil {
			parts = append(parts, [3]int{len(out) - size, from, to})
		}
	}
	added := n.prefix && !p.inner && (n.always || p.head > 0) && at < len(text)
	if added && !n.suffix {
		add(" ", at, at)
	}
	spaced := n.extra && !p.inner
	for at < len(text) {
		from := at
		for n.user == nil && at < len(text) && text[at] > ' ' && text[at] < utf8.RuneSelf && (n.table == nil || n.table.ascii[text[at]]) {
			at++
		}
		if from < at {
			add(text[from:at], from, at)
			spaced = false
			continue
		}
		result, size, _ := n.find(text[at:])
		at += size
		for spaced && strings.HasPrefix(result, " ") {
			result = result[1:]
		}
		if add(result, from, at); result != "" {
			spaced = n.extra && result[len(result)-1] == ' '
		}
	}
	if n.extra {
		trimmed := strings.TrimSuffix(string(out), space)
		for strings.HasSuffix(trimmed, space) {
			trimmed = trimmed[:len(trimmed)-len(space)]
		}
		gone := len(out) - len(trimmed)
		out = out[:len(trimmed)]
		for i := len(parts) - 1; i >= 0 && gone > 0; i-- {
			less := min(gone, parts[i][0])
			parts[i][0] -= less
			gone -= less
		}
	}
	if added && n.suffix {
		add(" ", len(text), len(text))
	}
	p.rewrite(string(out), func(_ string, add func(n, from, to int)) {
		for _, part := range parts {
			add(part[0], part[1], part[2])
		}
	})
	return nil
}

// halve cuts where a rule ends, between letters of which none is white space by a rule.
func (n spSpaces) halve(h *halves) bool {
	if n.suffix && n.prefix {
		return false
	}
	text, at := h.whole()
	suits := func(at int) bool {
		before, _ := utf8.DecodeLastRuneInString(text[:at])
		after, _ := utf8.DecodeRuneInString(text[at:])
		return (before > ' ' && before < 0x7F || lone(before)) && (after == ' ' || after == '\n' || lone(after))
	}
	last, border := 0, false
	for to := 0; to < len(text); {
		if to == at {
			border = suits(to)
		}
		if to > at && suits(to) {
			last = to
		}
		_, size, open := n.find(text[to:])
		if open {
			break
		}
		to += size
	}
	if !border || last <= at {
		return false
	}
	h.right.text = text[at:last]
	h.right.inner = true
	return n.normalize(&h.left) == nil && n.normalize(&h.right) == nil
}

// spDecoder is SentencePiece's decoder: spaces for ▁, characters for tokens of bytes, and no space at the front that was added there.
type spDecoder struct {
	front bool // a space at the front is removed
	all   bool // also those of further tokens
	bytes bool // there are tokens of bytes
}

func (d spDecoder) stream() step { return &spStream{spDecoder: d} }

// spStream holds bytes back that begin a character.
type spStream struct {
	spDecoder
	begun bool
	held  []byte
}

func (s *spStream) next(token string, send func(string)) {
	if b, is := fallbackByte(token); is && s.bytes {
		s.begun = true
		s.held = append(s.held, b)
		n := len(s.held) - unfinished(s.held)
		s.send(n, send)
		return
	}
	s.flush(send)
	if rest, has := strings.CutPrefix(token, blank); has && s.front && !s.begun {
		token = rest
		s.begun = !s.all
	}
	s.begun = s.begun || token != ""
	send(strings.ReplaceAll(token, blank, " "))
}

// send sends n of the bytes that are held back.
func (s *spStream) send(n int, send func(string)) {
	ready := string(s.held[:n])
	s.held = append(s.held[:0], s.held[n:]...)
	for len(ready) > 0 {
		r, size := utf8.DecodeRuneInString(ready)
		if text := ready[:size]; r == utf8.RuneError && size == 1 {
			send(replacement)
		} else {
			send(text)
		}
		ready = ready[size:]
	}
}

func (s *spStream) flush(send func(string)) { s.send(len(s.held), send) }
