package jinja

import (
	"fmt"
	"slices"
	"strings"
)

// toJSON is transformers' filter tojson: json.dumps without escapes beyond ASCII.
func toJSON(_ *state, v any, p params) any {
	p.takes("ensure_ascii", "indent", "separators", "sort_keys")
	if truth(p.arg(0, "ensure_ascii", false)) {
		fail("tojson with ensure_ascii is not supported")
	}
	w := &jsonWriter{item: ", ", key: ": ", sort: truth(p.arg(3, "sort_keys", false))}
	if by := p.arg(1, "indent", nil); by != nil {
		w.item = ","
		if text, ok := by.(string); ok {
			w.by = text
		} else {
			w.by = repeat(" ", p.whole(1, "indent", 0))
		}
		w.lines = true
	}
	if s := p.arg(2, "separators", nil); s != nil {
		both := params{of: "tojson", values: iterate(s)}
		both.count(2, 2)
		w.item, w.key = both.text(0, "separators", nil), both.text(1, "separators", nil)
	}
	w.value(v, 0)
	return w.String()
}

type jsonWriter struct {
	strings.Builder
	item, key, by string
	lines, sort   bool
}

// newLine begins a line, unless all is on one.
func (w *jsonWriter) newLine(depth int) {
	if w.lines {
		w.WriteByte('\n')
		w.WriteString(repeat(w.by, depth))
	}
	sized(w.Len())
}

func (w *jsonWriter) value(v any, depth int) {
	if depth > maxNested {
		fail("tojson: more than %d values within another", maxNested)
	}
	sized(w.Len())
	switch v := v.(type) {
	case nil:
		w.WriteString("null")
	case bool:
		w.WriteString(map[bool]string{false: "false", true: "true"}[v])
	case int, float64:
		w.WriteString(repr(v, 0))
	case string:
		w.text(v)
	case *list:
		if len(v.items) == 0 {
			w.WriteString("[]")
			return
		}
		w.WriteByte('[')
		for i, item := range v.items {
			if i > 0 {
				w.WriteString(w.item)
			}
			w.newLine(depth + 1)
			w.value(item, depth+1)
		}
		w.newLine(depth)
		w.WriteByte(']')
	case *dict:
		if len(v.keys) == 0 {
			w.WriteString("{}")
			return
		}
		keys := v.keys
		if w.sort {
			keys = slices.SortedFunc(slices.Values(keys), order)
		}
		w.WriteByte('{')
		for i, key := range keys {
			if i > 0 {
				w.WriteString(w.item)
			}
			w.newLine(depth + 1)
			if name, ok := key.(string); ok {
				w.text(name)
			} else {
				w.WriteByte('"')
				w.value(key, depth+1)
				w.WriteByte('"')
			}
			w.WriteString(w.key)
			w.value(v.values[key], depth+1)
		}
		w.newLine(depth)
		w.WriteByte('}')
	default:
		fail("tojson of a %s", typeName(v))
	}
}

func (w *jsonWriter) text(s string) {
	w.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			w.WriteByte('\\')
			w.WriteRune(r)
		case r >= ' ':
			w.WriteRune(r)
		default:
			if i := strings.IndexRune("\n\r\t\b\f", r); i >= 0 {
				w.WriteByte('\\')
				w.WriteByte("nrtbf"[i])
			} else {
				fmt.Fprintf(w, `\u%04x`, r)
			}
		}
	}
	w.WriteByte('"')
}
