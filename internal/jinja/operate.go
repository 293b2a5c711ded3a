package jinja

import (
	"math"
	"slices"
	"strings"
	"unicode/utf8"
)

// arithmetic computes an operator of two sides.
func (s *state) arithmetic(op string, x, y any) any {
	if op == "~" {
		left, right := s.str(x), s.str(y)
		s.text(len(left) + len(right))
		return left + right
	}
	for _, v := range [...]any{x, y} {
		if u, ok := v.(undefined); ok {
			fail("%.40q is undefined", u.name)
		}
	}
	if text, ok := x.(string); ok && op == "%" {
		return s.format(text, y)
	}
	if m, ok := integer(x); ok {
		if n, ok := integer(y); ok {
			return whole2(op, m, n)
		}
	}
	if m, ok := numeric(x); ok {
		if n, ok := numeric(y); ok {
			return real2(op, m, n)
		}
	}
	switch op {
	case "+":
		if left, ok := x.(string); ok {
			if right, ok := y.(string); ok {
				s.text(len(left) + len(right))
				return left + right
			}
		}
		if left, ok := x.(*list); ok {
			if right, ok := y.(*list); ok && left.tuple == right.tuple {
				s.items(len(left.items) + len(right.items))
				return &list{slices.Concat(left.items, right.items), left.tuple}
			}
		}
	case "*":
		if _, ok := integer(x); ok {
			x, y = y, x
		}
		if n, ok := integer(y); ok {
			switch x := x.(type) {
			case string:
				return s.repeat(x, n)
			case *list:
				n = max(0, n)
				if n > 0 && len(x.items) > s.mostItems/n {
					n = s.mostItems + 1
					s.items(n)
				}
				s.items(len(x.items) * n)
				return &list{slices.Repeat(x.items, n), x.tuple}
			}
		}
	}
	fail("%s of %s and %s is not supported", op, a(x), a(y))
	return nil
}

// negative is the unary operator -.
func negative(v any) any {
	if n, ok := integer(v); ok {
		return -n
	}
	x, ok := numeric(v)
	if !ok {
		fail("- of %s is not supported", a(v))
	}
	return -x
}

// whole2 computes with integers. Python's have no bounds.
func whole2(op string, a, b int) any {
	if b == 0 && (op == "/" || op == "//" || op == "%") {
		fail("a division by zero")
	}
	exact := func(n int, x float64) int {
		if math.Abs(x) > 1<<53 {
			fail("a number is beyond 2^53")
		}
		return n
	}
	x, y := float64(a), float64(b)
	switch op {
	case "+":
		return exact(a+b, x+y)
	case "-":
		return exact(a-b, x-y)
	case "*":
		return exact(a*b, x*y)
	case "/":
		return x / y
	case "//":
		return exact(int(math.Floor(x/y)), x)
	case "%":
		return ((a % b) + b) % b
	}
	power := math.Pow(x, y)
	if b < 0 {
		if a == 0 {
			fail("a division by zero")
		}
		return power
	}
	return exact(int(power), power)
}

func real2(op string, x, y float64) any {
	if y == 0 && (op == "/" || op == "//" || op == "%") {
		fail("a division by zero")
	}
	switch op {
	case "+":
		return x + y
	case "-":
		return x - y
	case "*":
		return x * y
	case "/":
		return x / y
	case "//":
		return math.Floor(x / y)
	case "%":
		rest := math.Mod(x, y)
		switch {
		case rest == 0:
			return math.Copysign(0, y)
		case rest < 0 != (y < 0):
			return rest + y
		}
		return rest
	}
	return math.Pow(x, y)
}

// subscript is object[key].
func (s *state) subscript(object, key any) any {
	switch o := object.(type) {
	case undefined:
		fail("%.40q is undefined", o.name)
	case *list:
		if n, ok := integer(key); ok {
			if n < 0 {
				n += len(o.items)
			}
			if n >= 0 && n < len(o.items) {
				return o.items[n]
			}
			return undefined{"an item of a list"}
		}
	case string:
		if n, ok := integer(key); ok {
			return s.character(o, n)
		}
	case *dict:
		s.copies(len(keyText(key)))
		if v, found := o.get(key); found {
			return v
		}
	}
	if member, ok := key.(string); ok {
		return s.attribute(object, member)
	}
	return undefined{s.str(key)}
}

// character returns a character of a text. A negative number counts from the end.
func (s *state) character(text string, n int) any {
	back := n < 0
	if back {
		n = -1 - n
	}
	s.scan(min(n, len(text)))
	for ; text != ""; n-- {
		r, size := utf8.DecodeRuneInString(text)
		if back {
			r, size = utf8.DecodeLastRuneInString(text)
		}
		if n == 0 {
			return string(r)
		}
		if back {
			text = text[:len(text)-size]
		} else {
			text = text[size:]
		}
	}
	return undefined{"a character of a text"}
}

