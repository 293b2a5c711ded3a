package tokenizer

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/snug-ml/snug/internal/onig"
	"github.com/snug-ml/snug/internal/ucd"
)

// preTokenizer cuts pieces of text into smaller ones.
type preTokenizer interface {
	// to returns the function that cuts a piece and sends the parts to emit. Parts may be
	// empty.
	to(emit func(piece) error) func(piece) error
	// cuts reports whether the halves of a piece become words of their own, or parts of a word that the model encodes
	// apart, when the next stages go on. See cut.go.
	cuts(h halves, next stages) bool
	// adds reports whether something may be added in front of a piece that is not the first one of a text.
	adds() bool
}

// chain returns the function that sends a piece through all pre-tokenizers to emit. It
// drops empty pieces, as every stage does.
func chain(all []preTokenizer, emit func(piece) error) func(piece) error {
	next := emit
	for _, p := range slices.Backward(all) {
		then := next
		next = p.to(func(p piece) error {
			if p.text == "" {
				return nil
			}
			return then(p)
		})
	}
	return next
}

// behavior is what becomes of a match, the delimiter, by its name in the file.
type behavior string

const (
	removed            behavior = "Removed"
	isolated           behavior = "Isolated"
	mergedWithPrevious behavior = "MergedWithPrevious"
	mergedWithNext     behavior = "MergedWithNext"
	contiguous         behavior = "Contiguous"
)

func (b behavior) check() error {
	switch b {
	case removed, isolated, mergedWithPrevious, mergedWithNext, contiguous:
		return nil
	}
	return fmt.Errorf("behavior %q, want Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous", string(b))
}

// finder calls f with the places that a pre-tokenizer matches.
type finder func(text string, f func(from, to int) error) error

// splitter cuts at what find finds.
type splitter struct {
	find     finder
	begin    beginner
	behavior behavior
	invert   bool
}

func (s splitter) to(emit func(piece) error) func(piece) error {
	return func(p piece) error { return s.split(p, emit) }
}

func (s splitter) split(p piece, emit func(piece) error) error {
	c := cutter{piece: p, emit: emit, behavior: s.behavior}
	last := 0
	err := s.find(p.text, func(from, to int) error {
		if last != from {
			if err := c.part(last, from, s.invert); err != nil {
				return err
			}
		}
		last = to
		return c.part(from, to, !s.invert)
	})
	if err != nil {
		return err
	}
	if last != len(p.text) {
		if err := c.part(last, len(p.text), s.invert); err != nil {
			return err
		}
	}
	return c.flush()
}

// cutter joins matches and the text between them by a behavior. It holds back one part,
// which the next one may join.
type cutter struct {
	piece    piece
	emit     func(piece) error
	behavior behavior

	held, match bool // whether a part is held back, and whether the last part is a match
	from, to    int  // of what is held back
}

// part takes the next part of the text, which is a match or not.
func (c *cutter) part(from, to int, match bool) error {
	joins := false
	switch c.behavior {
	case removed:
		if match {
			return nil
		}
		return c.emit(c.piece.cut(from, to))
	case isolated:
		return c.emit(c.piece.cut(from, to))
	case contiguous:
		joins = match == c.match
	case mergedWithPrevious:
		joins = match && !c.match
	case mergedWithNext:
		joins = c.match && !match
	}
	c.match = match
	if joins && c.held {
		c.to = to
		return nil
	}
	if err := c.flush(); err != nil {
		return err
	}
	c.held, c.from, c.to = true, from, to
	return nil
}

func (c *cutter) flush() error {
	if !c.held {
		return nil
	}
	c.held = false
	return c.emit(c.piece.cut(c.from, c.to))
}

// findText finds a text.
func findText(what string) finder {
	return func(text string, f func(from, to int) error) error {
		for at := 0; ; at += len(what) {
			i := strings.Index(text[at:], what)
			if i < 0 {
				return nil
			}
			at += i
			if err := f(at, at+len(what)); err != nil {
				return err
			}
		}
	}
}

// findRunes finds every single character of a set.
func findRunes(set *ucd.Set) finder {
	return func(text string, f func(from, to int) error) error {
		for i, r := range text {
			if set.Contains(r) {
				if err := f(i, i+utf8.RuneLen(r)); err != nil {
					return err
				}
			}
		}
		return nil
	}
}

// findWords finds words and rows of other signs: \w+|[^\w\s]+.
func findWords(text string, f func(from, to int) error) error {
	word, space := ucd.MustClass("peer:word"), ucd.MustClass("peer:space")
	const none, inWord, inSigns = 0, 1, 2
	state, from := none, 0
	for i, r := range text {
		now := inSigns
		switch {
		case word.Contains(r):
			now = inWord
		case space.Contains(r):
			now = none
		}
		if now != state {
			if state != none {
				if err := f(from, i); err != nil {
					return err
				}
			}
			state, from = now, i
		}
	}
	if state != none {
		return f(from, len(text))
	}
	return nil
}

// metaspace writes a sign for spaces and may cut before it. It is also a decoder.
type metaspace struct {
	sign    string
	prepend string // always, first or never
	cut     bool
}

func (m metaspace) to(emit func(piece) error) func(piece) error {
	cut := emit
	if m.cut {
		cut = m.splitter().to(emit)
	}
	return func(p piece) error { return cut(m.mark(p)) }
}

func (m metaspace) growth() int { return len(m.sign) }

// splitter cuts before the sign.
func (m metaspace) splitter() splitter {
	return splitter{find: findText(m.sign), begin: beginText(m.sign), behavior: mergedWithNext}
}

// mark writes the sign for spaces, and in front.
func (m metaspace) mark(p piece) piece {
	if strings.Contains(p.text, " ") {
		p.rewrite(strings.ReplaceAll(p.text, " ", m.sign), func(old string, add func(n, from, to int)) {
			_ = replaced(old, findText(" "), len(m.sign), add) // findText has no errors
		})
	}
	if !p.inner && !strings.HasPrefix(p.text, m.sign) && (m.prepend == "always" || m.prepend == "first" && p.head > 0) {
		p.prepend(m.sign)
	}
	return p
}

// byteLevel makes bytes of the text, and may cut by GPT-2's pattern before.
type byteLevel struct {
	addSpace bool
	pattern  *onig.Pattern // nil for no cuts
	last     bool          // whether the model comes next, which spells bytes itself
}

func (b byteLevel) to(emit func(piece) error) func(piece) error {
	cut := func(p piece) error { return emit(b.bytes(p)) }
	if b.pattern != nil {
		cut = b.splitter().to(cut)
	}
	return func(p piece) error { return cut(b.space(p)) }
}

func (byteLevel) growth() int { return 2 } // for bytes that take two

func (b byteLevel) splitter() splitter {
	return splitter{find: b.pattern.Each, begin: beginPattern(b.pattern), behavior: isolated}
}

// space adds a space in front.
func (b byteLevel) space(p piece) piece {
	if b.addSpace && !p.inner && !strings.HasPrefix(p.text, " ") {
		p.prepend(" ")
	}
	return p
}

// bytes makes bytes of the text.
func (b byteLevel) bytes(p piece) piece {
	if b.last {
		p.raw = true
		return p
	}
	p.rewrite(spell(p.text), func(old string, add func(n, from, to int)) {
		for i := range len(old) {
			add(utf8.RuneLen(byteRunes[old[i]]), i, i+1)
		}
	})
	return p
}
