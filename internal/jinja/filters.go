package jinja

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// filters are the filters of Jinja2 that chat templates use. Others are errors when a template is parsed.
var filters map[string]func(s *state, v any, p params) any

func init() { // some call others
	onText := func(f func(string) string) func(*state, any, params) any {
		return func(_ *state, v any, p params) any { p.takes(); return f(str(v)) }
	}
	choose := func(attribute, keep bool) func(*state, any, params) any {
		return func(s *state, v any, p params) any { return selected(s, v, p, attribute, keep) }
	}
	filters = map[string]func(s *state, v any, p params) any{
		"trim": func(_ *state, v any, p params) any {
			p.takes("chars")
			return strip(str(v), p.only("chars"), true, true)
		},
		"upper": onText(strings.ToUpper), "lower": onText(strings.ToLower), "capitalize": onText(capitalize), "title": onText(titleWords),
		"string": onText(func(s string) string { return s }), "safe": onText(func(s string) string { return s }),
		"escape": onText(escape), "e": onText(escape),
		"wordcount": func(_ *state, v any, p params) any {
			p.takes()
			return len(strings.FieldsFunc(str(v), func(r rune) bool { return r != '_' && !unicode.IsLetter(r) && !unicode.IsNumber(r) }))
		},
		"length": func(_ *state, v any, p params) any { p.takes(); return length(v) },
		"count":  func(_ *state, v any, p params) any { p.takes(); return length(v) },
		"replace": func(_ *state, v any, p params) any {
			p.takes("old", "new", "count")
			n := -1
			if p.arg(2, "count", nil) != nil {
				n = p.whole(2, "count", 0)
			}
			return replace(str(v), p.text(0, "old", nil), p.text(1, "new", nil), n)
		},
		"default": standard, "d": standard,
		"first": func(_ *state, v any, p params) any {
			p.takes()
			if items := iterate(v); len(items) > 0 {
				return items[0]
			}
			return undefined{"the first item"}
		},
		"last": func(_ *state, v any, p params) any {
			p.takes()
			if items := iterate(v); len(items) > 0 {
				return items[len(items)-1]
			}
			return undefined{"the last item"}
		},
		"list": func(_ *state, v any, p params) any { p.takes(); return &list{items: slices.Clone(iterate(v))} },
		"join": func(_ *state, v any, p params) any {
			p.takes("d", "attribute")
			var parts []string
			for _, item := range iterate(v) {
				if a := p.arg(1, "attribute", nil); a != nil {
					item = member(item, a)
				}
				parts = append(parts, str(item))
			}
			return joined(parts, p.text(0, "d", ""))
		},
		"int": func(_ *state, v any, p params) any { p.takes("default"); return toInt(v, p.whole(0, "default", 0)) },
		"float": func(_ *state, v any, p params) any {
			p.takes("default")
			if x, ok := toFloat(v); ok {
				return x
			}
			return p.arg(0, "default", 0.0)
		},
		"abs": func(_ *state, v any, p params) any {
			p.takes()
			if holds("<", v, 0) {
				return arithmetic("-", 0, v)
			}
			return v
		},
		"round": func(_ *state, v any, p params) any {
			p.takes("precision", "method")
			x, ok := numeric(v)
			if n, whole := integer(v); whole {
				return n
			}
			scale := math.Pow(10, float64(p.whole(0, "precision", 0)))
			f := map[string]func(float64) float64{"common": math.RoundToEven, "ceil": math.Ceil, "floor": math.Floor}[p.text(1, "method", "common")]
			if !ok || f == nil {
				fail("round of a %s by the method %.20q", typeName(v), p.text(1, "method", "common"))
			}
			return f(x*scale) / scale
		},
		"reverse": func(_ *state, v any, p params) any {
			p.takes()
			if s, ok := v.(string); ok {
				return slice(s, [3]any{nil, nil, -1})
			}
			items := slices.Clone(iterate(v))
			slices.Reverse(items)
			return &list{items: items}
		},
		"sort": sorted,
		"unique": func(_ *state, v any, p params) any {
			p.takes("case_sensitive", "attribute")
			l := &list{}
			var seen []any
			for _, item := range iterate(v) {
				key := p.key(item)
				if !slices.ContainsFunc(seen, func(k any) bool { return equal(k, key) }) {
					seen, l.items = append(seen, key), append(l.items, item)
				}
			}
			return l
		},
		"min": func(_ *state, v any, p params) any { return extreme(v, p, -1) },
		"max": func(_ *state, v any, p params) any { return extreme(v, p, 1) },
		"sum": func(_ *state, v any, p params) any {
			p.takes("attribute", "start")
			sum := p.arg(1, "start", 0)
			for _, item := range iterate(v) {
				if a := p.arg(0, "attribute", nil); a != nil {
					item = member(item, a)
				}
				sum = arithmetic("+", sum, item)
			}
			return sum
		},
		"items": func(_ *state, v any, p params) any {
			p.takes()
			if d, ok := v.(*dict); ok {
				return items(d)
			}
			if _, ok := v.(undefined); !ok {
				fail("items of a %s", typeName(v))
			}
			return &list{}
		},
		"dictsort": func(_ *state, v any, p params) any {
			p.takes()
			d, ok := v.(*dict)
			if !ok {
				fail("dictsort of a %s", typeName(v))
			}
			l := items(d)
			slices.SortStableFunc(l.items, func(a, b any) int { return order(folded(a.(*list).items[0]), folded(b.(*list).items[0])) })
			return l
		},
		"map":    mapped,
		"select": choose(false, true), "reject": choose(false, false), "selectattr": choose(true, true), "rejectattr": choose(true, false),
		"tojson": toJSON, "indent": indent, "attr": func(_ *state, v any, p params) any { p.takes("name"); return attribute(v, p.text(0, "name", nil)) },
		"center": func(_ *state, v any, p params) any {
			p.takes("width")
			return center(str(v), p.whole(0, "width", 80))
		},
		"format": func(_ *state, v any, p params) any {
			return format(str(v), &list{items: p.values, tuple: true})
		},
	}
}

