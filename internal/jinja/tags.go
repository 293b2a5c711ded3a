package jinja

import "slices"

// nodes parses text and tags, up to a tag of one of the given names, or an else, elif or end of no tag here.
func (p *parser) nodes(ends ...string) (body []node) {
	defer p.deeper()()
	for {
		t := p.tokens[p.next]
		switch t.kind {
		case end:
			if len(ends) > 0 {
				failAt(t.line, "the template ends where %q is expected", ends)
			}
			return body
		case data:
			p.next++
			body = append(body, node{t.line, func(s *state) signal { s.write(t.text); return goOn }})
		case beginPrint:
			p.next++
			v := p.tuple(p.expression, "")
			if !p.found(endPrint, "") {
				failAt(p.line(), "%.40q where }} is expected", p.tokens[p.next].text)
			}
			body = append(body, node{t.line, func(s *state) signal { s.write(s.str(v(s))); return goOn }})
		default:
			p.next++
			if slices.Contains(ends, p.tokens[p.next].text) {
				return body
			}
			body = append(body, node{t.line, p.tag()})
		}
	}
}

// close takes the end of a tag.
func (p *parser) close() {
	if !p.found(endTag, "") {
		failAt(p.line(), "%.40q where %%} is expected", p.tokens[p.next].text)
	}
}

// until parses the body of a tag and its end.
func (p *parser) until(ending string) []node {
	p.close()
	body := p.nodes(ending)
	p.next++
	p.close()
	return body
}

func (p *parser) tag() func(*state) signal {
	line := p.line()
	switch of := p.want(name, ""); of {
	case "if":
		return p.ifTag()
	case "for":
		return p.forTag()
	case "set":
		return p.setTag()
	case "macro":
		return p.macroTag()
	case "call":
		return p.callTag()
	case "with":
		return p.withTag()
	case "filter":
		links := []link{p.filter()}
		for p.found(operator, "|") {
			links = append(links, p.filter())
		}
		v, body := linked(held, links), p.until("endfilter")
		return func(s *state) signal {
			s.held = s.capture(func() { s.run(body) })
			s.line = line
			s.write(s.str(v(s)))
			return goOn
		}
	case "generation":
		body := p.until("endgeneration")
		return func(s *state) signal {
			s.write(BeginMark)
			how := s.run(body)
			s.write(EndMark)
			return how
		}
	case "break", "continue":
		if p.loops == 0 {
			failAt(line, "the tag %s is outside of loops", of)
		}
		p.close()
		how := map[string]signal{"break": breakLoop, "continue": continueLoop}[of]
		return func(*state) signal { return how }
	default:
		failAt(line, "the tag %.40q is not known here", of)
		return nil
	}
}

func (p *parser) ifTag() func(*state) signal {
	type branch struct {
		test expr
		body []node
	}
	var branches []branch
	test := p.expression()
	for {
		p.close()
		body := p.nodes("elif", "else", "endif")
		branches = append(branches, branch{test, body})
		switch p.want(name, "") {
		case "elif":
			test = p.expression()
			continue
		case "else":
			branches = append(branches, branch{constant(true), p.until("endif")})
		default:
			p.close()
		}
		return func(s *state) signal {
			for _, b := range branches {
				if truth(b.test(s)) {
					return s.run(b.body)
				}
			}
			return goOn
		}
	}
}

// target is what a value is assigned to: a name, a member of a namespace, or several of them.
type target struct {
	name, member string
	several      []target
}

func (p *parser) target() target {
	defer p.deeper()()
	var list []target
	for {
		switch {
		case p.found(operator, "("):
			list = append(list, p.target())
			p.op(")")
		default:
			t := target{name: p.want(name, "")}
			if p.found(operator, ".") {
				t.member = p.want(name, "")
			}
			list = append(list, t)
		}
		if !p.found(operator, ",") {
			break
		}
		if !p.at(name) && !p.at(operator, "(") || p.at(name, "in") {
			return target{several: list}
		}
	}
	if len(list) == 1 {
		return list[0]
	}
	return target{several: list}
}

