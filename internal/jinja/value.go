package jinja

import (
	"math"
	"strconv"
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

// callable is a function of this package or a method of a value.
type callable struct {
	name  string
	do    func(p params) any
	holds []any // the values that do uses
}

// cycler is Jinja2's object of this name.
type cycler struct {
	items []any
	at    int
}

// loop is the state of a loop. Its test sees what the rounds before have set: items of rest are
// tested as late as Jinja2 does it.
type loop struct {
	items []any // those that the loop goes through, as far as they are known
	at    int
	rest  []any
	test  func(item any) bool
	again func(s *state, from *loop, items any) string // of a recursive loop: the text of the loop over other items
	depth int
	last  []any // what changed compares with; nil before the first call
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
	l.has(math.MaxInt)
	return len(l.items)
}

// large is an integer beyond int, in decimal digits. It is written as it is, and compared; it is not computed with.
type large string

// Whole returns an integer of decimal digits, with a sign or none.
func Whole(digits string) any {
	if n, err := strconv.Atoi(digits); err == nil {
		return n
	}
	return large(digits)
}

// List returns a list.
func List(items ...any) any { return &list{items: items} }

// Dict returns a dict of keys, each followed by its value. Keys are nil, bool, int, float64 or string; a pair with another
// key is left out.
func Dict(pairs ...any) any {
	d := &dict{values: map[any]any{}}
	for i := 0; i+1 < len(pairs); i += 2 {
		if hashable(pairs[i]) {
			d.put(pairs[i], pairs[i+1])
		}
	}
	return d
}

func hashable(key any) bool {
	switch key.(type) {
	case nil, bool, int, large, float64, string:
		return true
	}
	return false
}

// put sets a key that is hashable.
func (d *dict) put(key, v any) (fresh bool) {
	if d.values == nil {
		d.values = map[any]any{}
	}
	if _, found := d.values[key]; !found {
		d.keys = append(d.keys, key)
		fresh = true
	}
	d.values[key] = v
	return fresh
}

// set sets a key of a dict that the template makes.
func (s *state) set(d *dict, key, v any) {
	if !hashable(key) {
		fail("a %s is the key of a dict", typeName(key))
	}
	s.copies(len(keyText(key)))
	if d.put(key, v) {
		if len(d.keys) > s.mostItems {
			fail("a dict has more than %d keys", s.mostItems)
		}
		s.makes(sizeKey)
	}
}

func (d *dict) get(key any) (v any, found bool) {
	if hashable(key) {
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
	case int, large:
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
	case Func, *macro, *callable:
		return "function"
	}
	return "object"
}

// a is the name of a value's type with its article.
func a(v any) string {
	switch v.(type) {
	case nil:
		return "none"
	case undefined, int, large, *namespace, *loop, *cycler:
		return "an " + typeName(v)
	}
	return "a " + typeName(v)
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

// numeric returns a value as a float, as Python does for arithmetic.
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

// iterate returns what a loop over a value goes through. The slice is not to be changed.
func (s *state) iterate(v any) []any {
	switch v := v.(type) {
	case undefined:
		return nil
	case *list:
		return v.items
	case *dict:
		return v.keys
	case string:
		n := utf8.RuneCountInString(v)
		s.items(n)
		s.take(n)
		items := make([]any, 0, n)
		for _, r := range v {
			items = append(items, string(r))
		}
		return items
	}
	fail("%s has no items", a(v))
	return nil
}

// list returns a new list of items that are there already.
func (s *state) list(items []any) *list {
	s.items(len(items))
	return &list{items: items}
}

// add appends an item to a list that is made item by item.
func (s *state) add(l *list, item any) {
	if len(l.items) == s.mostItems {
		s.items(s.mostItems + 1)
	}
	s.step()
	s.makes(sizeItem)
	l.items = append(l.items, item)
}

func (s *state) length(v any) int {
	switch v := v.(type) {
	case string:
		s.scan(len(v))
		return utf8.RuneCountInString(v)
	case undefined:
		return 0
	case *list:
		return len(v.items)
	case *dict:
		return len(v.keys)
	}
	fail("%s has no length", a(v))
	return 0
}

// texts returns a list of parts of a text.
func (s *state) texts(parts []string) *list {
	l := s.list(make([]any, len(parts)))
	for i, part := range parts {
		l.items[i] = s.cut(part)
	}
	return l
}
