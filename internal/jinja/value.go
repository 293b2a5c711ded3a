package jinja

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// undefined is the value of a name that nothing has.
type undefined struct{ name string }

// list is a list or a tuple.
type list struct {
	items []any
	tuple bool
}

// dict keeps the order of its keys.
type dict struct {
	keys   []any
	values map[any]any
}

// namespace is an object whose members templates set.
type namespace struct{ dict }

// loop is the state of a loop. Its test sees what the rounds before have set: items of rest are
// tested as late as Jinja2 does it.
type loop struct {
	items []any // those that the loop goes through, as far as they are known
	at    int
	rest  []any
	test  func(item any) bool
}

// has reports whether the loop has an item i.
func (l *loop) has(i int) bool {
	for i >= len(l.items) && len(l.rest) > 0 {
		item := l.rest[0]
		l.rest = l.rest[1:]
		if l.test(item) {
			l.items = append(l.items, item)
		}
	}
	return i < len(l.items)
}

func (l *loop) length() int {
	l.has(maxItems)
	return len(l.items)
}

// List returns a list.
func List(items ...any) any { return &list{items: items} }

// Dict returns a dict of keys, each followed by its value.
func Dict(pairs ...any) any {
	d := &dict{}
	for i := 0; i+1 < len(pairs); i += 2 {
		d.set(pairs[i], pairs[i+1])
	}
	return d
}

func (d *dict) set(key, v any) {
	switch key.(type) {
	case nil, bool, int, float64, string:
	default:
		fail("a %s is the key of a dict", typeName(key))
	}
	if d.values == nil {
		d.values = map[any]any{}
	}
	if _, found := d.values[key]; !found {
		if len(d.keys) == maxItems {
			fail("a dict has more than %d keys", maxItems)
		}
		d.keys = append(d.keys, key)
	}
	d.values[key] = v
}

func (d *dict) get(key any) (v any, found bool) {
	switch key.(type) {
	case nil, bool, int, float64, string:
		v, found = d.values[key]
	}
	return v, found
}

func typeName(v any) string {
	switch v := v.(type) {
	case nil:
		return "none"
	case undefined:
		return "undefined value"
	case bool:
		return "bool"
	case int:
		return "integer"
	case float64:
		return "float"
	case string:
		return "text"
	case *list:
		if v.tuple {
			return "tuple"
		}
		return "list"
	case *dict:
		return "dict"
	case Func, *macro:
		return "function"
	}
	return "object"
}

func truth(v any) bool {
	switch v := v.(type) {
	case nil, undefined:
		return false
	case bool:
		return v
	case int:
		return v != 0
	case float64:
		return v != 0
	case string:
		return v != ""
	case *list:
		return len(v.items) > 0
	case *dict:
		return len(v.keys) > 0
	}
	return true
}

// str is Python's text of a value.
func str(v any) string {
	switch v := v.(type) {
	case undefined:
		return ""
	case string:
		return v
	}
	return repr(v, 0)
}

// repr is the text of a value within another.
func repr(v any, depth int) string {
	if depth > maxNested {
		fail("more than %d values within another", maxNested)
	}
	switch v := v.(type) {
	case nil:
		return "None"
	case undefined:
		return "Undefined"
	case bool:
		if v {
			return "True"
		}
		return "False"
	case int:
		return strconv.Itoa(v)
	case float64:
		return float(v)
	case string:
		return quote(v)
	case *list:
		parts := make([]string, len(v.items))
		for i, item := range v.items {
			parts[i] = repr(item, depth+1)
		}
		text := joined(parts, ", ")
		switch {
		case !v.tuple:
			return "[" + text + "]"
		case len(parts) == 1:
			return "(" + text + ",)"
		}
		return "(" + text + ")"
	case *dict:
		parts := make([]string, len(v.keys))
		for i, key := range v.keys {
			parts[i] = repr(key, depth+1) + ": " + repr(v.values[key], depth+1)
		}
		return "{" + joined(parts, ", ") + "}"
	}
	fail("the text of a %s is not supported", typeName(v))
	return ""
}