func (s *state) assign(t target, v any) {
	switch {
	case t.several != nil:
		values := s.iterate(v)
		if len(values) != len(t.several) {
			fail("%d values are assigned to %d names", len(values), len(t.several))
		}
		for i, one := range t.several {
			s.assign(one, values[i])
		}
	case t.member != "":
		n, ok := s.lookup(t.name).(*namespace)
		if !ok {
			fail("a member of %.40q is set, which is no namespace", t.name)
		}
		s.set(&n.dict, t.member, v)
	default:
		s.makes(sizeText)
		s.vars.names[t.name] = v
	}
}

// held is the text that a tag has captured for its filters.
func held(s *state) any { return s.held }

func (p *parser) setTag() func(*state) signal {
	to := p.target()
	if p.found(operator, "=") {
		v := p.tuple(p.expression, "")
		p.close()
		return func(s *state) signal { s.assign(to, v(s)); return goOn }
	}
	var links []link
	for p.found(operator, "|") {
		links = append(links, p.filter())
	}
	v, body := linked(held, links), p.until("endset")
	return func(s *state) signal {
		s.scope(s.vars, func() { s.held = s.capture(func() { s.run(body) }) })
		s.assign(to, v(s))
		return goOn
	}
}

func (p *parser) withTag() func(*state) signal {
	var targets []target
	var values []expr
	for !p.at(endTag) {
		targets = append(targets, target{name: p.want(name, "")})
		p.op("=")
		values = append(values, p.expression())
		if !p.found(operator, ",") {
			break
		}
	}
	body := p.until("endwith")
	return func(s *state) (how signal) {
		computed := all(s, values)
		s.scope(s.vars, func() {
			for i, t := range targets {
				s.assign(t, computed[i])
			}
			how = s.run(body)
		})
		return how
	}
}

func (p *parser) forTag() func(*state) signal {
	to := p.target()
	if !p.found(name, "in") {
		failAt(p.line(), "%.40q where in is expected", p.tokens[p.next].text)
	}
	over := p.tuple(p.or, "")
	var test expr
	if p.found(name, "if") {
		test = p.expression()
	}
	recursive := p.found(name, "recursive")
	p.close()
	p.loops++
	body := p.nodes("else", "endfor")
	p.loops--
	var otherwise []node
	if p.want(name, "") == "else" {
		otherwise = p.until("endfor")
	} else {
		p.close()
	}
	f := forLoop{to, test, body, otherwise}
	return func(s *state) signal {
		l := &loop{}
		if recursive {
			l.again = func(s *state, from *loop, items any) string {
				return s.capture(func() { f.run(s, items, &loop{again: from.again, depth: from.depth + 1}) })
			}
		}
		return f.run(s, over(s), l)
	}
}

// forLoop is a tag for.
type forLoop struct {
	to              target
	test            expr // nil for none
	body, otherwise []node
}

// run goes through the items of a value.
func (f forLoop) run(s *state, over any, l *loop) signal {
	l.items = s.iterate(over)
	s.roots = append(s.roots, l)
	if f.test != nil {
		outer := s.vars
		s.makes(len(l.items) * sizeText)
		l.items, l.rest, l.test = nil, l.items, func(item any) (is bool) {
			before := s.made
			s.scope(outer, func() {
				s.assign(f.to, item)
				is = truth(f.test(s))
			})
			s.began += s.made - before
			return is
		}
	}
	for how := goOn; how != breakLoop && l.has(l.at); l.at++ {
		s.step()
		s.began = s.made
		s.scope(s.vars, func() {
			s.vars.names["loop"] = l
			s.assign(f.to, l.items[l.at])
			how = s.run(f.body)
		})
	}
	s.roots = s.roots[:len(s.roots)-1]
	if len(l.items) == 0 {
		return s.run(f.otherwise)
	}
	return goOn
}

