package jinja

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// params are the arguments of a method, a filter or a test.
type params struct {
	of     string
	values []any
	named  map[string]any
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

func (p params) text(i int, name string, standard any) string {
	v, ok := p.arg(i, name, standard).(string)
	if !ok {
		fail("%s: want a text for %s, not a %s", p.of, name, typeName(p.arg(i, name, standard)))
	}
	return v
}

func (p params) whole(i int, name string, standard int) int {
	n, ok := integer(p.arg(i, name, standard))
	if !ok {
		fail("%s: want an integer for %s, not a %s", p.of, name, typeName(p.arg(i, name, standard)))
	}
	return n
}

// textMethods are those of Python's str.
var textMethods map[string]func(s string, p params) any

// dictMethods are those of Python's dict that change nothing.
var dictMethods map[string]func(d *dict, p params) any

func init() { // they refer to functions that refer to them
	textMethods = map[string]func(s string, p params) any{
		"upper":      plain(strings.ToUpper),
		"lower":      plain(strings.ToLower),
		"casefold":   plain(strings.ToLower),
		"title":      plain(title),
		"capitalize": plain(capitalize),
		"swapcase": plain(func(s string) string {
			return strings.Map(func(r rune) rune {
				if unicode.IsUpper(r) {
					return unicode.ToLower(r)
				}
				return unicode.ToUpper(r)
			}, s)
		}),
		"strip":  func(s string, p params) any { return strip(s, p, true, true) },
		"lstrip": func(s string, p params) any { return strip(s, p, true, false) },
		"rstrip": func(s string, p params) any { return strip(s, p, false, true) },
		"split":  split, "rsplit": rsplit, "splitlines": splitLines,
		"partition":    func(s string, p params) any { return partition(s, p, strings.Index) },
		"rpartition":   func(s string, p params) any { return partition(s, p, strings.LastIndex) },
		"startswith":   func(s string, p params) any { return edge(s, p, strings.HasPrefix) },
		"endswith":     func(s string, p params) any { return edge(s, p, strings.HasSuffix) },
		"removeprefix": func(s string, p params) any { p.count(1, 1); return strings.TrimPrefix(s, p.text(0, "prefix", nil)) },
		"removesuffix": func(s string, p params) any { p.count(1, 1); return strings.TrimSuffix(s, p.text(0, "suffix", nil)) },
		"replace": func(s string, p params) any {
			p.takes("old", "new", "count")
			return replace(s, p.text(0, "old", nil), p.text(1, "new", nil), p.whole(2, "count", -1))
		},
		"find":  func(s string, p params) any { return place(s, p, strings.Index) },
		"rfind": func(s string, p params) any { return place(s, p, strings.LastIndex) },
		"index": func(s string, p params) any { return must(place(s, p, strings.Index)) },
		"count": func(s string, p params) any { p.count(1, 1); return strings.Count(s, p.text(0, "sub", nil)) },
		"join": func(s string, p params) any {
			p.count(1, 1)
			var parts []string
			for _, item := range iterate(p.values[0]) {
				part, ok := item.(string)
				if !ok {
					fail("join: a list with a %s", typeName(item))
				}
				parts = append(parts, part)
			}
			return joined(parts, s)
		},
		"format": formatBraces,
		"center": func(s string, p params) any { p.count(1, 1); return center(s, p.whole(0, "width", 0)) },
		"ljust":  func(s string, p params) any { return s + fill(s, p) },
		"rjust":  func(s string, p params) any { return fill(s, p) + s },
		"zfill": func(s string, p params) any {
			p.count(1, 1)
			if strings.HasPrefix(s, "-") || strings.HasPrefix(s, "+") {
				return s[:1] + repeat("0", p.whole(0, "width", 0)-utf8.RuneCountInString(s)) + s[1:]
			}
			return repeat("0", p.whole(0, "width", 0)-utf8.RuneCountInString(s)) + s
		},
		"isdigit":   every(unicode.IsDigit),
		"isnumeric": every(unicode.IsNumber),
		"isdecimal": every(func(r rune) bool { return unicode.Is(unicode.Nd, r) }),
		"isalpha":   every(unicode.IsLetter),
		"isalnum":   every(func(r rune) bool { return unicode.IsLetter(r) || unicode.IsNumber(r) }),
		"isspace":   every(space),
		"isupper":   func(s string, p params) any { p.count(0, 0); return strings.ToUpper(s) == s && strings.ToLower(s) != s },
		"islower":   func(s string, p params) any { p.count(0, 0); return strings.ToLower(s) == s && strings.ToUpper(s) != s },
	}
	dictMethods = map[string]func(d *dict, p params) any{
		"items": func(d *dict, p params) any { p.count(0, 0); return items(d) },
		"keys":  func(d *dict, p params) any { p.count(0, 0); return &list{items: d.keys} },
		"values": func(d *dict, p params) any {
			p.count(0, 0)
			l := &list{}
			for _, key := range d.keys {
				l.items = append(l.items, d.values[key])
			}
			return l
		},
		"get": func(d *dict, p params) any {
			p.count(1, 2)
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

func items(d *dict) *list {
	l := &list{}
	for _, key := range d.keys {
		l.items = append(l.items, &list{items: []any{key, d.values[key]}, tuple: true})
	}
	return l
}

// plain is a method without arguments.
func plain(f func(string) string) func(string, params) any {
	return func(s string, p params) any { p.count(0, 0); return f(s) }
}

// every is a method that reports whether a text has characters, and all of them are something.
func every(is func(rune) bool) func(string, params) any {
	return func(s string, p params) any {
		p.count(0, 0)
		return s != "" && strings.IndexFunc(s, func(r rune) bool { return !is(r) }) < 0
	}
}

func title(s string) string {
	within := false
	return strings.Map(func(r rune) rune {
		first := !within
		if within = unicode.IsLetter(r); first {
			return unicode.ToTitle(r)
		}
		return unicode.ToLower(r)
	}, s)
}

func capitalize(s string) string {
	_, n := utf8.DecodeRuneInString(s)
	return strings.Map(unicode.ToTitle, s[:n]) + strings.ToLower(s[n:])
}

func strip(s string, p params, left, right bool) any {
	p.count(0, 1)
	set := space
	if v := p.arg(0, "chars", nil); v != nil {
		chars := p.text(0, "chars", nil)
		set = func(r rune) bool { return strings.ContainsRune(chars, r) }
	}
	if left {
		s = strings.TrimLeftFunc(s, set)
	}
	if right {
		s = strings.TrimRightFunc(s, set)
	}
	return s
}

func texts(parts []string) *list {
	l := &list{}
	for _, part := range parts {
		l.items = append(l.items, part)
	}
	return limited(l.items)
}

func split(s string, p params) any {
	p.takes("sep", "maxsplit")
	most := p.whole(1, "maxsplit", -1)
	if p.arg(0, "sep", nil) == nil {
		return texts(words(s, most))
	}
	separator := p.text(0, "sep", nil)
	if separator == "" {
		fail("split by an empty text")
	}
	if most < 0 {
		return texts(strings.SplitN(s, separator, maxItems+1))
	}
	return texts(strings.SplitN(s, separator, min(most, maxItems)+1))
}

// words splits at white space, at most a number of times unless that is negative.
func words(s string, most int) (parts []string) {
	s = strings.TrimLeftFunc(s, space)
	for s != "" {
		i := strings.IndexFunc(s, space)
		if most >= 0 && len(parts) == most {
			i = -1
		}
		if i < 0 {
			return append(parts, s)
		}
		parts = append(parts, s[:i])
		s = strings.TrimLeftFunc(s[i:], space)
		if len(parts) > maxItems {
			break
		}
	}
	return parts
}

func rsplit(s string, p params) any {
	p.takes("sep", "maxsplit")
	most := p.whole(1, "maxsplit", -1)
	if most < 0 {
		return split(s, p)
	}
	separator := p.text(0, "sep", nil)
	if separator == "" {
		fail("rsplit by an empty text")
	}
	parts := strings.Split(s, separator)
	if cut := len(parts) - 1 - most; cut > 0 {
		parts = append([]string{strings.Join(parts[:cut+1], separator)}, parts[cut+1:]...)
	}
	return texts(parts)
}

// lines cuts a text where Python's splitlines does.
func lines(s string) (parts []string) {
	for s != "" {
		i := strings.IndexFunc(s, func(r rune) bool {
			return r >= '\n' && r <= '\r' || r >= 0x1c && r <= 0x1e || r == 0x85 || r == 0x2028 || r == 0x2029
		})
		if i < 0 {
			return append(parts, s)
		}
		parts = append(parts, s[:i])
		_, n := utf8.DecodeRuneInString(s[i:])
		if strings.HasPrefix(s[i:], "\r\n") {
			n = 2
		}
		s = s[i+n:]
	}
	return parts
}

func splitLines(s string, p params) any { p.count(0, 0); return texts(lines(s)) }

func partition(s string, p params, find func(s, sub string) int) any {
	p.count(1, 1)
	separator := p.text(0, "sep", nil)
	if separator == "" {
		fail("%s by an empty text", p.of)
	}
	parts := []any{s, "", ""}
	if i := find(s, separator); i >= 0 {
		parts = []any{s[:i], separator, s[i+len(separator):]}
	} else if p.of == "rpartition" {
		parts = []any{"", "", s}
	}
	return &list{items: parts, tuple: true}
}

func edge(s string, p params, has func(s, part string) bool) any {
	p.count(1, 1)
	if t, ok := p.values[0].(*list); ok && t.tuple {
		for i := range t.items {
			if has(s, (params{of: p.of, values: t.items}).text(i, "an item", nil)) {
				return true
			}
		}
		return false
	}
	return has(s, p.text(0, "the text", nil))
}

func replace(s, old, with string, n int) string {
	if times := strings.Count(s, old); n < 0 || n > times {
		n = times
	}
	if len(with) > 0 && n > maxText/len(with) {
		sized(maxText + 1)
	}
	sized(len(s) + n*len(with))
	return strings.Replace(s, old, with, n)
}

// place returns the number of the character where a text is found, or -1.
func place(s string, p params, find func(s, sub string) int) int {
	p.count(1, 1)
	i := find(s, p.text(0, "sub", nil))
	if i < 0 {
		return i
	}
	return utf8.RuneCountInString(s[:i])
}

func must(i int) int {
	if i < 0 {
		fail("index: the text is not found")
	}
	return i
}

func fill(s string, p params) string {
	p.count(1, 2)
	return repeat(p.text(1, "fillchar", " "), p.whole(0, "width", 0)-utf8.RuneCountInString(s))
}

func center(s string, width int) string {
	n := max(0, width-utf8.RuneCountInString(s))
	left := n/2 + n&width&1
	return repeat(" ", left) + s + repeat(" ", n-left)
}

// formatBraces is str.format with {}, {0} and {name}.
func formatBraces(s string, p params) any {
	var b strings.Builder
	next := 0
	for s != "" {
		i := strings.IndexAny(s, "{}")
		if i < 0 {
			break
		}
		b.WriteString(s[:i])
		if strings.HasPrefix(s[i:], "{{") || strings.HasPrefix(s[i:], "}}") {
			b.WriteByte(s[i])
			s = s[i+2:]
			continue
		}
		j := strings.IndexByte(s[i:], '}')
		if s[i] == '}' || j < 0 {
			fail("format: a brace has no other")
		}
		field := s[i+1 : i+j]
		s = s[i+j+1:]
		number := strings.Trim(field, "0123456789") == ""
		switch v, found := p.named[field]; {
		case found:
			b.WriteString(str(v))
		case number:
			at := next
			if field == "" {
				next++
			} else {
				at = int(toInt(field, len(p.values)))
			}
			if at >= len(p.values) {
				fail("format: the field {%s} has no value", field)
			}
			b.WriteString(str(p.values[at]))
		default:
			fail("format: the field {%.40s} is not supported", field)
		}
		sized(b.Len())
	}
	b.WriteString(s)
	return b.String()
}
