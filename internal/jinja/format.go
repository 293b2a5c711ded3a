package jinja

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// format is Python's % on a text, with the conversions s, r, d, i, f, x and %.
func (s *state) format(text string, v any) string {
	values := []any{v}
	if t, ok := v.(*list); ok && t.tuple {
		values = t.items
	}
	s.scan(len(text))
	w := &writer{s: s}
	for {
		i := strings.IndexByte(text, '%')
		if i < 0 {
			w.put(text)
			break
		}
		s.step()
		w.put(text[:i])
		rest := strings.TrimLeft(text[i+1:], "0123456789.+- ")
		flags := text[i+1 : len(text)-len(rest)]
		text = rest
		if text == "" || len(flags) > 5 {
			fail("a format of %% is not supported")
		}
		conversion := text[0]
		text = text[1:]
		if conversion == '%' {
			w.put("%")
			continue
		}
		if len(values) == 0 {
			fail("%% has fewer values than its text needs")
		}
		v := values[0]
		values = values[1:]
		x, isNumber := numeric(v)
		switch {
		case conversion == 's':
			w.put(fmt.Sprintf("%"+flags+"s", s.str(v)))
		case conversion == 'r':
			w.put(fmt.Sprintf("%"+flags+"s", s.repr(v)))
		case isNumber && (conversion == 'd' || conversion == 'i'):
			w.put(fmt.Sprintf("%"+flags+"d", int(x)))
		case isNumber && conversion == 'f':
			w.put(fmt.Sprintf("%"+flags+"f", x))
		case isNumber && conversion == 'x':
			w.put(fmt.Sprintf("%"+flags+"x", int(x)))
		default:
			fail("%%%c of %s is not supported", conversion, a(v))
		}
	}
	if kind := typeName(v); len(values) > 0 && kind != "dict" && kind != "list" {
		fail("%% has more values than its text takes")
	}
	return w.done()
}

// formatBraces is str.format with {}, {0} and {name}.
func formatBraces(text string, p params) any {
	p.s.scan(len(text))
	w := &writer{s: p.s}
	next := 0
	for text != "" {
		i := strings.IndexAny(text, "{}")
		if i < 0 {
			break
		}
		p.s.step()
		w.put(text[:i])
		if strings.HasPrefix(text[i:], "{{") || strings.HasPrefix(text[i:], "}}") {
			w.put(text[i : i+1])
			text = text[i+2:]
			continue
		}
		j := strings.IndexByte(text[i:], '}')
		if text[i] == '}' || j < 0 {
			fail("format: a brace has no other")
		}
		field := text[i+1 : i+j]
		text = text[i+j+1:]
		number := strings.Trim(field, "0123456789") == ""
		switch v, found := p.named[field]; {
		case found:
			w.put(p.s.str(v))
		case number:
			at := next
			if field == "" {
				next++
			} else {
				at, _ = strconv.Atoi(field)
			}
			if at >= len(p.values) || len(field) > 9 {
				fail("format: the field {%.40s} has no value", field)
			}
			w.put(p.s.str(p.values[at]))
		default:
			fail("format: the field {%.40s} is not supported", field)
		}
	}
	w.put(text)
	return w.done()
}

// fill returns what makes a text as wide as asked.
func (s *state) fill(text, with string, width int) string {
	s.scan(len(text))
	if n := width - utf8.RuneCountInString(text); n > 0 {
		s.sized(len(text))
		return s.repeat(with, n)
	}
	return ""
}

func fill(text string, p params) string {
	p.count(1, 2)
	with := p.text(1, "fillchar", " ")
	if utf8.RuneCountInString(with) != 1 {
		fail("%s: want one character for fillchar", p.of)
	}
	return p.s.fill(text, with, p.whole(0, "width", 0))
}

// center is Python's: where the blanks do not come out even, the left side has one more if the width is odd.
func (s *state) center(text, with string, width int) string {
	blanks := s.fill(text, with, width)
	n := len(blanks) / len(with)
	left := (n/2 + n&width&1) * len(with)
	s.text(len(blanks) + len(text))
	return blanks[:left] + text + blanks[left:]
}

// indent begins lines with blanks or a text.
func (s *state) indent(v any, p params) any {
	p.takes("width", "first", "blank")
	if u, missing := v.(undefined); missing {
		fail("%.40q is undefined", u.name)
	}
	by, ok := p.arg(0, "width", 4).(string)
	if !ok {
		by = s.repeat(" ", p.whole(0, "width", 4))
	}
	parts := s.lines(s.str(v) + "\n")
	blank, first := truth(p.arg(2, "blank", false)), truth(p.arg(1, "first", false))
	w := &writer{s: s}
	for i, line := range parts {
		if i > 0 {
			w.put("\n")
		}
		if i > 0 && (line != "" || blank) || i == 0 && first {
			w.put(by)
		}
		w.put(line)
	}
	return w.done()
}
