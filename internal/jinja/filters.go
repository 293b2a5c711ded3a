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
		return func(s *state, v any, p params) any { p.takes(); return s.mapped(s.str(v), f) }
	}
	choose := func(attribute, keep bool) func(*state, any, params) any {
		return func(s *state, v any, p params) any { return selected(s, v, p, attribute, keep) }
	}
	asText := func(s *state, v any, p params) any { p.takes(); return s.str(v) }
	length := func(s *state, v any, p params) any { p.takes(); return s.length(v) }
	filters = map[string]func(s *state, v any, p params) any{
		"trim": func(s *state, v any, p params) any {
			p.takes("chars")
			return strip(s.str(v), p.only("chars"), true, true)
		},
		"upper": onText(strings.ToUpper), "lower": onText(strings.ToLower), "capitalize": onText(capitalize), "title": onText(titleWords),
		"string": asText, "safe": asText, "escape": escape, "e": escape, "forceescape": escape,
		"wordcount": wordCount,
		"length":    length, "count": length,
		"replace": func(s *state, v any, p params) any {
			p.takes("old", "new", "count")
			n := -1
			if p.arg(2, "count", nil) != nil {
				n = p.whole(2, "count", 0)
			}
			return s.replace(s.str(v), s.str(p.needs(0, "old")), s.str(p.needs(1, "new")), n)
		},
		"default": standard, "d": standard,
		"first": func(s *state, v any, p params) any {
			p.takes()
			if text, ok := v.(string); ok && text != "" {
				return s.character(text, 0)
			}
			if items := s.iterate(v); len(items) > 0 {
				return items[0]
			}
			return undefined{"the first item"}
		},
		"last": func(s *state, v any, p params) any {
			p.takes()
			if text, ok := v.(string); ok && text != "" {
				return s.character(text, -1)
			}
			if items := s.iterate(v); len(items) > 0 {
				return items[len(items)-1]
			}
			return undefined{"the last item"}
		},
		"list": func(s *state, v any, p params) any { p.takes(); return s.list(slices.Clone(s.iterate(v))) },
		"join": func(s *state, v any, p params) any {
			p.takes("d", "attribute")
			of := p.arg(1, "attribute", nil)
			return s.join(s.iterate(v), s.str(p.arg(0, "d", "")), func(item any) string { return s.str(s.member(item, of)) })
		},
		"int": func(s *state, v any, p params) any {
			p.takes("default", "base")
			if n, ok := s.toInt(v); ok {
				return n
			}
			return p.arg(0, "default", 0)
		},
		"float": func(s *state, v any, p params) any {
			p.takes("default")
			if x, ok := s.toFloat(v); ok {
				return x
			}
			return p.arg(0, "default", 0.0)
		},
		"abs": func(s *state, v any, p params) any {
			p.takes()
			if n, ok := integer(v); ok {
				return max(n, -n)
			}
			x, ok := numeric(v)
			if !ok {
				fail("abs of %s", a(v))
			}
			return math.Abs(x)
		},
		"round": round,
		"reverse": func(s *state, v any, p params) any {
			p.takes()
			if _, ok := v.(string); ok {
				return s.slice(v, [3]any{nil, nil, -1})
			}
			items := slices.Clone(s.iterate(v))
			slices.Reverse(items)
			return s.list(items)
		},
		"sort": sorted, "unique": unique,
		"min": func(s *state, v any, p params) any { return extreme(s, v, p, -1) },
		"max": func(s *state, v any, p params) any { return extreme(s, v, p, 1) },
		"sum": func(s *state, v any, p params) any {
			p.takes("attribute", "start")
			sum, of := p.arg(1, "start", 0), p.arg(0, "attribute", nil)
			last := int64(0) // bytes of the sum before, which is no longer in use
			for _, item := range s.iterate(v) {
				s.step()
				before := s.made
				sum = s.arithmetic("+", sum, s.member(item, of))
				s.began += last
				last = s.made - before
			}
			return sum
		},
		"items": func(s *state, v any, p params) any {
			p.takes()
			if d, ok := v.(*dict); ok {
				return s.pairs(d)
			}
			if _, ok := v.(undefined); !ok {
				fail("items of %s", a(v))
			}
			return &list{}
		},
		"dictsort": dictSort,
		"map":      mapped,
		"select":   choose(false, true), "reject": choose(false, false), "selectattr": choose(true, true), "rejectattr": choose(true, false),
		"tojson": toJSON, "from_json": fromJSON,
		"indent": func(s *state, v any, p params) any { return s.indent(v, p) },
		"attr": func(s *state, v any, p params) any {
			p.takes("name")
			return s.attribute(v, p.text(0, "name", nil))
		},
		"center": func(s *state, v any, p params) any {
			p.takes("width")
			return s.center(s.str(v), " ", p.whole(0, "width", 80))
		},
		"format": func(s *state, v any, p params) any {
			return s.format(s.str(v), &list{items: p.values, tuple: true})
		},
		"groupby": groupBy, "batch": batch, "slice": columns, "truncate": truncate,
	}
}

