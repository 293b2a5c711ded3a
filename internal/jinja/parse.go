package jinja

import (
	"slices"
	"strconv"
	"strings"
)

type parser struct {
	tokens []token
	next   int
	depth  int
	loops  int
	marks  bool
}

// expr computes a value.
type expr func(*state) any

func (p *parser) line() int { return p.tokens[p.next].line }

func (p *parser) at(k kind, texts ...string) bool {
	t := p.tokens[p.next]
	return t.kind == k && (k == end || len(texts) == 0 || slices.Contains(texts, t.text))
}

// found takes a token if it is there.
func (p *parser) found(k kind, text string) bool {
	if !p.at(k, text) {
		return false
	}
	p.next++
	return true
}

func (p *parser) want(k kind, what string) string {
	t := p.tokens[p.next]
	if t.kind != k || what != "" && t.text != what && k == operator {
		if what == "" {
			what = "a name"
		}
		fail("line %d: %.40q where %s is expected", t.line, t.text, what)
	}
	p.next++
	return t.text
}

func (p *parser) op(what string) { p.want(operator, what) }

// deeper bounds what lies within another.
func (p *parser) deeper() func() {
	if p.depth++; p.depth > maxNested {
		fail("line %d: more than %d parts within another", p.line(), maxNested)
	}
	return func() { p.depth-- }
}

// expression parses a value, with a condition or not.
func (p *parser) expression() expr {
	defer p.deeper()()
	value := p.or()
	for p.found(name, "if") {
		then, test, other := value, p.or(), expr(func(*state) any { return undefined{"the condition's other value"} })
		if p.found(name, "else") {
			other = p.expression()
		}
		value = func(s *state) any {
			if truth(test(s)) {
				return then(s)
			}
			return other(s)
		}
	}
	return value
}

func (p *parser) or() expr {
	a := p.and()
	for p.found(name, "or") {
		left, right := a, p.and()
		a = func(s *state) any {
			if v := left(s); truth(v) {
				return v
			}
			return right(s)
		}
	}
	return a
}

func (p *parser) and() expr {
	a := p.not()
	for p.found(name, "and") {
		left, right := a, p.not()
		a = func(s *state) any {
			if v := left(s); !truth(v) {
				return v
			}
			return right(s)
		}
	}
	return a
}

func (p *parser) not() expr {
	if p.found(name, "not") {
		defer p.deeper()()
		a := p.not()
		return func(s *state) any { return !truth(a(s)) }
	}
	return p.compare()
}

// compare parses a chain of comparisons. The chain is true if every comparison is.
func (p *parser) compare() expr {
	first := p.binary(0)
	var ops []string
	var rest []expr
	for {
		op := p.tokens[p.next].text
		switch {
		case p.at(operator, "==", "!=", "<", "<=", ">", ">="), p.at(name, "in"):
			p.next++
		case p.at(name, "not") && p.tokens[p.next+1].kind == name && p.tokens[p.next+1].text == "in":
			op = "not in"
			p.next += 2
		default:
			if ops == nil {
				return first
			}
			return func(s *state) any {
				left := first(s)
				for i, op := range ops {
					right := rest[i](s)
					if !holds(op, left, right) {
						return false
					}
					left = right
				}
				return true
			}
		}
		ops, rest = append(ops, op), append(rest, p.binary(0))
	}
}

// levels are the operators with two sides, from loose to tight.
var levels = [][]string{{"+", "-"}, {"~"}, {"*", "/", "//", "%"}, {"**"}}

func (p *parser) binary(level int) expr {
	if level == len(levels) {
		return p.unary(true)
	}
	a := p.binary(level + 1)
	for p.at(operator, levels[level]...) {
		op := p.want(operator, "")
		left, right := a, p.binary(level+1)
		a = func(s *state) any {
			s.step()
			return arithmetic(op, left(s), right(s))
		}
	}
	return a
}

