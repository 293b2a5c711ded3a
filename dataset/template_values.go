package dataset

import (
	"encoding/json"
	"fmt"

	"github.com/snug-ml/snug/chat"
)

// variablesOf returns the variables of the template.
func variablesOf(v *view) (values chat.Object, err error) {
	kwargs := v.take("chat_template_kwargs")
	if text, ok := kwargs.(string); ok && !empty(kwargs) {
		if kwargs, err = v.parse(text); err != nil {
			return nil, fmt.Errorf("chat_template_kwargs is a string, want an object: %w", err)
		}
	}
	if !empty(kwargs) {
		o, ok := kwargs.(object)
		if !ok {
			return nil, fmt.Errorf("chat_template_kwargs is %s, want an object", kindOf(kwargs))
		}
		for _, m := range o {
			switch m.Name {
			case "messages", "tools", "add_generation_prompt", "continue_final_message", "chat_template":
				return nil, fmt.Errorf("chat_template_kwargs has %s, which a row cannot set", m.Name)
			}
			if err := exact(m.Value); err != nil {
				return nil, at("chat_template_kwargs."+m.Name, err)
			}
			if m.Value != nil {
				values = append(values, chat.Field{Name: m.Name, Value: jinjaValue(m.Value)})
			}
		}
	}
	for _, name := range variables {
		x := v.take(name)
		if yes, known := truth(x); known && name == "enable_thinking" {
			x = yes
		}
		if err := exact(x); err != nil {
			return nil, at(name, err)
		}
		if !empty(x) || x == false {
			values = append(values, chat.Field{Name: name, Value: jinjaValue(x)})
		}
	}
	return values, nil
}

// toolsOf returns the tools of a row: a list, or the text of one, of functions with or without their frame.
func (p parser) toolsOf(name string, x value) (tools []any, err error) {
	if empty(x) {
		return nil, nil
	}
	written := false // as a text of JSON, whose nulls are its own
	if text, ok := x.(string); ok {
		written = true
		if x, err = p.parse(text); err != nil {
			return nil, fmt.Errorf("%s is a string that is no JSON, want a list of functions: %w", name, err)
		}
	}
	if o, ok := x.(object); ok {
		x = list{o}
	}
	items, ok := x.(list)
	if !ok {
		return nil, fmt.Errorf("%s is %s, want a list of functions", name, kindOf(x))
	}
	for i, item := range items {
		itself := written
		if text, ok := item.(string); ok {
			itself = true
			if item, err = p.parse(text); err != nil {
				return nil, fmt.Errorf("%s: tool %d is a string that is no JSON: %w", name, i, err)
			}
		}
		o, ok := item.(object)
		if !ok {
			return nil, fmt.Errorf("%s: tool %d is %s, want an object", name, i, kindOf(item))
		}
		if !itself {
			o = withoutNulls(o).(object)
		}
		if err := exact(o); err != nil {
			return nil, fmt.Errorf("%s: tool %d: %w", name, i, err)
		}
		if inner, _ := o.Get("function"); inner == nil {
			if _, named := textOf(o, "name"); !named {
				return nil, fmt.Errorf("%s: tool %d has neither function nor name", name, i)
			}
			o = object{{Name: "type", Value: "function"}, {Name: "function", Value: o}}
		}
		if o, err = p.parsed(o, "parameters"); err != nil {
			return nil, fmt.Errorf("%s: tool %d: %w", name, i, err)
		}
		tools = append(tools, jinjaValue(o))
	}
	return tools, nil
}

// parsed returns an object whose function has the member of this name as an object, where it is the text of one.
func (p parser) parsed(o object, name string) (object, error) {
	inner, ok := get[object](o, "function")
	if !ok {
		return o, nil
	}
	text, ok := textOf(inner, name)
	if !ok || empty(text) {
		return o, nil
	}
	x, err := p.parse(text)
	if err == nil {
		err = exact(x)
	}
	if _, ok := x.(object); err == nil && !ok {
		err = fmt.Errorf("%s, want an object", kindOf(x))
	}
	if err != nil {
		return nil, fmt.Errorf("%s is a string that is no JSON of an object: %w", name, err)
	}
	return with(o, "function", with(inner, name, x)), nil
}

// withoutNulls returns a value without the members that are null: columns of structs have the members of all rows.
func withoutNulls(x value) value {
	switch x := x.(type) {
	case object:
		o := object{}
		for _, m := range x {
			if m.Value != nil {
				o = append(o, member{Name: m.Name, Value: withoutNulls(m.Value)})
			}
		}
		return o
	case list:
		l := make(list, len(x))
		for i, e := range x {
			l[i] = withoutNulls(e)
		}
		return l
	}
	return x
}

// jinjaValue returns a value as package chat has it. What it has no value for, which [exact] finds, is a text.
func jinjaValue(x value) any {
	switch x := x.(type) {
	case json.Number:
		if n, err := x.Int64(); err == nil {
			return n
		}
		if isInteger(string(x)) {
			return x
		}
		if n, err := x.Float64(); err == nil {
			return n
		}
		return string(x)
	case literal:
		return string(x)
	case foreign:
		return string(x)
	case list:
		l := make([]any, len(x))
		for i, e := range x {
			l[i] = jinjaValue(e)
		}
		return l
	case object:
		o := chat.Object{}
		for _, m := range x {
			o = append(o, chat.Field{Name: m.Name, Value: jinjaValue(m.Value)})
		}
		return o
	}
	return x
}
