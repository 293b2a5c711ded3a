package dataset

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/snug-ml/snug/chat"
)

// calls gives the template the calls of functions.
func (f *rows) calls(m *turn, name string, x value) error {
	written := false
	if text, ok := x.(string); ok {
		p, err := f.parse(text)
		if err != nil {
			return fmt.Errorf("%s is a string that is no JSON: %w", name, err)
		}
		x, written = p, true
	}
	items, ok := x.(list)
	if !ok {
		return fmt.Errorf("%s is %s, want a list", name, kindOf(x))
	}
	for i, item := range items {
		if err := f.callOf(m, fmt.Sprintf("%s[%d]", name, i), item, written); err != nil {
			return err
		}
	}
	return nil
}

// call gives the template one call, or those of a list, each with or without its frame.
func (f *rows) call(m *turn, name string, x value) error { return f.callOf(m, name, x, false) }

// callOf is call for a value that was read from a text of JSON, whose nulls are its own, or not.
func (f *rows) callOf(m *turn, name string, x value, written bool) error {
	if text, ok := x.(string); ok {
		p, err := f.parseCall(text)
		if err != nil {
			return fmt.Errorf("%s is a string that is no JSON: %w", name, err)
		}
		x, written = p, true
	}
	if items, ok := x.(list); ok {
		for _, item := range items {
			if err := f.callOf(m, name, item, written); err != nil {
				return err
			}
		}
		return nil
	}
	o, ok := x.(object)
	if !ok {
		return fmt.Errorf("%s is %s, want an object with name and arguments", name, kindOf(x))
	}
	inner, framed := get[object](o, "function")
	if !framed {
		inner = o
	}
	function, found := textOf(inner, "name")
	if !found || strings.TrimSpace(function) == "" {
		return fmt.Errorf("%s has no name of a function", name)
	}
	arguments, err := f.argumentsOf(name, inner, written)
	if err != nil {
		return err
	}
	frame := object{{Name: "type", Value: "function"}}
	if framed {
		if err := f.callMembers(name, o, "function", "id", "type", "index"); err != nil {
			return err
		}
		frame = withoutNulls(o).(object)
	} else if id, found := textOf(inner, "id"); found {
		frame = append(frame, member{Name: "id", Value: id})
	}
	if err := f.callMembers(name, inner, slices.Concat(argumentNames, []string{"name", "id", "type", "index"})...); err != nil {
		return err
	}
	o = frame
	arguments, err = f.arguments(arguments)
	if err == nil {
		err = exact(arguments)
	}
	if err != nil {
		return fmt.Errorf("%s: arguments of %s: %w", name, shortened(function), err)
	}
	o = with(o, "function", object{{Name: "name", Value: function}, {Name: "arguments", Value: arguments}})
	if m.Role != "assistant" {
		return fmt.Errorf("%s of the role %s, want assistant", name, m.Role)
	}
	old, _ := m.Fields.Get("tool_calls")
	all, _ := old.([]any)
	all = append(all, jinjaValue(o))
	for i := range m.Fields {
		if m.Fields[i].Name == "tool_calls" {
			m.Fields[i].Value = all
			return nil
		}
	}
	m.Fields = append(m.Fields, chat.Field{Name: "tool_calls", Value: all})
	return nil
}

// argumentNames are the members of a call that hold its arguments, as programs name them.
var argumentNames = []string{"arguments", "parameters", "args", "input"}

// argumentsOf returns the arguments of a call, nil for none, without members that are null unless they were written.
func (f *rows) argumentsOf(name string, call object, written bool) (x value, err error) {
	found, by := false, ""
	for _, as := range argumentNames {
		v, there := call.Get(as)
		if !there || v == nil {
			continue
		}
		if found {
			return nil, fmt.Errorf("%s: both %s and %s, want one", name, by, as)
		}
		x, by, found = v, as, true
	}
	o, ok := x.(object)
	if !ok || written {
		return x, nil
	}
	less := withoutNulls(o).(object)
	if f.found.Kind != "Parquet" && !reflect.DeepEqual(o, less) {
		f.warn(f.at, "nulls", "%s: members of arguments that are null are left out, as tables have them for those of other rows; arguments that are a text of JSON keep theirs", name)
	}
	return less, nil
}

// callMembers lists the members of a call that nothing reads. It is an error if one of them may say what is learned, or what
// the arguments are.
func (f *rows) callMembers(name string, o object, known ...string) error {
	var own []string
	arguments := false
	for _, m := range o {
		arguments = arguments || slices.Contains(argumentNames, m.Name) || m.Name == "function"
		if slices.Contains(known, m.Name) || empty(m.Value) {
			continue
		}
		if decides(m.Name) {
			return fmt.Errorf("%s has %s, which may say whether it is learned: write train into the message, or remove it", name, readable(m.Name))
		}
		if slices.Contains(known, usual(m.Name)) {
			return fmt.Errorf("%s: %s: names are exact: write %s, or remove it", name, readable(m.Name), usual(m.Name))
		}
		own = append(own, m.Name)
	}
	if len(own) > 0 && !arguments {
		return fmt.Errorf("%s has no arguments; its members are %s: write them as arguments, {} for none", name, listed(namesOf(o)))
	}
	for _, n := range own {
		f.ignore("messages.tool_calls." + n)
	}
	return nil
}