func (p *parser) unary(filters bool) expr {
	defer p.deeper()()
	var a expr
	switch {
	case p.found(operator, "-"):
		v := p.unary(false)
		a = func(s *state) any { return arithmetic("-", 0, v(s)) }
	case p.found(operator, "+"):
		v := p.unary(false)
		a = func(s *state) any { return arithmetic("+", 0, v(s)) }
	default:
		a = p.postfix(p.primary())
	}
	for filters {
		switch {
		case p.found(operator, "|"):
			a = p.filter(a)
		case p.found(name, "is"):
			a = p.test(a)
		case p.at(operator, "("):
			a = p.call(a)
		default:
			return a
		}
	}
	return a
}

func constant(v any) expr { return func(*state) any { return v } }

func (p *parser) primary() expr {
	t := p.tokens[p.next]
	p.next++
	switch t.kind {
	case name:
		switch t.text {
		case "true", "True":
			return constant(true)
		case "false", "False":
			return constant(false)
		case "none", "None":
			return constant(nil)
		}
		return func(s *state) any { s.step(); return s.lookup(t.text) }
	case text:
		whole := t.text
		for p.at(text) {
			whole += p.want(text, "a text")
		}
		return constant(whole)
	case whole:
		n, err := strconv.ParseInt(t.text, 0, 0)
		if strings.Trim(t.text, "0") != "" && t.text[0] == '0' && !hex.MatchString(t.text) || err != nil {
			fail("line %d: the number %.40q is not supported", t.line, t.text)
		}
		return constant(int(n))
	case real:
		x, err := strconv.ParseFloat(t.text, 64)
		if err != nil {
			fail("line %d: the number %.40q is not supported", t.line, t.text)
		}
		return constant(x)
	case operator:
		switch t.text {
		case "(":
			if p.found(operator, ")") {
				return constant(&list{tuple: true})
			}
			v := p.tuple(p.expression, ")")
			p.op(")")
			return v
		case "[":
			items := p.items(p.expression, "]")
			p.op("]")
			return func(s *state) any { return &list{items: all(s, items)} }
		case "{":
			return p.dict()
		}
	}
	fail("line %d: %.40q where a value is expected", t.line, t.text)
	return nil
}

func all(s *state, items []expr) []any {
	s.step()
	values := make([]any, len(items))
	for i, item := range items {
		values[i] = item(s)
	}
	return values
}

// items parses values with commas between them, up to an operator.
func (p *parser) items(one func() expr, closing string) (list []expr) {
	for !p.at(operator, closing) {
		list = append(list, one())
		if !p.found(operator, ",") {
			break
		}
	}
	return list
}

// tuple parses one value, or several with commas.
func (p *parser) tuple(one func() expr, closing string) expr {
	first := one()
	if !p.found(operator, ",") {
		return first
	}
	items := []expr{first}
	for !p.at(operator, closing) && !p.at(endTag) && !p.at(endPrint) {
		items = append(items, one())
		if !p.found(operator, ",") {
			break
		}
	}
	return func(s *state) any { return &list{items: all(s, items), tuple: true} }
}

func (p *parser) dict() expr {
	var keys, values []expr
	for !p.at(operator, "}") {
		keys = append(keys, p.expression())
		p.op(":")
		values = append(values, p.expression())
		if !p.found(operator, ",") {
			break
		}
	}
	p.op("}")
	return func(s *state) any {
		d := &dict{}
		for i := range keys {
			d.set(keys[i](s), values[i](s))
		}
		return d
	}
}

// postfix parses members, subscripts and calls.
func (p *parser) postfix(a expr) expr {
	for {
		object := a
		switch {
		case p.found(operator, "."):
			if p.at(whole) {
				n, _ := strconv.Atoi(p.want(whole, "a number"))
				a = func(s *state) any { return subscript(object(s), n) }
				continue
			}
			member := p.want(name, "")
			a = func(s *state) any { s.step(); return attribute(object(s), member) }
		case p.found(operator, "["):
			a = p.subscript(object)
		case p.at(operator, "("):
			a = p.call(object)
		default:
			return a
		}
	}
}

