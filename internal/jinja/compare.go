package jinja

import (
	"math"
	"slices"
	"strings"
)

// deep fails for values too deep within another.
func deep(depth int) {
	if depth > maxNested {
		fail("more than %d values within another", maxNested)
	}
}

func (s *state) equal(a, b any) bool { return s.same(a, b, 0) }

// same compares two values. As in Python, a list or a dict equals itself without a look at its items.
func (s *state) same(a, b any, depth int) bool {
	s.step()
	deep(depth)
	if x, ok := numeric(a); ok {
		y, ok := numeric(b)
		return ok && x == y
	}
	switch a := a.(type) {
	case undefined:
		_, ok := b.(undefined)
		return ok
	case string:
		b, ok := b.(string)
		if !ok || len(a) != len(b) {
			return false
		}
		s.copies(len(a))
		return a == b
	case *list:
		b, ok := b.(*list)
		if !ok || a.tuple != b.tuple || len(a.items) != len(b.items) {
			return false
		}
		if a == b {
			return true
		}
		for i := range a.items {
			if !s.same(a.items[i], b.items[i], depth+1) {
				return false
			}
		}
		return true
	case *dict:
		b, ok := b.(*dict)
		if !ok || len(a.keys) != len(b.keys) {
			return false
		}
		if a == b {
			return true
		}
		for _, key := range a.keys {
			s.copies(len(keyText(key)))
			if v, found := b.get(key); !found || !s.same(a.values[key], v, depth+1) {
				return false
			}
		}
		return true
	case nil:
		return b == nil
	}
	return identical(a, b)
}

// identical reports whether two values are the same object. Functions of the caller are none.
func identical(a, b any) bool {
	if _, ok := a.(Func); ok {
		return false
	}
	if _, ok := b.(Func); ok {
		return false
	}
	return a == b
}

// order compares two values that have an order.
func (s *state) order(a, b any) int { return s.compare(a, b, 0) }

func (s *state) compare(x, y any, depth int) int {
	s.step()
	deep(depth)
	if a, ok := numeric(x); ok {
		if b, ok := numeric(y); ok {
			switch {
			case a < b:
				return -1
			case a > b:
				return 1
			}
			return 0
		}
	}
	if a, ok := x.(string); ok {
		if b, ok := y.(string); ok {
			s.copies(min(len(a), len(b)))
			return strings.Compare(a, b)
		}
	}
	if a, ok := x.(*list); ok {
		if b, ok := y.(*list); ok && a.tuple == b.tuple {
			if a == b {
				return 0
			}
			for i := range min(len(a.items), len(b.items)) {
				if !s.same(a.items[i], b.items[i], depth+1) {
					return s.compare(a.items[i], b.items[i], depth+1)
				}
			}
			return len(a.items) - len(b.items)
		}
	}
	fail("%s and %s have no order", a(x), a(y))
	return 0
}

// holds computes a comparison.
func (s *state) holds(op string, a, b any) bool {
	switch op {
	case "==":
		return s.equal(a, b)
	case "!=":
		return !s.equal(a, b)
	case "in":
		return s.contains(b, a)
	case "not in":
		return !s.contains(b, a)
	}
	if x, y, ok := notNumbers(a, b); ok {
		return op[0] == '<' && x < y || op[0] == '>' && x > y
	}
	switch n := s.order(a, b); op {
	case "<":
		return n < 0
	case "<=":
		return n <= 0
	case ">":
		return n > 0
	default:
		return n >= 0
	}
}

// notNumbers returns two numbers, one of them a NaN, which has no order.
func notNumbers(a, b any) (x, y float64, ok bool) {
	x, okX := numeric(a)
	y, okY := numeric(b)
	return x, y, okX && okY && (math.IsNaN(x) || math.IsNaN(y))
}

func (s *state) contains(in, v any) bool {
	switch in := in.(type) {
	case string:
		sub, ok := v.(string)
		if !ok {
			fail("%s is looked for in a text", a(v))
		}
		s.scan(len(in))
		return strings.Contains(in, sub)
	case *dict:
		s.copies(len(keyText(v)))
		_, found := in.get(v)
		return found
	case *list:
		return slices.ContainsFunc(in.items, func(item any) bool { return s.equal(item, v) })
	case undefined:
		return false
	}
	fail("%s has no items", a(in))
	return false
}