// only leaves one argument, by its place.
func (p params) only(name string) params {
	if v := p.arg(0, name, nil); v != nil {
		return params{of: p.of, values: []any{v}}
	}
	return params{of: p.of}
}

// member is an item's attribute, which may have dots, or a subscript.
func member(item, of any) any {
	path, ok := of.(string)
	if !ok {
		return subscript(item, of)
	}
	for _, part := range strings.Split(path, ".") {
		item = subscript(item, part)
	}
	return item
}

// folded is what Jinja2 compares when case does not count.
func folded(v any) any {
	if s, ok := v.(string); ok {
		return strings.ToLower(s)
	}
	return v
}

// key is what sort, unique, min and max compare.
func (p params) key(item any) any {
	if a := p.named["attribute"]; a != nil {
		item = member(item, a)
	}
	if !truth(p.named["case_sensitive"]) {
		item = folded(item)
	}
	return item
}

func sorted(_ *state, v any, p params) any {
	p.takes("reverse", "case_sensitive", "attribute")
	if len(p.values) > 1 {
		fail("sort takes its arguments by name")
	}
	l := slices.Clone(iterate(v))
	slices.SortStableFunc(l, func(a, b any) int {
		if truth(p.arg(0, "reverse", false)) {
			a, b = b, a
		}
		return order(p.key(a), p.key(b))
	})
	return &list{items: l}
}

func extreme(v any, p params, sign int) any {
	p.takes("case_sensitive", "attribute")
	items := iterate(v)
	if len(items) == 0 {
		return undefined{"an item of none"}
	}
	best := items[0]
	for _, item := range items[1:] {
		if order(p.key(item), p.key(best))*sign > 0 {
			best = item
		}
	}
	return best
}

func standard(_ *state, v any, p params) any {
	p.takes("default_value", "boolean")
	if _, missing := v.(undefined); missing || truth(p.arg(1, "boolean", false)) && !truth(v) {
		return p.arg(0, "default_value", "")
	}
	return v
}

func mapped(s *state, v any, p params) any {
	l := &list{}
	for _, item := range iterate(v) {
		s.step()
		if a, found := p.named["attribute"]; found {
			item = member(item, a)
			if _, missing := item.(undefined); missing && p.named["default"] != nil {
				item = p.named["default"]
			}
		} else {
			f, known := filters[p.text(0, "the filter", nil)]
			if !known {
				fail("map: the filter %.40q is not known", p.values[0])
			}
			item = f(s, item, params{p.values[0].(string), p.values[1:], p.named})
		}
		l.items = append(l.items, item)
	}
	return l
}

// selected leaves the items that a test holds for, or does not.
func selected(s *state, v any, p params, attribute, keep bool) any {
	values := p.values
	var of any
	if attribute {
		p.count(1, 3)
		of, values = values[0], values[1:]
	}
	l := &list{}
	for _, item := range iterate(v) {
		s.step()
		what := item
		if attribute {
			what = member(item, of)
		}
		yes := truth(what)
		if len(values) > 0 {
			name, _ := values[0].(string)
			test, known := tests[name]
			if !known {
				fail("%s: the test %.40q is not known", p.of, str(values[0]))
			}
			yes = test(what, params{of: name, values: values[1:]})
		}
		if yes == keep {
			l.items = append(l.items, item)
		}
	}
	return l
}

// toInt is Python's int, or another value.
func toInt(v any, standard int) int {
	if n, ok := integer(v); ok {
		return n
	}
	if x, ok := toFloat(v); ok && math.Abs(x) <= 1<<53 {
		return int(x)
	}
	return standard
}

func toFloat(v any) (x float64, ok bool) {
	if s, isText := v.(string); isText {
		x, err := strconv.ParseFloat(strings.TrimFunc(s, space), 64)
		return x, err == nil
	}
	return numeric(v)
}

func escape(s string) string {
	return strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", "'", "&#39;", `"`, "&#34;").Replace(s)
}

// titleWords begins each word with a capital; Jinja2's words end at spaces, hyphens and brackets.
func titleWords(s string) string {
	first := true
	return strings.Map(func(r rune) rune {
		if space(r) || strings.ContainsRune("-({[<", r) {
			first = true
			return r
		}
		if first {
			first = false
			return unicode.ToUpper(r)
		}
		return unicode.ToLower(r)
	}, s)
}

func indent(_ *state, v any, p params) any {
	p.takes("width", "first", "blank")
	by, ok := p.arg(0, "width", 4).(string)
	if !ok {
		by = repeat(" ", p.whole(0, "width", 4))
	}
	parts := lines(str(v) + "\n")
	for i, line := range parts {
		if i > 0 && (line != "" || truth(p.arg(2, "blank", false))) || i == 0 && truth(p.arg(1, "first", false)) {
			sized(len(by) * len(parts))
			parts[i] = by + line
		}
	}
	return joined(parts, "\n")
}