func (p *parser) subscript(object expr) expr {
	var bounds [3]expr
	n, sliced := 0, false
	for !p.at(operator, "]") {
		if p.found(operator, ":") {
			sliced = true
			if n++; n == 3 {
				fail("line %d: a slice has more than three parts", p.line())
			}
			continue
		}
		if bounds[n] != nil {
			break
		}
		bounds[n] = p.tuple(p.expression, "]")
	}
	p.op("]")
	if !sliced && bounds[0] == nil {
		fail("line %d: a subscript is empty", p.line())
	}
	return func(s *state) any {
		s.step()
		v := object(s)
		if !sliced {
			return subscript(v, bounds[0](s))
		}
		var at [3]any
		for i, b := range bounds {
			if b != nil {
				at[i] = b(s)
			}
		}
		return slice(v, at)
	}
}

// arguments are those of a call, a filter or a test.
type arguments struct {
	values []expr
	names  []string
	named  []expr
}

func (p *parser) arguments() (a arguments) {
	p.op("(")
	for !p.at(operator, ")") {
		if p.at(name) && p.tokens[p.next+1].kind == operator && p.tokens[p.next+1].text == "=" {
			a.names = append(a.names, p.want(name, ""))
			p.op("=")
			a.named = append(a.named, p.expression())
		} else {
			if a.names != nil {
				fail("line %d: an argument without a name follows one with a name", p.line())
			}
			a.values = append(a.values, p.expression())
		}
		if !p.found(operator, ",") {
			break
		}
	}
	p.op(")")
	return a
}

func (a arguments) compute(s *state) (values []any, named map[string]any) {
	values = all(s, a.values)
	if a.names != nil {
		named = map[string]any{}
		for i, n := range a.names {
			named[n] = a.named[i](s)
		}
	}
	return values, named
}

func (p *parser) call(function expr) expr {
	a := p.arguments()
	line := p.line()
	return func(s *state) any {
		s.step()
		f := function(s)
		values, named := a.compute(s)
		return s.invoke(f, values, named, line)
	}
}

func (s *state) invoke(f any, values []any, named map[string]any, line int) any {
	if s.depth++; s.depth > maxNested {
		fail("line %d: more than %d calls within another", line, maxNested)
	}
	defer func() { s.depth-- }()
	switch f := f.(type) {
	case *macro:
		return f.call(s, values, named)
	case Func:
		v, err := f(values, named)
		if err != nil {
			panic(failure{err})
		}
		return v
	case undefined:
		fail("line %d: %.40q is undefined", line, f.name)
	}
	fail("line %d: a %s is not a function", line, typeName(f))
	return nil
}

func (p *parser) filter(a expr) expr {
	line, of := p.line(), p.want(name, "")
	f, known := filters[of]
	if !known {
		fail("line %d: the filter %.40q is not known", line, of)
	}
	var args arguments
	if p.at(operator, "(") {
		args = p.arguments()
	}
	return func(s *state) any {
		s.step()
		v := a(s)
		values, named := args.compute(s)
		return f(s, v, params{of, values, named})
	}
}

func (p *parser) test(a expr) expr {
	negated := p.found(name, "not")
	line, of := p.line(), p.want(name, "")
	f, known := tests[of]
	if !known {
		fail("line %d: the test %.40q is not known", line, of)
	}
	var args arguments
	switch {
	case p.at(operator, "("):
		args = p.arguments()
	case p.at(text), p.at(whole), p.at(real), p.at(operator, "[", "{"),
		p.at(name) && !p.at(name, "else", "or", "and", "if", "is", "in", "not", "recursive"):
		args.values = []expr{p.postfix(p.primary())}
	}
	return func(s *state) any {
		s.step()
		v := a(s)
		values, named := args.compute(s)
		return f(v, params{of, values, named}) != negated
	}
}
