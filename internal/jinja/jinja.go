// Package jinja renders templates in the language of Jinja2, as the chat templates of published
// tokenizers use it: expressions with the operators, methods, filters and tests of Python and
// Jinja2, and the tags for, if, set, macro, call, filter, with, raw, break, continue and generation.
//
//	t, err := jinja.Parse(text)
//	out, err := t.Render(map[string]any{"name": "World", "raise": jinja.Func(raise)})
//
// Values are nil, bool, int, float64, string, lists of [List], dicts of [Dict], and functions of [Func].
// White space is as with Jinja2's options trim_blocks and lstrip_blocks, which transformers sets.
//
// Templates are not trusted: they change nothing that they are given, and read no files. A template has at most 1 MiB.
// A rendering whose values have n bytes of text in v values takes at most 2^21 + 4n + 512v steps; a text has at most
// 4 MiB + 4n bytes, and the values that the template has made and still uses 16 MiB + 8n + 512v. Beyond 128 MiB and a million values these
// bounds grow no further. A step is an expression,
// an item that is compared, 8 bytes of a text that is looked at, or 256 bytes that are copied. Parts of a template,
// values and calls lie at most 200 deep within another.
//
// What the package lacks, such as inheritance and rare filters, is an error when a template is parsed.
package jinja

import (
	"fmt"
	"strings"
)

// Begin and end of what a generation tag surrounds, in the rendered text. They are noncharacters, which no
// text has.
const (
	BeginMark = "\ufdd0"
	EndMark   = "\ufdd1"
)

// Template is a parsed template. It is safe for concurrent use.
type Template struct {
	body []node
}

// Func is a function that a template may call, with its arguments by place and by name. Its errors are the errors of the
// rendering.
type Func func(args []any, named map[string]any) (any, error)

// failure is an error of a template on its way up.
type failure struct {
	error
	placed bool // the line is said, or the error is of a Func
}

func fail(format string, args ...any) {
	panic(failure{error: fmt.Errorf(format, args...)})
}

// failAt fails at a line of the template.
func failAt(line int, format string, args ...any) {
	panic(failure{fmt.Errorf("line %d: %w", line, fmt.Errorf(format, args...)), true})
}

// caught returns a failure as an error. A failure that does not say its line is at line, unless that is 0.
func caught(err *error, line *int) {
	switch r := recover().(type) {
	case nil:
	case failure:
		if *err = r.error; !r.placed && *line > 0 {
			*err = fmt.Errorf("line %d: %w", *line, r.error)
		}
	default:
		panic(r)
	}
}

// Parse parses a template. Errors say the line.
func Parse(text string) (t *Template, err error) {
	defer caught(&err, new(int))
	if len(text) > maxTemplate {
		fail("a template of %d bytes, want %d at most", len(text), maxTemplate)
	}
	p := &parser{tokens: lex(text)}
	t = &Template{body: p.nodes()}
	if p.at(end, "") {
		return t, nil
	}
	failAt(p.line(), "the tag %.40q has no beginning", p.tokens[p.next].text)
	return nil, nil
}

// Render returns the text of the template with values for names. Errors say the line of the template, except for errors of
// a [Func].
func (t *Template) Render(values map[string]any) (text string, err error) {
	s := &state{out: &strings.Builder{}}
	defer caught(&err, &s.line)
	s.bound(values)
	s.given = &frame{names: values, up: &frame{names: globals}}
	s.vars = &frame{names: map[string]any{}, up: s.given}
	s.run(t.body)
	return s.out.String(), nil
}

// state is a rendering.
type state struct {
	meter
	vars  *frame
	given *frame // the values that the caller gave
	out   *strings.Builder
	held  string // the text of a tag, for its filters
	roots []any  // frames and loops that wait for the running one
	line  int    // of the template
}

// frame holds the names of a scope.
type frame struct {
	names map[string]any
	up    *frame
}

func (s *state) lookup(name string) any {
	s.step()
	for f := s.vars; f != nil; f = f.up {
		if v, found := f.names[name]; found {
			return v
		}

	}
	return undefined{name}
}

// scope runs do with names of its own.
func (s *state) scope(up *frame, do func()) {
	s.makes(sizeFrame)
	outer := s.vars
	s.roots = append(s.roots, outer)
	s.vars = &frame{names: map[string]any{}, up: up}
	do()
	s.vars = outer
	s.roots = s.roots[:len(s.roots)-1]
}

// capture returns what do writes.
func (s *state) capture(do func()) string {
	outer := s.out
	s.writers += int64(outer.Len())
	s.out = &strings.Builder{}
	do()
	text := s.out.String()
	s.out = outer
	s.writers -= int64(outer.Len())
	return s.new(text)
}

func (s *state) write(text string) {
	s.sized(s.out.Len() + len(text))
	s.makes(len(text))
	s.out.WriteString(text)
}

// signal says how a tag ended.
type signal int

const (
	goOn signal = iota
	breakLoop
	continueLoop
)

// node is a piece of text or a tag.
type node struct {
	line int
	run  func(*state) signal
}

func (s *state) run(body []node) signal {
	for _, n := range body {
		s.step()
		s.line, s.began = n.line, s.made
		if how := n.run(s); how != goOn {
			return how
		}
	}
	return goOn
}
