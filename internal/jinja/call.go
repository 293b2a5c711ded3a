package jinja

// arguments are those of a call, a filter or a test.
type arguments struct {
	values []expr
	names  []string
	named  []expr
	list   expr // *list: more values
	dict   expr // **dict: more names
}

func (p *parser) arguments() (a arguments) {
	p.op("(")
	for !p.at(operator, ")") {
		switch line := p.line(); {
		case a.list == nil && a.dict == nil && p.found(operator, "*"):
			a.list = p.expression()
		case a.dict == nil && p.found(operator, "**"):
			a.dict = p.expression()
		case a.dict == nil && p.at(name) && p.tokens[p.next+1].kind == operator && p.tokens[p.next+1].text == "=":
			a.names = append(a.names, p.want(name, ""))
			p.op("=")
			a.named = append(a.named, p.expression())
		case a.names != nil || a.list != nil || a.dict != nil:
			failAt(line, "an argument without a name follows one with a name, or *list or **dict")
		default:
			a.values = append(a.values, p.expression())
		}
		if !p.found(operator, ",") {
			break
		}
	}
	p.op(")")
	return a
}

// given are the arguments of a call.
type given struct {
	values []any
	named  map[string]any
	order  []string // of named
}

func (a arguments) compute(s *state) (g given) {
	values, named := []any(nil), map[string]any(nil)
	order := a.names[:len(a.names):len(a.names)]
	if a.values != nil {
		values = all(s, a.values)
	}
	if a.list != nil {
		more := s.iterate(a.list(s))
		s.items(len(values) + len(more))
		values = append(values, more...)
	}
	if a.names == nil && a.dict == nil {
		return given{values: values}
	}
	named = map[string]any{}
	s.makes(len(a.names) * sizeKey)
	for i, n := range a.names {
		named[n] = a.named[i](s)
	}
	if a.dict != nil {
		v := a.dict(s)
		d, ok := v.(*dict)
		if !ok {
			fail("%s after **, want a dict", typeName(v))
		}
		s.makes(len(d.keys) * sizeKey)
		for _, key := range d.keys {
			n, ok := key.(string)
			if _, twice := named[n]; twice || !ok {
				fail("the key %.40q after ** is no name, or is given twice", s.str(key))
			}
			s.step()
			named[n] = d.values[key]
			order = append(order, n)
		}
	}
	return given{values, named, order}
}

func (p *parser) call() link {
	a := p.arguments()
	line, depth := p.line(), p.depth
	return func(s *state, f any) any {
		return s.invoke(f, a.compute(s), line, depth)
	}
}

// invoke calls a function at a line, within a number of parts of the template.
func (s *state) invoke(f any, g given, line, depth int) (v any) {
	if s.depth++; s.depth > maxNested {
		failAt(line, "more than %d calls within another", maxNested)
	}
	if s.stack += depth; s.stack > maxStack {
		failAt(line, "more than %d parts within another in calls", maxStack)
	}
	s.line = line
	switch f := f.(type) {
	case *macro:
		v = s.macro(f, g)
	case *callable:
		v = f.do(params{s: s, of: f.name, given: g})
	case *loop:
		v = s.repeatLoop(f, g)
	case Func:
		v = s.outside(f, g)
	case undefined:
		failAt(line, "%.40q is undefined", f.name)
	default:
		failAt(line, "%s is not a function", a(f))
	}
	s.line = line
	s.depth--
	s.stack -= depth
	return v
}

// macro calls a macro. What the tag around the call has made stays in use until the macro returns.
func (s *state) macro(m *macro, g given) string {
	began, before := s.began, s.made
	s.pending += before - began
	text := m.call(s, g)
	s.pending -= before - began
	s.began = s.made - int64(len(text)) - (before - began)
	return text
}

// outside calls a function of the caller.
func (s *state) outside(f Func, g given) any {
	for _, v := range g.values {
		if text, ok := v.(string); ok {
			s.scan(4 * len(text))
		}
	}
	v, err := f(g.values, g.named)
	if err != nil {
		panic(failure{err, true})
	}
	if result, ok := v.(string); ok {
		s.text(len(result))
	}
	return v
}

func (p *parser) filter() link {
	line, of := p.line(), p.want(name, "")
	f, known := filters[of]
	if !known {
		failAt(line, "the filter %.40q is not known", of)
	}
	var args arguments
	if p.at(operator, "(") {
		args = p.arguments()
	}
	return func(s *state, v any) any {
		g := args.compute(s)
		s.line = line
		return f(s, v, params{s: s, of: of, given: g})
	}
}

func (p *parser) test() link {
	negated := p.found(name, "not")
	line, of := p.line(), p.want(name, "")
	f, known := tests[of]
	if !known {
		failAt(line, "the test %.40q is not known", of)
	}
	var args arguments
	switch {
	case p.at(operator, "("):
		args = p.arguments()
	case p.at(text), p.at(whole), p.at(real), p.at(operator, "[", "{"),
		p.at(name) && !p.at(name, "else", "or", "and", "if", "is", "in", "not", "recursive"):
		args.values = []expr{p.postfix(p.primary())}
	}
	return func(s *state, v any) any {
		g := args.compute(s)
		s.line = line
		return f(v, params{s: s, of: of, given: g}) != negated
	}
}
