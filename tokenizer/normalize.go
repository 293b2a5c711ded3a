package tokenizer

import (
	"strings"

	"github.com/snug-ml/snug/internal/onig"
	"github.com/snug-ml/snug/internal/ucd"
)

// normalizer rewrites a piece of text.
type normalizer interface {
	normalize(p *piece) error
	// halve normalizes the halves of a piece. It reports false if they may differ from those of the normalized piece,
	// or if that is not known. It shortens the right half to what is known. See cut.go.
	halve(h *halves) bool
}

type normalizers []normalizer

func (all normalizers) apply(p *piece) error {
	for _, n := range all {
		if p.text == "" {
			return nil // no normalizer makes something of nothing
		}
		if err := n.normalize(p); err != nil {
			return err
		}
	}
	return nil
}

type unicodeForm struct{ form ucd.Form }

func (u unicodeForm) normalize(p *piece) error {
	if text := u.form.String(p.text); text != p.text {
		head := p.headBy(u.form.String, text)
		p.rewrite(text, pieces(u.form.String, text))
		p.head = head
	}
	return nil
}

type lowercase struct{}

func (lowercase) normalize(p *piece) error {
	text := ucd.Lower(p.text)
	head := p.headBy(ucd.Lower, text)
	p.rewrite(text, pieces(ucd.Lower, text))
	p.head = head
	return nil
}

type strip struct{ left, right bool }

func (s strip) normalize(p *piece) error {
	space := ucd.MustClass("peer:space")
	if s.left && !p.inner {
		rest := strings.TrimLeftFunc(p.text, space.Contains)
		p.head = max(0, p.head-(len(p.text)-len(rest)))
		if p.at != nil {
			p.at = p.at[len(p.text)-len(rest):]
		}
		p.text = rest
	}
	if s.right {
		p.text = strings.TrimRightFunc(p.text, space.Contains)
		if p.at != nil {
			p.at = p.at[:len(p.text)]
		}
	}
	return nil
}

type prepend struct{ text string }

func (n prepend) normalize(p *piece) error {
	if !p.inner {
		p.prepend(n.text)
	}
	return nil
}

// replace writes content where a text or a pattern matches. It is also a decoder.
type replace struct {
	text    string // what is replaced, where pattern is nil
	pattern *onig.Pattern
	content string
}

func (r replace) normalize(p *piece) error {
	text, err := r.apply(p.text)
	if err != nil {
		return err
	}
	if text != p.text {
		head := r.head(p)
		p.rewrite(text, func(old string, add func(n, from, to int)) { err = replaced(old, r.find(), len(r.content), add) })
		p.head = head
	}
	return err
}

// head returns how many bytes stand for the first character of the whole text when p is rewritten. What is written stands for
// the last character that it replaces, or for the one before the place if it replaces none.
func (r replace) head(p *piece) int {
	n, last, first := 0, 0, p.head > 0
	if first {
		_ = r.find()(p.text, func(from, to int) error { // apply has had the error of the pattern
			n += max(0, min(from, p.head)-last)
			if from > p.head || from < to && to > p.head {
				first = false
				return errFound
			}
			n += len(r.content)
			last = to
			return nil
		})
	}
	if first {
		n += max(0, p.head-last)
	}
	return n
}

// find returns what finds the places that are replaced.
func (r replace) find() finder {
	if r.pattern != nil {
		return r.pattern.Each
	}
	return findText(r.text)
}

// replaced calls add for a text in which n bytes replace each place that find finds.
func replaced(old string, find finder, n int, add func(n, from, to int)) error {
	last := 0
	err := find(old, func(from, to int) error {
		add(from-last, last, from)
		add(n, from, to)
		last = to
		return nil
	})
	add(len(old)-last, last, len(old))
	return err
}

// growth returns how many times as long r may make a text.
func (r replace) growth() int {
	if r.pattern != nil {
		return 1 + min(len(r.content), maxGrowth) // matches may be empty
	}
	return max(1, min((len(r.content)+len(r.text)-1)/len(r.text), maxGrowth+1))
}

func (r replace) apply(text string) (string, error) {
	if r.pattern == nil {
		return strings.ReplaceAll(text, r.text, r.content), nil
	}
	var b strings.Builder
	last := 0
	err := r.pattern.Each(text, func(from, to int) error {
		b.WriteString(text[last:from])
		b.WriteString(r.content)
		last = to
		return nil
	})
	b.WriteString(text[last:])
	return b.String(), err
}