// only leaves one argument, by its place.
func (p params) only(name string) params {
	if v := p.arg(0, name, nil); v != nil {
		return params{s: p.s, of: p.of, given: given{values: []any{v}}}
	}
	return params{s: p.s, of: p.of}
}

// member is an item's attribute, which may have dots, or a subscript. It is the item itself for the attribute nil.
func (s *state) member(item, of any) any {
	if of == nil {
		return item
	}
	path, ok := of.(string)
	if !ok {
		return s.subscript(item, of)
	}
	s.scan(len(path))
	for part := range strings.SplitSeq(path, ".") {
		s.step()
		if n, err := strconv.Atoi(part); err == nil && n >= 0 {
			item = s.subscript(item, n)
			continue
		}
		item = s.subscript(item, part)
	}
	return item
}

// folded is what Jinja2 compares when case does not count.
func (s *state) folded(v any) any {
	if text, ok := v.(string); ok {
		return s.mapped(text, strings.ToLower)
	}
	return v
}

// keyed is an item with what sort, unique, min and max compare.
type keyed struct{ key, item any }

// keys returns the items with what is compared of them: an attribute, in lower case unless case counts.
func (s *state) keys(v any, attribute any, cased bool) []keyed {
	items := s.iterate(v)
	s.makes(2 * sizeItem * len(items))
	all := make([]keyed, len(items))
	for i, item := range items {
		s.step()
		key := s.member(item, attribute)
		if !cased {
			key = s.folded(key)
		}
		all[i] = keyed{key, item}
	}
	return all
}

func (s *state) sort(all []keyed, reverse bool) *list {
	slices.SortStableFunc(all, func(a, b keyed) int {
		if reverse {
			a, b = b, a
		}
		if typeName(a.key) == "undefined value" && s.equal(a.key, b.key) {
			return 0
		}
		return s.order(a.key, b.key)
	})
	l := s.list(make([]any, len(all)))
	for i, k := range all {
		l.items[i] = k.item
	}
	return l
}

func sorted(s *state, v any, p params) any {
	p.takes("reverse", "case_sensitive", "attribute")
	attribute := p.arg(2, "attribute", nil)
	cased, reverse := truth(p.arg(1, "case_sensitive", false)), truth(p.arg(0, "reverse", false))
	if several, ok := attribute.(string); ok && strings.Contains(several, ",") {
		fail("sort by several attributes is not supported")
	}
	return s.sort(s.keys(v, attribute, cased), reverse)
}

func dictSort(s *state, v any, p params) any {
	p.takes("case_sensitive", "by", "reverse")
	d, ok := v.(*dict)
	if !ok {
		fail("dictsort of %s", a(v))
	}
	at, known := map[string]int{"key": 0, "value": 1}[p.text(1, "by", "key")]
	if !known {
		fail("dictsort by %.20q, want key or value", p.text(1, "by", "key"))
	}
	all := s.keys(s.pairs(d), at, truth(p.arg(0, "case_sensitive", false)))
	return s.sort(all, truth(p.arg(2, "reverse", false)))
}

// unique leaves the first of equal items.
func unique(s *state, v any, p params) any {
	p.takes("case_sensitive", "attribute")
	kept := &list{}
	seen := map[any]bool{}
	var others []any // keys that a map cannot have
	for _, k := range s.keys(v, p.arg(1, "attribute", nil), truth(p.arg(0, "case_sensitive", false))) {
		key := k.key
		if x, ok := numeric(key); ok {
			key = x // 1, 1.0 and true are equal
		}
		s.copies(len(keyText(key)))
		switch l, ok := key.(*list); {
		case typeName(key) == "dict" || ok && !l.tuple:
			fail("unique of items that are %ss", typeName(key))
		case hashable(key):
			if seen[key] {
				continue
			}
			seen[key] = true
		case slices.ContainsFunc(others, func(o any) bool { return s.equal(o, key) }):
			continue
		default:
			others = append(others, key)
		}
		s.add(kept, k.item)
	}
	return kept
}

