package jinja

import (
	"maps"
	"slices"
	"strings"
)

// tests are Jinja2's, after the word is.
var tests map[string]func(v any, p params) bool

// globals are the names that every template has.
var globals map[string]any

func init() {
	kind := func(kinds ...string) func(any, params) bool {
		return func(v any, p params) bool {
			p.takes()
			for _, k := range kinds {
				if typeName(v) == k {
					return true
				}
			}
			return false
		}
	}
	compare := func(op string) func(any, params) bool {
		return func(v any, p params) bool { p.count(1, 1); return holds(op, v, p.values[0]) }
	}
	divides := func(v any, by int) int {
		n, ok := integer(v)
		if !ok || by == 0 {
			fail("a test divides a %s by %d", typeName(v), by)
		}
		return n % by
	}
	tests = map[string]func(v any, p params) bool{
		"defined":   func(v any, p params) bool { p.takes(); _, missing := v.(undefined); return !missing },
		"undefined": kind("undefined value"), "none": kind("none"), "string": kind("text"), "mapping": kind("dict"), "boolean": kind("bool"),
		"integer": kind("integer"), "float": kind("float"), "number": kind("integer", "float", "bool"), "callable": kind("function"),
		"iterable": kind("text", "list", "tuple", "dict", "undefined value"),
		"sequence": kind("text", "list", "tuple", "dict", "undefined value"),
		"true":     func(v any, p params) bool { p.takes(); return v == true },
		"false":    func(v any, p params) bool { p.takes(); return v == false },
		"odd":      func(v any, p params) bool { p.takes(); return divides(v, 2) != 0 },
		"even":     func(v any, p params) bool { p.takes(); return divides(v, 2) == 0 },
		"divisibleby": func(v any, p params) bool {
			p.count(1, 1)
			return divides(v, p.whole(0, "num", 0)) == 0
		},
		"upper": func(v any, p params) bool {
			p.takes()
			s := str(v)
			return strings.ToUpper(s) == s && strings.ToLower(s) != s
		},
		"lower": func(v any, p params) bool {
			p.takes()
			s := str(v)
			return strings.ToLower(s) == s && strings.ToUpper(s) != s
		},
		"sameas": func(v any, p params) bool {
			p.count(1, 1)
			return typeName(v) == typeName(p.values[0]) && equal(v, p.values[0])
		},
		"eq": compare("=="), "equalto": compare("=="), "ne": compare("!="), "in": compare("in"),
		"lt": compare("<"), "lessthan": compare("<"), "le": compare("<="), "gt": compare(">"), "greaterthan": compare(">"), "ge": compare(">="),
		"filter": func(v any, p params) bool { p.takes(); _, known := filters[str(v)]; return known },
		"test":   func(v any, p params) bool { p.takes(); _, known := tests[str(v)]; return known },
	}
	globals = map[string]any{
		"range": Func(func(args []any, named map[string]any) (any, error) { return numbers(params{"range", args, named}), nil }),
		"dict":  Func(func(args []any, named map[string]any) (any, error) { return pairs(params{"dict", args, named}), nil }),
		"namespace": Func(func(args []any, named map[string]any) (any, error) {
			return &namespace{*pairs(params{"namespace", args, named})}, nil
		}),
	}
}

// pairs is a dict of names and values.
func pairs(p params) *dict {
	d := &dict{}
	if len(p.values) > 1 {
		fail("%s takes one value without a name", p.of)
	}
	if len(p.values) == 1 {
		from, ok := p.values[0].(*dict)
		if !ok {
			fail("%s of a %s", p.of, typeName(p.values[0]))
		}
		for _, key := range from.keys {
			d.set(key, from.values[key])
		}
	}
	for _, key := range slices.Sorted(maps.Keys(p.named)) {
		d.set(key, p.named[key])
	}
	return d
}

// numbers is Python's range, as a list.
func numbers(p params) *list {
	p.count(1, 3)
	start, stop, step := 0, p.whole(0, "stop", 0), 1
	if len(p.values) > 1 {
		start, stop, step = stop, p.whole(1, "stop", 0), p.whole(2, "step", 1)
	}
	if step == 0 {
		fail("range with a step of 0")
	}
	l := &list{}
	for i := start; step > 0 && i < stop || step < 0 && i > stop; i += step {
		if len(l.items) == maxItems {
			fail("range has more than %d numbers", maxItems)
		}
		l.items = append(l.items, i)
	}
	return l
}
