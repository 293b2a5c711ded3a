package jinja

import (
	"slices"
	"strings"
	"unicode/utf8"
)

// groupBy returns tuples of a key and the items that have it, by order of the keys.
func groupBy(s *state, v any, p params) any {
	p.takes("attribute", "default", "case_sensitive")
	attribute, cased := p.arg(0, "attribute", nil), truth(p.arg(2, "case_sensitive", false))
	plain := s.keys(v, attribute, true)
	for i, k := range plain {
		if _, missing := k.key.(undefined); missing && p.arg(1, "default", nil) != nil {
			plain[i].key = p.arg(1, "default", nil)
		}
	}
	all := slices.Clone(plain)
	for i := range all {
		if all[i].item = plain[i]; !cased {
			all[i].key = s.folded(all[i].key)
		}
	}
	slices.SortStableFunc(all, func(a, b keyed) int { return s.order(a.key, b.key) })
	groups := &list{}
	var last *list
	for i, k := range all {
		one := k.item.(keyed)
		if i == 0 || !s.equal(all[i-1].key, k.key) {
			last = &list{}
			s.makes(2 * sizeList)
			s.add(groups, &list{[]any{one.key, last}, true})
		}
		s.add(last, one.item)
	}
	return groups
}

// batch returns lists of n items.
func batch(s *state, v any, p params) any {
	p.takes("linecount", "fill_with")
	n := p.whole(0, "linecount", 0)
	if n < 1 {
		fail("batch by %d, want 1 or more", n)
	}
	l := &list{}
	for part := range slices.Chunk(s.iterate(v), n) {
		part = slices.Clone(part)
		if with := p.arg(1, "fill_with", nil); with != nil && n > len(part) {
			s.items(n - len(part))
			part = append(part, slices.Repeat([]any{with}, n-len(part))...)
		}
		s.add(l, s.list(part))
	}
	return l
}

// columns is the filter slice: n lists of about equal length.
func columns(s *state, v any, p params) any {
	p.takes("slices", "fill_with")
	n, items := p.whole(0, "slices", 0), s.iterate(v)
	if n < 1 {
		fail("slice by %d, want 1 or more", n)
	}
	s.items(n)
	l, from := &list{}, 0
	each, more := len(items)/n, len(items)%n
	for i := range n {
		to := from + each
		if i < more {
			to++
		}
		part := slices.Clone(items[from:to])
		if with := p.arg(1, "fill_with", nil); with != nil && i >= more {
			part = append(part, with)
		}
		s.add(l, s.list(part))
		from = to
	}
	return l
}

// truncate cuts a text before a word.
func truncate(s *state, v any, p params) any {
	p.takes("length", "killwords", "end", "leeway")
	text, end := s.str(v), p.text(2, "end", "...")
	most, leeway := p.whole(0, "length", 255), 5
	if p.arg(3, "leeway", nil) != nil {
		leeway = p.whole(3, "leeway", 5)
	}
	n := utf8.RuneCountInString(end)
	if most < n || leeway < 0 {
		fail("truncate to %d characters, want %d or more, and a leeway of 0 or more", most, n)
	}
	if s.length(text) <= most+leeway {
		return text
	}
	text = text[:offset(text, most-n)]
	if i := strings.LastIndexByte(text, ' '); i >= 0 && !truth(p.arg(1, "killwords", false)) {
		text = text[:i]
	}
	s.text(len(text) + len(end))
	return text + end
}