func extreme(s *state, v any, p params, sign int) any {
	p.takes("case_sensitive", "attribute")
	all := s.keys(v, p.arg(1, "attribute", nil), truth(p.arg(0, "case_sensitive", false)))
	if len(all) == 0 {
		return undefined{"an item of none"}
	}
	best := all[0]
	for _, k := range all[1:] {
		if s.order(k.key, best.key)*sign > 0 {
			best = k
		}
	}
	return best.item
}

func standard(_ *state, v any, p params) any {
	p.takes("default_value", "boolean")
	if _, missing := v.(undefined); missing || truth(p.arg(1, "boolean", false)) && !truth(v) {
		return p.arg(0, "default_value", "")
	}
	return v
}

// some is iterate for filters that take nothing of what is false, such as tools that are none.
func (s *state) some(v any) []any {
	if !truth(v) {
		return nil
	}
	return s.iterate(v)
}

// filter applies a filter that a text names.
func (s *state) filter(name any, v any, g given) any {
	of, _ := name.(string)
	f, known := filters[of]
	if !known {
		fail("map: the filter %.40q is not known", s.str(name))
	}
	return f(s, v, params{s: s, of: of, given: g})
}

func mapped(s *state, v any, p params) any {
	l := &list{}
	attribute, byAttribute := p.named["attribute"]
	if !byAttribute && len(p.values) == 0 {
		fail("map takes the name of a filter, or an attribute")
	}
	if s.depth++; s.depth > maxNested { // map may map
		fail("more than %d calls within another", maxNested)
	}
	for _, item := range s.some(v) {
		if byAttribute {
			item = s.member(item, attribute)
			if _, missing := item.(undefined); missing && p.named["default"] != nil {
				item = p.named["default"]
			}
		} else {
			item = s.filter(p.values[0], item, given{p.values[1:], p.named, p.order})
		}
		s.add(l, item)
	}
	s.depth--
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
	for _, item := range s.some(v) {
		s.step()
		what := s.member(item, of)
		yes := truth(what)
		if len(values) > 0 {
			name, _ := values[0].(string)
			test, known := tests[name]
			if !known {
				fail("%s: the test %.40q is not known", p.of, s.str(values[0]))
			}
			yes = test(what, params{s: s, of: name, given: given{values: values[1:]}})
		}
		if yes == keep {
			s.add(l, item)
		}
	}
	return l
}

// toInt is Python's int.
func (s *state) toInt(v any) (n int, ok bool) {
	if n, ok := integer(v); ok {
		return n, true
	}
	x, ok := s.toFloat(v)
	if !ok || math.IsNaN(x) || math.IsInf(x, 0) {
		return 0, false
	}
	if math.Abs(x) > 1<<53 {
		fail("a number is beyond 2^53")
	}
	return int(x), true
}

func (s *state) toFloat(v any) (x float64, ok bool) {
	if u, missing := v.(undefined); missing {
		fail("%.40q is undefined", u.name)
	}
	if n, is := v.(large); is {
		fail("the integer %.40s is too large to compute with", string(n))
	}
	if text, isText := v.(string); isText {
		s.scan(len(text))
		x, err := strconv.ParseFloat(strings.TrimFunc(text, space), 64)
		return x, err == nil
	}
	return numeric(v)
}

func round(_ *state, v any, p params) any {
	p.takes("precision", "method")
	x, ok := numeric(v)
	if n, whole := integer(v); whole {
		return n
	}
	f := map[string]func(float64) float64{"common": math.RoundToEven, "ceil": math.Ceil, "floor": math.Floor}[p.text(1, "method", "common")]
	if !ok || f == nil {
		fail("round of %s by the method %.20q", a(v), p.text(1, "method", "common"))
	}
	scale := math.Pow(10, float64(p.whole(0, "precision", 0)))
	if scaled := x * scale; !math.IsInf(scaled, 0) && scale > 0 {
		return f(scaled) / scale
	}
	return x
}

func escape(s *state, v any, p params) any {
	p.takes()
	text := s.str(v)
	s.scan(len(text))
	n := len(text)
	for sign, more := range map[string]int{"&": 4, "<": 3, ">": 3, "'": 4, `"`: 4} {
		n += more * strings.Count(text, sign)
	}
	s.text(n)
	return strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", "'", "&#39;", `"`, "&#34;").Replace(text)
}

func wordCount(s *state, v any, p params) any {
	p.takes()
	text := s.str(v)
	s.scan(len(text))
	n, within := 0, false
	for _, r := range text {
		is := r == '_' || unicode.IsLetter(r) || unicode.IsNumber(r)
		if is && !within {
			n++
		}
		within = is
	}
	return n
}

// titleWords begins each word with a capital; Jinja2's words end at spaces, hyphens and brackets.
func titleWords(text string) string {
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
	}, text)
}
