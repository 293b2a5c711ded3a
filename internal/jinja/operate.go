package jinja

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// arithmetic computes an operator of two sides.
func arithmetic(op string, a, b any) any {
	if op == "~" {
		x, y := str(a), str(b)
		sized(len(x) + len(y))
		return x + y
	}
	for _, v := range [...]any{a, b} {
		if u, ok := v.(undefined); ok {
			fail("%.40q is undefined", u.name)
		}
	}
	if s, ok := a.(string); ok && op == "%" {
		return format(s, b)
	}
	if m, ok := integer(a); ok {
		if n, ok := integer(b); ok {
			return whole2(op, m, n)
		}
	}
	if x, ok := numeric(a); ok {
		if y, ok := numeric(b); ok {
			return real2(op, x, y)
		}
	}
	switch op {
	case "+":
		if x, ok := a.(string); ok {
			if y, ok := b.(string); ok {
				sized(len(x) + len(y))
				return x + y
			}
		}
		if x, ok := a.(*list); ok {
			if y, ok := b.(*list); ok && x.tuple == y.tuple {
				sum := limited(slices.Concat(x.items, y.items))
				sum.tuple = x.tuple
				return sum
			}
		}
	case "*":
		if _, ok := a.(int); ok {
			a, b = b, a
		}
		if n, ok := b.(int); ok {
			switch a := a.(type) {
			case string:
				return repeat(a, n)
			case *list:
				n = max(0, n)
				if n > 0 && len(a.items) > maxItems/n {
					fail("a list has more than %d items", maxItems)
				}
				return &list{items: slices.Repeat(a.items, n), tuple: a.tuple}
			}
		}
	}
	fail("%s of a %s and a %s is not supported", op, typeName(a), typeName(b))
	return nil
}

// repeat returns n copies of a text.
func repeat(s string, n int) string {
	if n = max(0, n); len(s) > 0 && n > maxText/len(s) {
		sized(maxText + 1)
	}
	return strings.Repeat(s, n)
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
	if power := math.Pow(x, y); b < 0 {
		return power
	} else {
		return exact(int(power), power)
	}
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
		return x - y*math.Floor(x/y)
	}
	return math.Pow(x, y)
}

// format is Python's % on a text, with the conversions s, r, d, i, f, x and %.
func format(s string, v any) string {
	values := []any{v}
	if t, ok := v.(*list); ok && t.tuple {
		values = t.items
	}
	var b strings.Builder
	for {
		i := strings.IndexByte(s, '%')
		if i < 0 {
			b.WriteString(s)
			break
		}
		b.WriteString(s[:i])
		flags := s[i+1 : i+1+len(s[i+1:])-len(strings.TrimLeft(s[i+1:], "0123456789.+- "))]
		s = s[i+1+len(flags):]
		if s == "" || len(flags) > 5 {
			fail("a format of %% is not supported")
		}
		conversion := s[0]
		s = s[1:]
		if conversion == '%' {
			b.WriteByte('%')
			continue
		}
		if len(values) == 0 {
			fail("%% has fewer values than its text needs")
		}
		v := values[0]
		values = values[1:]
		x, isNumber := numeric(v)
		switch {
		case conversion == 's':
			fmt.Fprintf(&b, "%"+flags+"s", str(v))
		case conversion == 'r':
			fmt.Fprintf(&b, "%"+flags+"s", repr(v, 0))
		case isNumber && (conversion == 'd' || conversion == 'i'):
			fmt.Fprintf(&b, "%"+flags+"d", int(x))
		case isNumber && conversion == 'f':
			fmt.Fprintf(&b, "%"+flags+"f", x)
		case isNumber && conversion == 'x':
			fmt.Fprintf(&b, "%"+flags+"x", int(x))
		default:
			fail("%%%c of a %s is not supported", conversion, typeName(v))
		}
		sized(b.Len())
	}
	if len(values) > 0 && !(len(values) == 1 && typeName(values[0]) == "dict") {
		fail("%% has more values than its text takes")
	}
	return b.String()
}

// subscript is object[key].
func subscript(object, key any) any {
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
			r := []rune(o)
			if n < 0 {
				n += len(r)
			}
			if n >= 0 && n < len(r) {
				return string(r[n])
			}
			return undefined{"a character of a text"}
		}
	case *dict:
		if v, found := o.get(key); found {
			return v
		}
	}
	if member, ok := key.(string); ok {
		return attribute(object, member)
	}
	return undefined{str(key)}
}

// slice is object[from:to:step].
func slice(object any, at [3]any) any {
	var runes []rune
	n := 0
	switch o := object.(type) {
	case string:
		runes = []rune(o)
		n = len(runes)
	case *list:
		n = len(o.items)
	default:
		fail("a part of a %s is not supported", typeName(object))
	}
	bound := func(i, standard int) int {
		v, ok := integer(at[i])
		if at[i] == nil {
			return standard
		} else if !ok {
			fail("a slice by a %s", typeName(at[i]))
		}
		return v
	}
	step := bound(2, 1)
	if step == 0 {
		fail("a slice with a step of 0")
	}
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
	var places []int
	for i := from; step > 0 && i < to || step < 0 && i > to; {
		places = append(places, i)
		if step > n || step < -n {
			break
		}
		i += step
	}
	if runes != nil || typeName(object) == "text" {
		var b strings.Builder
		for _, i := range places {
			b.WriteRune(runes[i])
		}
		return b.String()
	}
	o := object.(*list)
	part := &list{tuple: o.tuple}
	for _, i := range places {
		part.items = append(part.items, o.items[i])
	}
	return part
}

// attribute is object.member.
func attribute(object any, member string) any {
	switch o := object.(type) {
	case undefined:
		fail("%.40q is undefined", o.name)
	case string:
		if m, found := textMethods[member]; found {
			return Func(func(args []any, named map[string]any) (any, error) {
				return m(o, params{member, args, named}), nil
			})
		}
	case *dict:
		if m, found := dictMethods[member]; found {
			return Func(func(args []any, named map[string]any) (any, error) {
				return m(o, params{member, args, named}), nil
			})
		}
		if v, found := o.get(member); found {
			return v
		}
	case *namespace:
		if v, found := o.get(member); found {
			return v
		}
	case *loop:
		return o.attribute(member)
	case *list:
		switch member {
		case "index", "count":
			return Func(func(args []any, named map[string]any) (any, error) {
				return o.find(member, params{member, args, named}), nil
			})
		case "append", "extend", "insert", "pop", "remove", "clear", "sort", "reverse":
			fail("%s of a list is not allowed", member)
		}
	}
	return undefined{member}
}

func (l *list) find(member string, p params) any {
	p.count(1, 1)
	n, first := 0, -1
	for i, item := range l.items {
		if equal(item, p.values[0]) {
			n++
			if first < 0 {
				first = i
			}
		}
	}
	if member == "count" {
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
	case "cycle":
		return Func(func(args []any, _ map[string]any) (any, error) {
			if len(args) == 0 {
				fail("cycle has no values")
			}
			return args[l.at%len(args)], nil
		})
	case "depth", "depth0", "changed":
		fail("loop.%s is not supported", member)
	}
	return undefined{"loop." + member}
}
