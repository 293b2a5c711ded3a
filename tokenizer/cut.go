package tokenizer

import (
	"errors"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/snug-ml/snug/internal/ucd"
)

// This file decides where an [Encoder] may cut a text. A place is a cut if it is a border for every part of the tokenizer:
// no added token, no match of a normalizer or pre-tokenizer and no merge reaches over it, and none depends on the other
// side. Each part is given the two halves of what the parts before made of the text. Only the beginning of the right half
// is known, so a part refuses places whose border it could not prove from there.

// halves are a piece of the text that is cut in two. The right half goes on behind what is known of it.
type halves struct{ left, right piece }

// whole returns the text of both, and the place of the cut.
func (h halves) whole() (text string, at int) { return h.left.text + h.right.text, len(h.left.text) }

// cuts reports whether text, which goes on, may be cut at a place that is safe. The whole text was cut where text begins
// (inner), or begins there.
func (t *Tokenizer) cuts(text string, at int, inner, plain bool) bool {
	from, to, ok := t.added.raw.section(text, at, plain)
	if !ok {
		return false
	}
	h := halves{piece{text: text[from:at]}, piece{text: text[at:to], inner: true}}
	if from == 0 {
		h.left.inner = inner
		if !inner {
			h.left.head = firstSize(h.left.text)
		}
	}
	for _, n := range t.normalizer {
		if !n.halve(&h) || h.left.text == "" || h.right.text == "" {
			return false
		}
	}
	whole, at := h.whole()
	if from, to, ok = t.added.normalized.section(whole, at, plain); !ok {
		return false
	}
	h.left, h.right = h.left.cut(from, at), h.right.cut(0, to-at)
	return stages{t.split, t.model}.cuts(h)
}

// stages are what comes next on the way of a piece.
type stages struct {
	split []preTokenizer
	model model
}

// cuts reports whether the halves of a piece become words of their own, or parts of a word that the model encodes apart.
func (next stages) cuts(h halves) bool {
	if len(next.split) == 0 {
		return next.model.apart(h)
	}
	return next.split[0].cuts(h, stages{next.split[1:], next.model})
}

func (splitter) adds() bool    { return false }
func (m metaspace) adds() bool { return m.prepend == "always" }
func (b byteLevel) adds() bool { return b.addSpace }

// section returns the part of a text that goes on in which a place lies: between two added tokens, as far as it is known.
// There is none if a token may reach over the place or touches it.
func (m *matcher) section(text string, at int, plain bool) (from, to int, ok bool) {
	if len(m.tokens) == 0 {
		return 0, len(text), true
	}
	for begin := max(0, at-m.most); begin <= at; begin++ {
		if m.starts[text[begin]] {
			if i, size := m.longest(text[begin:]); i >= 0 && begin+size >= at {
				return 0, 0, false
			}
		}
	}
	_ = m.each(text, plain, func(int32, int, int) {}, func(a, b int) error {
		if a < at && at < b {
			from, to, ok = a, b, true
		}
		return nil
	})
	// A token that begins further back may be longer than what is known of it, and takes the spaces before it.
	to = runeStart(text, min(to, len(text)-2*m.most))
	if to <= at {
		return 0, 0, false
	}
	to = at + len(strings.TrimRightFunc(text[at:to], ucd.MustClass("peer:space").Contains))
	return from, to, ok && to > at
}

// safe reports whether text can be cut between two characters without a change of the Unicode forms and of the cases of
// letters: none of the characters is composed with the other, and none decides about the case of the other.
func safe(before, after rune) bool {
	return spaced(before, after) || joined(before, after) || after == '▁'
}

// spaced suits a cut before white space.
func spaced(before, after rune) bool {
	return strings.ContainsRune(" \n\t\r", after) && !ucd.MustClass("peer:space").Contains(before)
}

// joined suits a cut between letters and digits of ASCII, and ideographs.
func joined(before, after rune) bool { return lone(before) && lone(after) }

func lone(r rune) bool {
	return r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= 0x4E00 && r <= 0x9FFF
}

// lastPlace returns the last place in text between two characters that suit, 0 for none.
func lastPlace(text string, suits func(before, after rune) bool) int {
	after, size := utf8.DecodeLastRuneInString(text)
	for at := len(text) - size; at > 0; at -= size {
		var before rune
		before, size = utf8.DecodeLastRuneInString(text[:at])
		if suits(before, after) {
			return at
		}
		after = before
	}
	return 0
}

// settle shortens the right half to what is known of it when each character depends on its neighbors, as safe says. It
// reports whether the cut is a safe place.
func (h *halves) settle() bool { return h.settleBy(safe) }

// settleBy is settle by another function in the place of safe.
func (h *halves) settleBy(safe func(before, after rune) bool) bool {
	before, _ := utf8.DecodeLastRuneInString(h.left.text)
	after, _ := utf8.DecodeRuneInString(h.right.text)
	h.right.text = h.right.text[:lastPlace(h.right.text, safe)]
	return safe(before, after)
}

func (u unicodeForm) halve(h *halves) bool {
	return h.settle() && u.normalize(&h.left) == nil && u.normalize(&h.right) == nil
}

func (l lowercase) halve(h *halves) bool {
	return h.settle() && l.normalize(&h.left) == nil && l.normalize(&h.right) == nil
}

func (s strip) halve(h *halves) bool {
	before, _ := utf8.DecodeLastRuneInString(h.left.text)
	if ucd.MustClass("peer:space").Contains(before) {
		return false
	}
	return s.normalize(&h.left) == nil && s.normalize(&h.right) == nil
}

