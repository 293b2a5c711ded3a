package jinja

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// params are the arguments of a method, a filter or a test.
type params struct {
	s  *state
	of string
	given
}

// takes fails for arguments by other names and for too many of them.
func (p params) takes(names ...string) {
	if len(p.values) > len(names) {
		fail("%s takes %d arguments, and %d are given", p.of, len(names), len(p.values))
	}
	for n := range p.named {
		known := false
		for _, k := range names {
			known = known || k == n
		}
		if !known {
			fail("%s has no argument %.40q", p.of, n)
		}
	}
}

// count fails unless there are from min to max arguments, without names.
func (p params) count(min, max int) {
	if len(p.values) < min || len(p.values) > max || len(p.named) > 0 {
		fail("%s takes %d to %d arguments without names", p.of, min, max)
	}
}

// arg returns an argument by its place or name.
func (p params) arg(i int, name string, standard any) any {
	if i < len(p.values) {
		return p.values[i]
	}
	if v, found := p.named[name]; found {
		return v
	}
	return standard
}

// needs returns an argument that must be there.
func (p params) needs(i int, name string) any {
	v := p.arg(i, name, undefined{})
	if _, missing := v.(undefined); missing {
		fail("%s: want a value for %s", p.of, name)
	}
	return v
}

func (p params) text(i int, name string, standard any) string {
	v, ok := p.arg(i, name, standard).(string)
	if !ok {
		fail("%s: want a text for %s, not %s", p.of, name, a(p.arg(i, name, standard)))
	}
	return v
}

func (p params) whole(i int, name string, standard int) int {
	n, ok := integer(p.arg(i, name, standard))
	if !ok {
		fail("%s: want an integer for %s, not %s", p.of, name, a(p.arg(i, name, standard)))
	}
	return n
}

// textMethods are those of Python's str.
var textMethods map[string]func(text string, p params) any

// dictMethods are those of Python's dict that change nothing.
var dictMethods map[string]func(d *dict, p params) any

