package jinja

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// toJSON is transformers' filter tojson: json.dumps, without escapes beyond ASCII unless ensure_ascii is set.
func toJSON(s *state, v any, p params) any {
	p.takes("ensure_ascii", "indent", "separators", "sort_keys")
	w := &jsonWriter{writer: writer{s: s}, item: ", ", key: ": ", ascii: truth(p.arg(0, "ensure_ascii", false)), sort: truth(p.arg(3, "sort_keys", false))}
	if by := p.arg(1, "indent", nil); by != nil {
		w.item = ","
		if text, ok := by.(string); ok {
			w.by = text
		} else {
			w.by = s.repeat(" ", p.whole(1, "indent", 0))
		}
		w.lines = true
	}
	if both := p.arg(2, "separators", nil); both != nil {
		both := params{s: s, of: "tojson", given: given{values: s.iterate(both)}}
		both.count(2, 2)
		w.item, w.key = both.text(0, "separators", nil), both.text(1, "separators", nil)
	}
	w.value(v, 0)
	return w.done()
}

type jsonWriter struct {
	writer
	item, key, by      string
	lines, sort, ascii bool
}

// newLine begins a line, unless all is on one.
func (w *jsonWriter) newLine(depth int) {
	if w.lines {
		w.put("\n")
		for range depth {
			w.put(w.by)
		}
	}
}

func (w *jsonWriter) value(v any, depth int) {
	w.s.step()
	deep(depth)
	switch v := v.(type) {
	case nil:
		w.put("null")
	case bool:
		w.put(map[bool]string{false: "false", true: "true"}[v])
	case int, large:
		w.writer.value(v, 0)
	case float64:
		w.put(jsonFloat(v))
	case string:
		w.text(v)
	case *list:
		if len(v.items) == 0 {
			w.put("[]")
			return
		}
		w.put("[")
		for i, item := range v.items {
			if i > 0 {
				w.put(w.item)
			}
			w.newLine(depth + 1)
			w.value(item, depth+1)
		}
		w.newLine(depth)
		w.put("]")
	case *dict:
		if len(v.keys) == 0 {
			w.put("{}")
			return
		}
		keys := v.keys
		if w.sort {
			keys = slices.SortedFunc(slices.Values(keys), w.s.order)
		}
		w.put("{")
		for i, key := range keys {
			if i > 0 {
				w.put(w.item)
			}
			w.newLine(depth + 1)
			if name, ok := key.(string); ok {
				w.text(name)
			} else {
				w.put(`"`)
				w.value(key, depth+1)
				w.put(`"`)
			}
			w.put(w.key)
			w.value(v.values[key], depth+1)
		}
		w.newLine(depth)
		w.put("}")
	default:
		fail("tojson of %s", a(v))
	}
}

// jsonFloat is a number as json.dumps writes it.
func jsonFloat(x float64) string {
	switch {
	case math.IsNaN(x):
		return "NaN"
	case math.IsInf(x, 1):
		return "Infinity"
	case math.IsInf(x, -1):
		return "-Infinity"
	}
	return float(x)
}

func (w *jsonWriter) text(text string) {
	w.s.scan(len(text))
	w.s.sized(w.Len() + len(text))
	w.WriteByte('"')
	for i, r := range text {
		if i%1024 == 1023 {
			w.s.sized(w.Len())
		}
		switch {
		case r == '"' || r == '\\':
			w.WriteByte('\\')
			w.WriteRune(r)
		case r >= ' ' && (r < utf8.RuneSelf-1 || !w.ascii):
			w.WriteRune(r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(w, `\u%04x\u%04x`, high, low)
		default:
			if i := strings.IndexRune("\n\r\t\b\f", r); i >= 0 {
				w.WriteByte('\\')
				w.WriteByte("nrtbf"[i])
			} else {
				fmt.Fprintf(w, `\u%04x`, r)
			}
		}
	}
	w.put(`"`)
}
