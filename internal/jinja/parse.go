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
	rest   map[string]bool // whether the macro uses varargs or kwargs
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
		failAt(t.line, "%.40q where %s is expected", t.text, what)
	}
	p.next++
	return t.text
}

func (p *parser) op(what string) { p.want(operator, what) }

// deeper bounds what lies within another.
func (p *parser) deeper() func() {
	if p.depth++; p.depth > maxNested {
		failAt(p.line(), "more than %d parts within another", maxNested)
	}
	return func() { p.depth-- }
}

// expression parses a value, with a condition or not.
func (p *parser) expression() expr {
	defer p.deeper()()
	value := p.or()
	for p.found(name, "if") {
		defer p.deeper()()
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

func (p *parser) or() expr { return p.chain("or", p.and, true) }

func (p *parser) and() expr { return p.chain("and", p.not, false) }

// chain parses values with a word between them. The first whose truth is decides, or else the last, is the value.
func (p *parser) chain(word string, one func() expr, decides bool) expr {
	all := []expr{one()}
	for p.found(name, word) {
		all = append(all, one())
	}
	if len(all) == 1 {
		return all[0]
	}
	return func(s *state) (v any) {
		for _, e := range all {
			s.step()
			if v = e(s); truth(v) == decides {
				break
			}
		}
		return v
	}
}

func (p *parser) not() expr {
	if p.found(name, "not") {
		defer p.deeper()()
		a := p.not()
		return func(s *state) any { s.step(); return !truth(a(s)) }
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
					if !s.holds(op, left, right) {
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
	first, line := p.binary(level+1), p.line()
	var ops []string
	var rest []expr
	for p.at(operator, levels[level]...) {
		ops, rest = append(ops, p.want(operator, "")), append(rest, p.binary(level+1))
	}
	if ops == nil {
		return first
	}
	return func(s *state) any {
		v := first(s)
		for i, op := range ops {
			right := rest[i](s)
			s.step()
			s.line = line
			v = s.arithmetic(op, v, right)
		}
		return v
	}
}

// link is what follows a value: a member, a subscript, a call, a filter or a test.
type link func(s *state, v any) any

// linked is a value with what follows it.
func linked(first expr, links []link) expr {
	if links == nil {
		return first
	}
	return func(s *state) any {
		v := first(s)
		for _, l := range links {
			s.step()
			v = l(s, v)
		}
		return v
	}
}

func (p *parser) unary(filters bool) expr {
	defer p.deeper()()
	var first expr
	switch {
	case p.found(operator, "-"):
		v := p.unary(false)
		first = func(s *state) any { s.step(); return negative(v(s)) }
	case p.found(operator, "+"):
		v := p.unary(false)
		first = func(s *state) any { s.step(); return s.arithmetic("+", 0, v(s)) }
	default:
		first = p.postfix(p.primary())
	}
	var links []link
	for filters {
		switch {
		case p.found(operator, "|"):
			links = append(links, p.filter())
		case p.found(name, "is"):
			links = append(links, p.test())
		case p.at(operator, "("):
			links = append(links, p.call())
		default:
			return linked(first, links)
		}
	}
	return first
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
		if p.rest != nil && (t.text == "varargs" || t.text == "kwargs") {
			p.rest[t.text] = true
		}
		return func(s *state) any { return s.lookup(t.text) }
	case text:
		var whole strings.Builder
		whole.WriteString(t.text)
		for p.at(text) {
			whole.WriteString(p.want(text, "a text"))
		}
		return constant(whole.String())
	case whole:
		n, err := strconv.ParseInt(t.text, 0, 0)
		if strings.Trim(t.text, "0") != "" && t.text[0] == '0' && !hex.MatchString(t.text) || err != nil {
			failAt(t.line, "the number %.40q is not supported", t.text)
		}
		return constant(int(n))
	case real:
		x, err := strconv.ParseFloat(t.text, 64)
		if err != nil {
			failAt(t.line, "the number %.40q is not supported", t.text)
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
	failAt(t.line, "%.40q where a value is expected", t.text)
	return nil
}

func all(s *state, items []expr) []any {
	s.step()
	s.items(len(items))
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
		s.items(0)
		for i := range keys {
			s.step()
			key := keys[i](s)
			s.set(d, key, values[i](s))
		}
		return d
	}
}

// postfix parses members, subscripts and calls.
func (p *parser) postfix(first expr) expr {
	var links []link
	for {
		switch {
		case p.found(operator, "."):
			links = append(links, p.member())
		case p.found(operator, "["):
			links = append(links, p.subscript())
		case p.at(operator, "("):
			links = append(links, p.call())
		default:
			return linked(first, links)
		}
	}
}

// member parses the name or the number after a dot.
func (p *parser) member() link {
	line := p.line()
	if p.at(whole) {
		n, err := strconv.Atoi(p.want(whole, "a number"))
		if err != nil {
			failAt(line, "a subscript that is too large")
		}
		return func(s *state, v any) any { s.line = line; return s.subscript(v, n) }
	}
	member := p.want(name, "")
	return func(s *state, v any) any { s.line = line; return s.attribute(v, member) }
}

func (p *parser) subscript() link {
	line := p.line()
	var bounds [3]expr
	n, sliced := 0, false
	for !p.at(operator, "]") {
		if p.found(operator, ":") {
			sliced = true
			if n++; n == 3 {
				failAt(p.line(), "a slice has more than three parts")
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
		failAt(p.line(), "a subscript is empty")
	}
	return func(s *state, v any) any {
		var at [3]any
		for i, b := range bounds {
			if b != nil {
				at[i] = b(s)
			}
		}
		s.line = line
		if !sliced {
			return s.subscript(v, at[0])
		}
		return s.slice(v, at)
	}
}
