package jinja

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// str is Python's text of a value.
func (s *state) str(v any) string {
	switch v := v.(type) {
	case undefined:
		return ""
	case string:
		return v
	}
	return s.repr(v)
}

// repr is the text of a value within another.
func (s *state) repr(v any) string {
	w := &writer{s: s}
	w.value(v, 0)
	return w.done()
}

func (w *writer) value(v any, depth int) {
	w.s.step()
	deep(depth)
	switch v := v.(type) {
	case nil:
		w.put("None")
	case undefined:
		w.put("Undefined")
	case bool:
		if v {
			w.put("True")
		} else {
			w.put("False")
		}
	case int:
		w.put(strconv.Itoa(v))
	case large:
		w.put(string(v))
	case float64:
		w.put(float(v))
	case string:
		w.s.scan(len(v))
		w.s.sized(w.Len() + len(v))
		w.put(quote(v))
	case *list:
		open, closing := "[", "]"
		if v.tuple {
			open, closing = "(", ")"
			if len(v.items) == 1 {
				closing = ",)"
			}
		}
		w.put(open)
		for i, item := range v.items {
			if i > 0 {
				w.put(", ")
			}
			w.value(item, depth+1)
		}
		w.put(closing)
	case *dict:
		w.put("{")
		for i, key := range v.keys {
			if i > 0 {
				w.put(", ")
			}
			w.value(key, depth+1)
			w.put(": ")
			w.value(v.values[key], depth+1)
		}
		w.put("}")
	default:
		fail("the text of %s is not supported", a(v))
	}
}

// float is the shortest text that Python reads as the same number.
func float(x float64) string {
	switch {
	case math.IsInf(x, 0):
		return strings.TrimPrefix(strings.ToLower(strconv.FormatFloat(x, 'g', -1, 64)), "+")
	case math.IsNaN(x):
		return "nan"
	}
	if size := math.Abs(x); x != 0 && (size < 1e-4 || size >= 1e16) {
		return strconv.FormatFloat(x, 'e', -1, 64)
	}
	text := strconv.FormatFloat(x, 'f', -1, 64)
	if !strings.Contains(text, ".") {
		text += ".0"
	}
	return text
}

func quote(s string) string {
	q := byte('\'')
	if strings.Contains(s, "'") && !strings.Contains(s, "\"") {
		q = '"'
	}
	var b strings.Builder
	b.WriteByte(q)
	for _, r := range s {
		switch {
		case r == rune(q) || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\r':
			b.WriteString(`\r`)
		case r == '\t':
			b.WriteString(`\t`)
		case strconv.IsPrint(r):
			b.WriteRune(r)
		case r <= 0xff:
			fmt.Fprintf(&b, `\x%02x`, r)
		case r <= 0xffff:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			fmt.Fprintf(&b, `\U%08x`, r)
		}
	}
	b.WriteByte(q)
	return b.String()
}
