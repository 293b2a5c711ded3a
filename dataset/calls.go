package dataset

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/snug-ml/snug/chat"
)

// calls gives the template the calls of functions.
func (f *rows) calls(m *turn, name string, x value) error {
	if text, ok := x.(string); ok {
		p, err := f.parse(text)
		if err != nil {
			return fmt.Errorf("%s is a string that is no JSON: %w", name, err)
		}
		x = p
	}
	items, ok := x.(list)
	if !ok {
		return fmt.Errorf("%s is %s, want a list", name, kindOf(x))
	}
	for i, item := range items {
		if err := f.call(m, fmt.Sprintf("%s[%d]", name, i), item); err != nil {
			return err
		}
	}
	return nil
}

// call gives the template one call, or those of a list, each with or without its frame.
func (f *rows) call(m *turn, name string, x value) error {
	if text, ok := x.(string); ok {
		p, err := f.parseCall(text)
		if err != nil {
			return fmt.Errorf("%s is a string that is no JSON: %w", name, err)
		}
		x = p
	}
	if items, ok := x.(list); ok {
		for _, item := range items {
			if err := f.call(m, name, item); err != nil {
				return err
			}
		}
		return nil
	}
	o, ok := x.(object)
	if !ok {
		return fmt.Errorf("%s is %s, want an object with name and arguments", name, kindOf(x))
	}
	o = withoutNulls(o).(object)
	inner, framed := get[object](o, "function")
	if !framed {
		inner = o
		o = object{{"type", "function"}}
		if id, found := inner.text("id"); found {
			o = append(o, member{"id", id})
		}
	}
	function, found := inner.text("name")
	if !found {
		return fmt.Errorf("%s has no name of a function", name)
	}
	arguments, found := inner.get("arguments")
	if !found {
		arguments, found = inner.get("parameters")
	}
	if !found {
		arguments = object{}
	}
	arguments, err := f.arguments(arguments)
	if err != nil {
		return fmt.Errorf("%s: arguments of %s: %w", name, shortened(function), err)
	}
	o = with(o, "function", object{{"name", function}, {"arguments", arguments}})
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
		return x, nil
	}
	return nil, fmt.Errorf("%s, want an object", kindOf(x))
}

// callText makes the content of a turn that is a call of a function its tool call.
func (f *rows) callText(m *turn) error {
	text := m.Content
	m.Content, m.NoContent = "", true
	return f.call(m, "the call of a function", text)
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
			writeJSON(b, m.name)
			b.WriteString(": ")
			writeJSON(b, m.value)
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