func init() { // they refer to functions that refer to them
	textMethods = map[string]func(text string, p params) any{
		"upper":      plain(strings.ToUpper),
		"lower":      plain(strings.ToLower),
		"casefold":   plain(strings.ToLower),
		"title":      plain(title),
		"capitalize": plain(capitalize),
		"swapcase": plain(func(text string) string {
			return strings.Map(func(r rune) rune {
				if unicode.IsUpper(r) {
					return unicode.ToLower(r)
				}
				return unicode.ToUpper(r)
			}, text)
		}),
		"strip":  func(text string, p params) any { return strip(text, p, true, true) },
		"lstrip": func(text string, p params) any { return strip(text, p, true, false) },
		"rstrip": func(text string, p params) any { return strip(text, p, false, true) },
		"split":  split, "rsplit": rsplit,
		"splitlines":   func(text string, p params) any { p.count(0, 0); return p.s.texts(p.s.lines(text)) },
		"partition":    func(text string, p params) any { return partition(text, p, strings.Index) },
		"rpartition":   func(text string, p params) any { return partition(text, p, strings.LastIndex) },
		"startswith":   func(text string, p params) any { return edge(text, p, strings.HasPrefix) },
		"endswith":     func(text string, p params) any { return edge(text, p, strings.HasSuffix) },
		"removeprefix": func(text string, p params) any { return without(text, p, strings.TrimPrefix) },
		"removesuffix": func(text string, p params) any { return without(text, p, strings.TrimSuffix) },
		"replace": func(text string, p params) any {
			p.takes("old", "new", "count")
			return p.s.replace(text, p.text(0, "old", nil), p.text(1, "new", nil), p.whole(2, "count", -1))
		},
		"find":  func(text string, p params) any { return place(text, p, strings.Index) },
		"rfind": func(text string, p params) any { return place(text, p, strings.LastIndex) },
		"index": func(text string, p params) any { return must(place(text, p, strings.Index)) },
		"count": func(text string, p params) any {
			part, before := within(text, p)
			if before < 0 {
				return 0
			}
			return strings.Count(part, p.text(0, "sub", nil))
		},
		"join": func(text string, p params) any {
			p.count(1, 1)
			return p.s.join(p.s.iterate(p.values[0]), text, func(item any) string {
				part, ok := item.(string)
				if !ok {
					fail("join: a list with %s", a(item))
				}
				return part
			})
		},
		"format": formatBraces,
		"center": func(text string, p params) any { return around(text, p) },
		"ljust": func(text string, p params) any {
			with := fill(text, p)
			p.s.text(len(text) + len(with))
			return text + with
		},
		"rjust": func(text string, p params) any {
			with := fill(text, p)
			p.s.text(len(text) + len(with))
			return with + text
		},
		"zfill": func(text string, p params) any {
			p.count(1, 1)
			with := p.s.fill(text, "0", p.whole(0, "width", 0))
			p.s.text(len(text) + len(with))
			if strings.HasPrefix(text, "-") || strings.HasPrefix(text, "+") {
				return text[:1] + with + text[1:]
			}
			return with + text
		},
		"isdigit":   every(unicode.IsDigit),
		"isnumeric": every(unicode.IsNumber),
		"isdecimal": every(func(r rune) bool { return unicode.Is(unicode.Nd, r) }),
		"isalpha":   every(unicode.IsLetter),
		"isalnum":   every(func(r rune) bool { return unicode.IsLetter(r) || unicode.IsNumber(r) }),
		"isascii": func(text string, p params) any {
			p.count(0, 0)
			p.s.scan(len(text))
			return strings.IndexFunc(text, func(r rune) bool { return r > unicode.MaxASCII }) < 0
		},
		"isspace": every(space),
		"isupper": func(text string, p params) any {
			p.count(0, 0)
			return p.s.cased(text, strings.ToUpper, strings.ToLower)
		},
		"islower": func(text string, p params) any {
			p.count(0, 0)
			return p.s.cased(text, strings.ToLower, strings.ToUpper)
		},
	}
	dictMethods = map[string]func(d *dict, p params) any{
		"items": func(d *dict, p params) any { p.count(0, 0); return p.s.pairs(d) },
		"keys":  func(d *dict, p params) any { p.count(0, 0); return p.s.list(slices.Clone(d.keys)) },
		"values": func(d *dict, p params) any {
			p.count(0, 0)
			l := p.s.list(make([]any, len(d.keys)))
			for i, key := range d.keys {
				l.items[i] = d.values[key]
			}
			return l
		},
		"copy": func(d *dict, p params) any {
			p.count(0, 0)
			c := &dict{}
			for _, key := range d.keys {
				p.s.set(c, key, d.values[key])
			}
			return c
		},
		"get": func(d *dict, p params) any {
			p.count(1, 2)
			p.s.copies(len(keyText(p.values[0])))
			if v, found := d.get(p.values[0]); found {
				return v
			}
			return p.arg(1, "default", nil)
		},
	}
	for _, changing := range []string{"update", "pop", "popitem", "setdefault", "clear"} {
		dictMethods[changing] = func(*dict, params) any { fail("%s of a dict is not allowed", changing); return nil }
	}
}

// pairs returns the keys of a dict with their values.
func (s *state) pairs(d *dict) *list {
	s.items(len(d.keys))
	l := &list{}
	for _, key := range d.keys {
		s.makes(sizeList + 2*sizeItem)
		l.items = append(l.items, &list{[]any{key, d.values[key]}, true})
	}
	return l
}

// mapped applies a function to a text that grows it three times at most.
func (s *state) mapped(text string, f func(string) string) string {
	s.scan(len(text))
	return s.new(f(text))
}

// plain is a method without arguments.
func plain(f func(string) string) func(string, params) any {
	return func(text string, p params) any { p.count(0, 0); return p.s.mapped(text, f) }
}

// every is a method that reports whether a text has characters, and all of them are something.
func every(is func(rune) bool) func(string, params) any {
	return func(text string, p params) any {
		p.count(0, 0)
		p.s.scan(len(text))
		return text != "" && strings.IndexFunc(text, func(r rune) bool { return !is(r) }) < 0
	}
}

// cased reports whether a text has letters of a case, and none of the other.
func (s *state) cased(text string, same, other func(string) string) bool {
	s.scan(2 * len(text))
	s.makes(2 * len(text))
	return same(text) == text && other(text) != text
}

func title(text string) string {
	within := false
	return strings.Map(func(r rune) rune {
		first := !within
		if within = unicode.IsLetter(r); first {
			return unicode.ToTitle(r)
		}
		return unicode.ToLower(r)
	}, text)
}

func capitalize(text string) string {
	_, n := utf8.DecodeRuneInString(text)
	return strings.Map(unicode.ToTitle, text[:n]) + strings.ToLower(text[n:])
}