func (n prepend) halve(h *halves) bool { return n.normalize(&h.left) == nil }

func (r replace) halve(h *halves) bool {
	text, at := h.whole()
	begin := beginText(r.text)
	if r.pattern != nil {
		begin = beginPattern(r.pattern)
	}
	end := at // of what is known to be replaced or not
	var places [][2]int
	known, err := begin(text, func(from, to int) error {
		switch {
		case from < at && at < to:
			return errOver
		case to <= at:
			places = append(places, [2]int{from, to})
		}
		end = max(end, to)
		return nil
	})
	if err != nil || known < at || !same(r.find(), text[:at], places) {
		return false
	}
	h.right.text = text[at:runeStart(text, max(end, known+1))]
	return r.normalize(&h.left) == nil && r.normalize(&h.right) == nil
}

// beginner is a finder for a text that goes on. It calls f with the places that are the same whatever follows. Where known
// is returned and before, no others begin.
type beginner func(text string, f func(from, to int) error) (known int, err error)

func beginPattern(p interface {
	Local() bool
	Begin(string, func(from, to int) error) (int, error)
}) beginner {
	return func(text string, f func(from, to int) error) (int, error) {
		if !p.Local() {
			return 0, nil
		}
		known, err := p.Begin(text, f)
		return known - 1, err // whether one begins at known is not known
	}
}

func beginText(what string) beginner {
	find := findText(what)
	return func(text string, f func(from, to int) error) (int, error) {
		return len(text) - len(what), find(text, f)
	}
}

func beginRunes(set *ucd.Set) beginner {
	find := findRunes(set)
	return func(text string, f func(from, to int) error) (int, error) {
		return len(text) - 1, find(text, f)
	}
}

// beginWords is findWords for a text that goes on.
func beginWords(text string, f func(from, to int) error) (int, error) {
	known := len(text) - 1
	err := findWords(text, func(from, to int) error {
		if to == len(text) { // it may be longer
			known = from - 1
			return nil
		}
		return f(from, to)
	})
	return known, err
}

// neighbors are the places around a cut that a splitter finds.
type neighbors struct {
	last  [2]int // the last one before the cut, which may end there; -1 for none
	first int    // where the first one behind the cut begins, which may be at the cut; -1 if that is not known
	known int    // how far the text is known
}

var errFound, errOver = errors.New("found"), errors.New("reaches over the cut")

// around returns the neighbors of a cut. It reports false if a place that the splitter finds may reach over the cut, or
// if it finds other places before the cut when the text ends there.
func (s splitter) around(text string, at int) (n neighbors, ok bool) {
	n = neighbors{last: [2]int{-1, -1}, first: -1}
	var places [][2]int
	known, err := s.begin(text, func(from, to int) error {
		switch {
		case to <= at:
			n.last = [2]int{from, to}
			places = append(places, n.last)
			return nil
		case from < at:
			return errOver
		}
		n.first = from
		return errFound
	})
	switch {
	case err == errFound:
		n.known = n.first
	case err != nil || known < at:
		return n, false
	default:
		n.known = known
	}
	return n, same(s.find, text[:at], places)
}

// same reports whether a finder finds these places.
func same(find finder, text string, places [][2]int) bool {
	n := 0
	err := find(text, func(from, to int) error {
		if n == len(places) || places[n] != [2]int{from, to} {
			return errOver
		}
		n++
		return nil
	})
	return err == nil && n == len(places)
}

func (s splitter) cuts(h halves, next stages) bool {
	text, at := h.whole()
	n, ok := s.around(text, at)
	if !ok {
		return false
	}
	ends, begins := n.last[1] == at, n.first == at
	from := max(0, n.last[1])
	border := false
	switch s.behavior {
	case isolated, removed:
		border = ends || begins || s.behavior == removed && s.invert
	case mergedWithNext:
		border = begins
		from = max(0, n.last[0])
	case mergedWithPrevious:
		border = ends
	case contiguous:
		border = ends != begins
	}
	switch {
	case s.invert && (s.behavior == mergedWithNext || s.behavior == mergedWithPrevious):
		return false
	case border && s.behavior == removed && begins != s.invert: // the right half begins with what is removed
		return true
	case border:
		return !slices.ContainsFunc(next.split, preTokenizer.adds)
	case ends || begins || n.known <= at: // what touches the cut is joined to the other side
		return false
	}
	return next.cuts(halves{h.left.cut(from, at), h.right.cut(0, n.known-at)})
}

func (m metaspace) cuts(h halves, next stages) bool {
	h.left, h.right = m.mark(h.left), m.mark(h.right)
	if m.cut {
		return m.splitter().cuts(h, next)
	}
	return next.cuts(h)
}

func (b byteLevel) cuts(h halves, next stages) bool {
	h.left = b.space(h.left)
	if b.pattern != nil {
		return b.splitter().cuts(h, stages{slices.Insert(slices.Clone(next.split), 0, preTokenizer(byteLevel{last: b.last})), next.model})
	}
	return next.cuts(halves{b.bytes(h.left), b.bytes(h.right)})
}

// apart reports whether the model encodes the halves of a word as it encodes words of their own.
func (m *bpe) apart(h halves) bool {
	if m.joins == nil || m.wholeWords {
		return false
	}
	var before, after rune
	if h.left.raw {
		before, after = byteRunes[h.left.text[len(h.left.text)-1]], byteRunes[h.right.text[0]]
	} else {
		before, _ = utf8.DecodeLastRuneInString(h.left.text)
		after, _ = utf8.DecodeRuneInString(h.right.text)
	}
	return !m.joins.has(before, after) && m.known(before) && m.known(after)
}