// float is the shortest text that Python reads as the same number.
func float(x float64) string {
	switch {
	case math.IsInf(x, 0):
		return strings.TrimPrefix(strings.ToLower(strconv.FormatFloat(x, 'g', -1, 64)), "+")
	case math.IsNaN(x):
		return "nan"
	}
	if exponent := math.Floor(math.Log10(math.Abs(x))); x != 0 && (exponent < -4 || exponent >= 16) {
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

// joined is strings.Join of a text that is not too long.
func joined(parts []string, separator string) string {
	n := 0
	for _, p := range parts {
		n += len(p) + len(separator)
		sized(n)
	}
	return strings.Join(parts, separator)
}

// number returns a value as a float, as Python does for arithmetic.
func numeric(v any) (x float64, ok bool) {
	switch v := v.(type) {
	case bool:
		if v {
			return 1, true
		}
		return 0, true
	case int:
		return float64(v), true
	case float64:
		return v, true
	}
	return 0, false
}

func integer(v any) (n int, ok bool) {
	switch v := v.(type) {
	case bool:
		if v {
			return 1, true
		}
		return 0, true
	case int:
		return v, true
	}
	return 0, false
}

func equal(a, b any) bool {
	if x, ok := numeric(a); ok {
		y, ok := numeric(b)
		return ok && x == y
	}
	switch a := a.(type) {
	case undefined:
		_, ok := b.(undefined)
		return ok
	case *list:
		b, ok := b.(*list)
		return ok && a.tuple == b.tuple && slices.EqualFunc(a.items, b.items, equal)
	case *dict:
		b, ok := b.(*dict)
		if !ok || len(a.keys) != len(b.keys) {
			return false
		}
		for _, key := range a.keys {
			if v, found := b.get(key); !found || !equal(a.values[key], v) {
				return false
			}
		}
		return true
	case nil, string:
		return a == b
	}
	return false // functions and other objects
}

// order compares two values that have an order.
func order(a, b any) int {
	if x, ok := numeric(a); ok {
		if y, ok := numeric(b); ok {
			switch {
			case x < y:
				return -1
			case x > y:
				return 1
			}
			return 0
		}
	}
	if a, ok := a.(string); ok {
		if b, ok := b.(string); ok {
			return strings.Compare(a, b)
		}
	}
	if a, ok := a.(*list); ok {
		if b, ok := b.(*list); ok && a.tuple == b.tuple {
			return slices.CompareFunc(a.items, b.items, order)
		}
	}
	fail("a %s and a %s have no order", typeName(a), typeName(b))
	return 0
}

// holds computes a comparison.
func holds(op string, a, b any) bool {
	switch op {
	case "==":
		return equal(a, b)
	case "!=":
		return !equal(a, b)
	case "in":
		return contains(b, a)
	case "not in":
		return !contains(b, a)
	case "<":
		return order(a, b) < 0
	case "<=":
		return order(a, b) <= 0
	case ">":
		return order(a, b) > 0
	}
	return order(a, b) >= 0
}

func contains(in, v any) bool {
	switch in := in.(type) {
	case string:
		s, ok := v.(string)
		if !ok {
			fail("a %s is looked for in a text", typeName(v))
		}
		return strings.Contains(in, s)
	case *dict:
		_, found := in.get(v)
		return found
	}
	return slices.ContainsFunc(iterate(in), func(item any) bool { return equal(item, v) })
}

// iterate returns what a loop over a value goes through.
func iterate(v any) []any {
	switch v := v.(type) {
	case undefined:
		return nil
	case *list:
		return v.items
	case *dict:
		return v.keys
	case string:
		items := make([]any, 0, min(len(v), maxItems))
		for _, r := range v {
			if len(items) == maxItems {
				fail("a loop over a text of more than %d characters", maxItems)
			}
			items = append(items, string(r))
		}
		return items
	}
	fail("a %s has no items", typeName(v))
	return nil
}

func length(v any) int {
	switch v := v.(type) {
	case string:
		return utf8.RuneCountInString(v)
	case undefined, *list, *dict:
		return len(iterate(v))
	}
	fail("a %s has no length", typeName(v))
	return 0
}

// limited returns items that are not too many.
func limited(items []any) *list {
	if len(items) > maxItems {
		fail("a list has more than %d items", maxItems)
	}
	return &list{items: items}
}