// slice is object[from:to:step].
func (s *state) slice(object any, at [3]any) any {
	n := 0
	text, isText := object.(string)
	l, isList := object.(*list)
	switch {
	case isText:
		s.scan(len(text))
		n = utf8.RuneCountInString(text)
	case isList:
		n = len(l.items)
	default:
		if u, missing := object.(undefined); missing {
			fail("%.40q is undefined", u.name)
		}
		return undefined{"a part of " + a(object)}
	}
	bound := func(i, standard int) int {
		v, ok := integer(at[i])
		if at[i] == nil {
			return standard
		} else if !ok {
			fail("a slice by %s", a(at[i]))
		}
		return v
	}
	step := bound(2, 1)
	if step == 0 {
		fail("a slice with a step of 0")
	}
	step = max(-n-1, min(step, n+1))
	low, high := 0, n // of bounds
	from, to := 0, n
	if step < 0 {
		low, high, from, to = -1, n-1, n-1, -1
	}
	for i, b := range []*int{&from, &to} {
		if at[i] != nil {
			v := bound(i, 0)
			if v < 0 {
				v += n
			}
			*b = min(max(v, low), high)
		}
	}
	count := max(0, (to-from+step-sign(step))/step)
	if isText {
		return s.characters(text, n, from, step, count)
	}
	s.items(count)
	part := &list{make([]any, count), l.tuple}
	for i := range part.items {
		part.items[i] = l.items[from+i*step]
	}
	return part
}

func sign(n int) int {
	if n < 0 {
		return -1
	}
	return 1
}

// characters returns count of the n characters of a text, from one on, each step characters after the one before.
func (s *state) characters(text string, n, from, step, count int) string {
	if count == 0 {
		return ""
	}
	last := from + (count-1)*step
	first := min(from, last)
	begin := offset(text, first)
	end := begin + offset(text[begin:], max(from, last)-first+1)
	switch part := text[begin:end]; {
	case step == 1 && count == n:
		return text
	case step == 1:
		return s.cut(part)
	default:
		s.text(len(part))
		s.take(count)
		var b strings.Builder
		skip := max(step, -step)
		for i := range count {
			var r rune
			var size int
			if step > 0 {
				r, _ = utf8.DecodeRuneInString(part)
			} else {
				r, _ = utf8.DecodeLastRuneInString(part)
			}
			b.WriteRune(r)
			for range min(skip, n) {
				if i == count-1 {
					break
				}
				if step > 0 {
					_, size = utf8.DecodeRuneInString(part)
					part = part[size:]
				} else {
					_, size = utf8.DecodeLastRuneInString(part)
					part = part[:len(part)-size]
				}
			}
		}
		return b.String()
	}
}

// offset returns the bytes of the first n characters.
func offset(text string, n int) (bytes int) {
	for ; n > 0; n-- {
		_, size := utf8.DecodeRuneInString(text[bytes:])
		bytes += size
	}
	return bytes
}

// method returns a method of a value as a function.
func method(name string, of any, do func(p params) any) any {
	return &callable{name: name, do: do, holds: []any{of}}
}

// attribute is object.member.
func (s *state) attribute(object any, member string) any {
	switch o := object.(type) {
	case undefined:
		fail("%.40q is undefined", o.name)
	case string:
		if m, found := textMethods[member]; found {
			return method(member, o, func(p params) any { return m(o, p) })
		}
	case *dict:
		if m, found := dictMethods[member]; found {
			return method(member, o, func(p params) any { return m(o, p) })
		}
		s.copies(len(member))
		if v, found := o.get(member); found {
			return v
		}
	case *namespace:
		if v, found := o.get(member); found {
			return v
		}
	case *loop:
		return o.attribute(member)
	case *cycler:
		return o.attribute(member)
	case *list:
		switch member {
		case "index", "count":
			return method(member, o, func(p params) any { return o.find(p) })
		case "append", "extend", "insert", "pop", "remove", "clear", "sort", "reverse":
			fail("%s of a list is not allowed", member)
		}
	}
	return undefined{member}
}

func (l *list) find(p params) any {
	p.count(1, 1)
	n, first := 0, -1
	for i, item := range l.items {
		if p.s.equal(item, p.values[0]) {
			n++
			if first < 0 {
				first = i
			}
		}
	}
	if p.of == "count" {
		return n
	}
	if first < 0 {
		fail("index: the list has no such item")
	}
	return first
}

func (l *loop) attribute(member string) any {
	switch member {
	case "index":
		return l.at + 1
	case "index0":
		return l.at
	case "first":
		return l.at == 0
	case "last":
		return !l.has(l.at + 1)
	case "length":
		return l.length()
	case "revindex":
		return l.length() - l.at
	case "revindex0":
		return l.length() - l.at - 1
	case "previtem":
		if l.at > 0 {
			return l.items[l.at-1]
		}
	case "nextitem":
		if l.has(l.at + 1) {
			return l.items[l.at+1]
		}
	case "depth":
		return l.depth + 1
	case "depth0":
		return l.depth
	case "cycle":
		return method(member, l, func(p params) any {
			if len(p.values) == 0 || len(p.named) > 0 {
				fail("cycle takes one value or more, without names")
			}
			return p.values[l.at%len(p.values)]
		})
	case "changed":
		return method(member, l, func(p params) any {
			p.count(0, p.s.mostItems)
			now := &list{items: append([]any{}, p.values...)}
			if l.last != nil && p.s.equal(&list{items: l.last}, now) {
				return false
			}
			l.last = now.items
			return true
		})
	}
	return undefined{"loop." + member}
}

func (c *cycler) attribute(member string) any {
	switch member {
	case "current":
		return c.items[c.at]
	case "next":
		return method(member, c, func(p params) any {
			p.count(0, 0)
			v := c.items[c.at]
			c.at = (c.at + 1) % len(c.items)
			return v
		})
	case "reset":
		return method(member, c, func(p params) any {
			p.count(0, 0)
			c.at = 0
			return nil
		})
	}
	return undefined{member}
}