func strip(text string, p params, left, right bool) any {
	p.count(0, 1)
	set := space
	if v := p.arg(0, "chars", nil); v != nil {
		chars := p.text(0, "chars", nil)
		p.s.scan(len(chars))
		set = func(r rune) bool { return strings.ContainsRune(chars, r) }
		if len(chars) > 16 {
			known := map[rune]bool{}
			for _, r := range chars {
				known[r] = true
			}
			p.s.makes(len(known) * sizeItem)
			set = func(r rune) bool { return known[r] }
		}
	}
	rest := text
	if left {
		rest = strings.TrimLeftFunc(rest, set)
	}
	if right {
		rest = strings.TrimRightFunc(rest, set)
	}
	p.s.scan(len(text) - len(rest))
	if len(rest) == len(text) {
		return text
	}
	return p.s.cut(rest)
}

func without(text string, p params, trim func(text, part string) string) any {
	p.count(1, 1)
	part := p.text(0, "the text", nil)
	p.s.copies(len(part))
	if rest := trim(text, part); len(rest) < len(text) {
		return p.s.cut(rest)
	}
	return text
}

func partition(text string, p params, find func(text, sub string) int) any {
	p.count(1, 1)
	separator := p.text(0, "sep", nil)
	if separator == "" {
		fail("%s by an empty text", p.of)
	}
	p.s.scan(len(text))
	p.s.items(3)
	parts := []any{text, "", ""}
	if i := find(text, separator); i >= 0 {
		parts = []any{p.s.cut(text[:i]), separator, p.s.cut(text[i+len(separator):])}
	} else if p.of == "rpartition" {
		parts = []any{"", "", text}
	}
	return &list{items: parts, tuple: true}
}

// within returns the part of a text that a method looks at, by its second and third argument, and the characters before.
func within(text string, p params) (part string, before int) {
	p.count(1, 3)
	p.s.scan(len(text))
	from, to := p.arg(1, "start", nil), p.arg(2, "end", nil)
	if from == nil && to == nil {
		return text, 0
	}
	n := utf8.RuneCountInString(text)
	bound := func(v any, standard int) int {
		if v == nil {
			return standard
		}
		i, ok := integer(v)
		if !ok {
			fail("%s: want an integer for a place, not %s", p.of, a(v))
		}
		if i < 0 {
			i += n
		}
		return max(0, i)
	}
	first, last := bound(from, 0), min(n, bound(to, n))
	if first > last { // beyond the text, where not even an empty text is found
		return "", -1
	}
	begin := offset(text, first)
	return text[begin : begin+offset(text[begin:], last-first)], first
}

func edge(text string, p params, has func(text, part string) bool) any {
	text, before := within(text, p)
	if before < 0 {
		return false
	}
	if t, ok := p.values[0].(*list); ok && t.tuple {
		for i := range t.items {
			part := (params{of: p.of, given: given{values: t.items}}).text(i, "an item", nil)
			p.s.step()
			p.s.copies(len(part))
			if has(text, part) {
				return true
			}
		}
		return false
	}
	part := p.text(0, "the text", nil)
	p.s.copies(len(part))
	return has(text, part)
}

func (s *state) replace(text, old, with string, n int) string {
	s.scan(len(text))
	times := strings.Count(text, old)
	if n < 0 || n > times {
		n = times
	}
	if n == 0 {
		return text
	}
	if len(with) > 0 && n > s.mostText/len(with) {
		s.sized(s.mostText + 1)
	}
	s.take(n / 4)
	s.text(len(text) + n*(len(with)-len(old)))
	return strings.Replace(text, old, with, n)
}

// place returns the number of the character where a text is found, or -1.
func place(text string, p params, find func(text, sub string) int) int {
	part, before := within(text, p)
	i := find(part, p.text(0, "sub", nil))
	if i < 0 || before < 0 {
		return -1
	}
	return before + utf8.RuneCountInString(part[:i])
}

func must(i int) int {
	if i < 0 {
		fail("index: the text is not found")
	}
	return i
}

// around is the method center.
func around(text string, p params) any {
	p.count(1, 2)
	with := p.text(1, "fillchar", " ")
	if utf8.RuneCountInString(with) != 1 {
		fail("center: want one character for fillchar")
	}
	return p.s.center(text, with, p.whole(0, "width", 0))
}

// join joins the texts of items.
func (s *state) join(items []any, separator string, one func(item any) string) string {
	s.take(len(items))
	s.makes(len(items) * sizeText)
	parts := make([]string, len(items))
	for i, item := range items {
		parts[i] = one(item)
	}
	return s.joined(parts, separator)
}