// repeatLoop is the text of a recursive loop over other items.
func (s *state) repeatLoop(l *loop, g given) string {
	params{s: s, of: "loop", given: g}.count(1, 1)
	if l.again == nil {
		fail("the loop is not recursive")
	}
	began, before := s.began, s.made
	s.pending += before - began
	text := l.again(s, l, g.values[0])
	s.pending -= before - began
	s.began = s.made - int64(len(text)) - (before - began)
	return text
}

// macro is a macro, or the body of a tag call.
type macro struct {
	name     string
	names    []string
	defaults []expr // nil for none
	body     []node
	home     *frame
	rest     map[string]bool // whether it uses varargs or kwargs
}

func (m *macro) call(s *state, g given) (text string) {
	s.scope(m.home, func() {
		names := s.vars.names
		names["caller"] = undefined{"caller"}
		for i, n := range m.names {
			v, found := g.named[n]
			switch {
			case i < len(g.values):
				v = g.values[i]
			case found:
			case m.defaults[i] != nil:
				v = m.defaults[i](s)
			default:
				v = undefined{n}
			}
			names[n] = v
		}
		more := g.values[min(len(m.names), len(g.values)):]
		switch {
		case m.rest["varargs"]:
			s.items(len(more))
			names["varargs"] = &list{slices.Clone(more), true}
		case len(more) > 0:
			fail("the macro %.40q has %d arguments, and %d are given", m.name, len(m.names), len(g.values))
		}
		others := &dict{}
		for _, n := range g.order {
			switch {
			case n == "caller":
				names[n] = g.named[n]
			case slices.Contains(m.names, n):
			case !m.rest["kwargs"]:
				fail("the macro %.40q has no argument %.40q", m.name, n)
			default:
				s.set(others, n, g.named[n])
			}
		}
		if m.rest["kwargs"] {
			names["kwargs"] = others
		}
		text = s.capture(func() { s.run(m.body) })
	})
	return text
}

// signature parses the names of arguments and their defaults.
func (p *parser) signature(m *macro) {
	p.op("(")
	for !p.at(operator, ")") {
		m.names = append(m.names, p.want(name, ""))
		var standard expr
		if p.found(operator, "=") {
			standard = p.expression()
		} else if n := len(m.defaults); n > 0 && m.defaults[n-1] != nil {
			failAt(p.line(), "an argument without a default follows one with a default")
		}
		m.defaults = append(m.defaults, standard)
		if !p.found(operator, ",") {
			break
		}
	}
	p.op(")")
}

// outside parses the body of a macro, which loops around it do not reach.
func (p *parser) outside(m *macro, ending string) {
	loops, rest := p.loops, p.rest
	p.loops, p.rest = 0, map[string]bool{}
	m.body, m.rest = p.until(ending), p.rest
	p.loops, p.rest = loops, rest
}

func (p *parser) macroTag() func(*state) signal {
	m := macro{name: p.want(name, "")}
	p.signature(&m)
	p.outside(&m, "endmacro")
	return func(s *state) signal {
		here := m
		here.home = s.vars
		s.makes(sizeKey)
		s.vars.names[m.name] = &here
		return goOn
	}
}

func (p *parser) callTag() func(*state) signal {
	m := macro{name: "caller"}
	if p.at(operator, "(") {
		p.signature(&m)
	}
	line, depth, first := p.line(), p.depth, p.primary()
	var links []link
	for p.found(operator, ".") {
		links = append(links, p.member())
	}
	function, args := linked(first, links), p.arguments()
	p.outside(&m, "endcall")
	return func(s *state) signal {
		f := function(s)
		g := args.compute(s)
		if g.named == nil {
			g.named = map[string]any{}
		}
		here := m
		here.home = s.vars
		g.named["caller"], g.order = &here, append(g.order, "caller")
		s.write(s.str(s.invoke(f, g, line, depth)))
		return goOn
	}
}