// arguments returns the arguments of a call: an object, or the text of one. An empty text is none.
func (p parser) arguments(x value) (value, error) {
	switch x := x.(type) {
	case nil:
		return object{}, nil
	case object:
		return x, nil
	case string:
		if empty(x) {
			return object{}, nil
		}
		parsed, err := p.parse(x)
		if err != nil {
			return nil, fmt.Errorf("%s is no JSON, want an object: %w", shortJSON(x), err)
		}
		if _, ok := parsed.(object); !ok {
			return nil, fmt.Errorf("%s is %s, want an object", shortJSON(x), kindOf(parsed))
		}
		return x, exact(parsed)
	}
	return nil, fmt.Errorf("%s, want an object", kindOf(x))
}

// callText makes the content of a turn that is a call of a function its tool call, if the template writes calls. Else it stays
// the turn's text.
func (f *rows) callText(m *turn) error {
	if !f.reader.knows().calls {
		return nil
	}
	text := m.Content
	m.Content, m.NoContent = "", true
	return f.call(m, "the call of a function", text)
}

// twice warns of tools that the system message describes besides, and of calls of them that are texts.
func (f *rows) twice(at string, c chat.Conversation) {
	if len(c.Tools) == 0 || !f.reader.knows().tools {
		return
	}
	system := ""
	for i, m := range c.Messages {
		if m.Role == "system" || m.Role == "developer" {
			system += m.Content
		}
		if m.Role == "assistant" && !m.Untrained && f.reader.knows().calls && f.areCalls(m.Content) {
			f.warn(at, "calls as text", "message %d (assistant) is calls of functions in JSON, beside tools, and is learned as that text: tool_calls are written as the chat template does", i)
		}
	}
	for _, tool := range c.Tools {
		o, _ := tool.(chat.Object)
		inner, _ := o.Get("function")
		function, _ := inner.(chat.Object)
		name, _ := function.Get("name")
		text, _ := name.(string)
		if text != "" && regexp.MustCompile(`["']name["']\s*:\s*["']`+regexp.QuoteMeta(text)+`["']`).MatchString(system) {
			f.warn(at, "tools twice", "the system message describes the tool %.40q, and the chat template writes the tools of the row, too: they are there twice; -map tools= leaves these out", text)
			return
		}
	}
}

// areCalls reports whether a text is the JSON of a call of a function, or of a list of them.
func (p parser) areCalls(text string) bool {
	if text = strings.TrimSpace(text); !strings.HasPrefix(text, "[") && !strings.HasPrefix(text, "{") {
		return false
	}
	x, err := p.parse(text)
	l, isList := x.(list)
	if !isList {
		l = list{x}
	}
	return err == nil && len(l) > 0 && !slices.ContainsFunc(l, func(e value) bool {
		o, _ := e.(object)
		_, named := textOf(o, "name")
		_, called := o.Get("arguments")
		return !named || !called
	})
}

// jsonText writes a value as JSON, with the blanks that Python's json.dumps writes.
func jsonText(x value) string {
	var b strings.Builder
	writeJSON(&b, x)
	return b.String()
}

func writeJSON(b *strings.Builder, x value) {
	switch x := x.(type) {
	case object:
		b.WriteByte('{')
		for i, m := range x {
			if i > 0 {
				b.WriteString(", ")
			}
			writeJSON(b, m.Name)
			b.WriteString(": ")
			writeJSON(b, m.Value)
		}
		b.WriteByte('}')
	case list:
		b.WriteByte('[')
		for i, e := range x {
			if i > 0 {
				b.WriteString(", ")
			}
			writeJSON(b, e)
		}
		b.WriteByte(']')
	case literal:
		b.WriteString(string(x))
	default:
		var text bytes.Buffer
		e := json.NewEncoder(&text)
		e.SetEscapeHTML(false)
		if e.Encode(x) == nil { // a string, a number, a boolean or null
			b.Write(bytes.TrimSpace(text.Bytes()))
		}
	}
}

// parseCall parses the JSON of a call. Some sets write the arguments as JSON in single quotes.
func (p parser) parseCall(text string) (value, error) {
	x, err := p.parse(text)
	if err == nil {
		return x, nil
	}
	before, rest, found := strings.Cut(text, `'{`)
	arguments, after, closed := cutLast(rest, `}'`)
	if !found || !closed {
		return nil, err
	}
	inner, bad := p.parse("{" + arguments + "}")
	if bad != nil {
		return nil, err
	}
	outer, bad := p.parse(before + "null" + after)
	o, ok := outer.(object)
	if bad != nil || !ok {
		return nil, err
	}
	return with(o, "arguments", inner), nil
}

func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}
