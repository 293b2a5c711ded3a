package jinja

import (
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
		return func(v any, p params) bool { p.count(1, 1); return p.s.holds(op, v, p.values[0]) }
	}
	rest := func(p params, v, by any) float64 { // of a division
		x, _ := numeric(p.s.arithmetic("%", v, by))
		return x
	}
	number := func(v any) bool {
		if _, ok := numeric(v); !ok {
			fail("a test divides %s", a(v))
		}
		return true
	}
	tests = map[string]func(v any, p params) bool{
		"defined":   func(v any, p params) bool { p.takes(); _, missing := v.(undefined); return !missing },
		"undefined": kind("undefined value"), "none": kind("none"), "string": kind("text"), "mapping": kind("dict"), "boolean": kind("bool"),
		"integer": kind("integer"), "float": kind("float"), "number": kind("integer", "float", "bool"), "callable": kind("function"),
		"iterable": kind("text", "list", "tuple", "dict", "undefined value"),
		"sequence": kind("text", "list", "tuple", "dict", "undefined value"),
		"true":     func(v any, p params) bool { p.takes(); return v == true },
		"false":    func(v any, p params) bool { p.takes(); return v == false },
		"odd":      func(v any, p params) bool { p.takes(); return number(v) && rest(p, v, 2) == 1 },
		"even":     func(v any, p params) bool { p.takes(); return number(v) && rest(p, v, 2) == 0 },
		"divisibleby": func(v any, p params) bool {
			p.count(1, 1)
			return number(v) && rest(p, v, p.values[0]) == 0
		},
		"upper": func(v any, p params) bool { p.takes(); return p.s.cased(p.s.str(v), strings.ToUpper, strings.ToLower) },
		"lower": func(v any, p params) bool { p.takes(); return p.s.cased(p.s.str(v), strings.ToLower, strings.ToUpper) },
		"sameas": func(v any, p params) bool {
			p.count(1, 1)
			return typeName(v) == typeName(p.values[0]) && p.s.equal(v, p.values[0])
		},
		"eq": compare("=="), "equalto": compare("=="), "ne": compare("!="), "in": compare("in"),
		"lt": compare("<"), "lessthan": compare("<"), "le": compare("<="), "gt": compare(">"), "greaterthan": compare(">"), "ge": compare(">="),
		"filter": func(v any, p params) bool { p.takes(); _, known := filters[p.s.str(v)]; return known },
		"test":   func(v any, p params) bool { p.takes(); _, known := tests[p.s.str(v)]; return known },
	}
	globals = map[string]any{"self": &dict{}} // of the blocks of a template, which has none
	for name, do := range map[string]func(p params) any{
		"range":     func(p params) any { return numbers(p) },
		"dict":      func(p params) any { return named(p) },
		"namespace": func(p params) any { return &namespace{*named(p)} },
		"joiner":    joiner,
		"cycler": func(p params) any {
			if len(p.values) == 0 || len(p.named) > 0 {
				fail("cycler takes one value or more, without names")
			}
			p.s.items(len(p.values))
			return &cycler{items: p.values}
		},
	} {
		globals[name] = &callable{name: name, do: do}
	}
}

// joiner returns a function whose text is empty at the first call, and a separator at the others.
func joiner(p params) any {
	p.takes("sep")
	separator, called := p.arg(0, "sep", ", "), false
	return method("joiner", separator, func(p params) any {
		p.count(0, 0)
		if called {
			return separator
		}
		called = true
		return ""
	})
}

// named is a dict of names and values.
func named(p params) *dict {
	d := &dict{}
	if len(p.values) > 1 {
		fail("%s takes one value without a name", p.of)
	}
	p.s.items(0)
	if len(p.values) == 1 {
		switch from := p.values[0].(type) {
		case *dict:
			for _, key := range from.keys {
				p.s.set(d, key, from.values[key])
			}
		case *list:
			for _, pair := range from.items {
				two, ok := pair.(*list)
				if !ok || len(two.items) != 2 {
					fail("%s of a list with %s, want pairs", p.of, a(pair))
				}
				p.s.set(d, two.items[0], two.items[1])
			}
		default:
			fail("%s of %s", p.of, a(from))
		}
	}
	for _, key := range p.order {
		p.s.set(d, key, p.named[key])
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
	n := 0
	if step > 0 && start < stop {
		n = (stop-start-1)/step + 1
	} else if step < 0 && start > stop {
		n = (start-stop-1)/-step + 1
	}
	if n > p.s.mostItems || n < 0 {
		fail("range has more than %d numbers", p.s.mostItems)
	}
	p.s.items(n)
	p.s.take(n / 4)
	l := &list{items: make([]any, n)}
	for i := range l.items {
		l.items[i] = start + i*step
	}
	return l
}
