// Package jinja renders templates in the language of Jinja2, as the chat templates of published
// tokenizers use it: expressions with the operators, methods, filters and tests of Python and
// Jinja2, and the tags for, if, set, macro, call, filter, with, raw, break, continue and generation.
//
//	t, err := jinja.Parse(text)
//	out, err := t.Render(map[string]any{"name": "World", "raise": jinja.Func(raise)})
//
// Values are nil, bool, int, float64, string, lists of [List], dicts of [Dict], and functions of [Func].
// White space is as with Jinja2's options trim_blocks and lstrip_blocks, which transformers sets.
// Templates are not trusted: they change nothing that they are given, they read no files, and the
// steps of a rendering, the size of its values and the depth of calls are bounded.
//
// What the package lacks, such as inheritance and rare filters, is an error when a template is parsed.
package jinja

import (
	"fmt"
	"strings"
)

// Bounds of a template and of its rendering.
const (
	maxTokens = 1 << 17
	maxNested = 200      // expressions, tags and calls within another
	maxSteps  = 1 << 22  // expressions that are computed
	maxText   = 16 << 20 // bytes of a text
	maxItems  = 1 << 16  // of a list
)

// Begin and end of what a generation tag surrounds, in the rendered text. They are noncharacters, which no
// text has.
const (
	BeginMark = "\ufdd0"
	EndMark   = "\ufdd1"
)

// Template is a parsed template. It is safe for concurrent use.
type Template struct {
	body  []node
	marks bool
}

// Marks reports whether the template has a tag generation.
func (t *Template) Marks() bool { return t.marks }

// Func is a function that a template may call, with its arguments by place and by name.
type Func func(args []any, named map[string]any) (any, error)

// failure is an error of a template on its way up.
type failure struct{ error }

func fail(format string, args ...any) {
	panic(failure{fmt.Errorf(format, args...)})
}

// caught returns a failure as an error.
func caught(err *error) {
	switch r := recover().(type) {
	case nil:
	case failure:
		*err = r.error
	default:
		panic(r)
	}
}

// Parse parses a template.
func Parse(text string) (t *Template, err error) {
	defer caught(&err)
	p := &parser{tokens: lex(text)}
	t = &Template{body: p.nodes()}
	if p.at(end, "") {
		t.marks = p.marks
		return t, nil
	}
	fail("line %d: the tag %.40q has no beginning", p.line(), p.tokens[p.next].text)
	return nil, nil
}

// Render returns the text of the template with values for names.
func (t *Template) Render(values map[string]any) (text string, err error) {
	defer caught(&err)
	s := &state{vars: &frame{names: map[string]any{}, up: &frame{names: globals, up: nil}}, out: &strings.Builder{}}
	for name, v := range values {
		s.vars.names[name] = v
	}
	s.vars = &frame{names: map[string]any{}, up: s.vars}
	s.run(t.body)
	return s.out.String(), nil
}

// state is a rendering.
type state struct {
	vars  *frame
	out   *strings.Builder
	held  string // the text of a tag, for its filters
	steps int
	depth int
}

// frame holds the names of a scope.
type frame struct {
	names map[string]any
	up    *frame
}

func (s *state) lookup(name string) any {
	for f := s.vars; f != nil; f = f.up {
		if v, found := f.names[name]; found {
			return v
		}
	}
	return undefined{name}
}

// scope runs do with names of its own.
func (s *state) scope(up *frame, do func()) {
	outer := s.vars
	s.vars = &frame{names: map[string]any{}, up: up}
	do()
	s.vars = outer
}

// capture returns what do writes.
func (s *state) capture(do func()) string {
	outer := s.out
	s.out = &strings.Builder{}
	do()
	text := s.out.String()
	s.out = outer
	return text
}

func (s *state) step() {
	if s.steps++; s.steps > maxSteps {
		fail("the template takes more than %d steps", maxSteps)
	}
}

func (s *state) write(text string) {
	sized(s.out.Len() + len(text))
	s.out.WriteString(text)
}

// sized fails for a text that is too long.
func sized(n int) {
	if n > maxText || n < 0 {
		fail("more than %d bytes of text", maxText)
	}
}

// signal says how a tag ended.
type signal int

const (
	goOn signal = iota
	breakLoop
	continueLoop
)

// node is a piece of text or a tag.
type node func(*state) signal

func (s *state) run(body []node) signal {
	for _, n := range body {
		s.step()
		if how := n(s); how != goOn {
			return how
		}
	}
	return goOn
}
