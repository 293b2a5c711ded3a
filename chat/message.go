package chat

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"regexp"
	"strconv"
	"strings"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/jinja"
)

// Conversation is what a template is given, as transformers' apply_chat_template gives it.
type Conversation struct {
	Messages []Message
	// Tools are descriptions of functions, as JSON has them: objects with the keys type and function. Nil is none.
	Tools []any
	// Values are further variables of the template, such as enable_thinking. They cannot replace messages, tools and
	// add_generation_prompt; they replace special tokens of the same name.
	Values Object
}

// Message is a turn of a conversation. A template sees it as a dict with the keys role and content and those of Fields.
type Message struct {
	Role    string // system, user, assistant, tool, or another that the template knows
	Content string
	// NoContent says that the content is null, as that of a turn of tool calls often is. Content is then empty.
	NoContent bool
	// Fields are the further keys, in order: name, tool_calls, tool_call_id, reasoning_content and others. As in transformers,
	// a template sees the reasoning of an answer, the first of reasoning_content, thinking and reasoning, as
	// reasoning_content, and as thinking if there is none.
	Fields Object
	// Untrained says of an assistant's turn that nothing of it is learned: Label gives it no Turn. Templates do not see it.
	Untrained bool
}

// Object is a JSON object in the order of its keys, which templates and tojson keep. Read one with [json.Unmarshal] or [Value].
type Object []Field

// Field is a key of an Object and its value.
type Field struct {
	Name string
	// Value is nil, a bool, an int, an int64, a float64, a json.Number that is an integer, a string, a []any of such values, or
	// an Object.
	Value any
}

// Get returns the value of a key, and whether there is such a key.
func (o Object) Get(name string) (value any, found bool) {
	for _, f := range o {
		if f.Name == name {
			return f.Value, true
		}
	}
	return nil, false
}

// set replaces the value of a key, or adds it.
func (o *Object) set(name string, value any) {
	for i := range *o {
		if (*o)[i].Name == name {
			(*o)[i].Value = value
			return
		}
	}
	*o = append(*o, Field{name, value})
}

// UnmarshalJSON reads an object. Of a repeated key the last value counts, at the place of the first, as in Python.
func (o *Object) UnmarshalJSON(text []byte) error {
	v, err := Value(text)
	if err != nil {
		return err
	}
	object, ok := v.(Object)
	if !ok && v != nil {
		return fmt.Errorf("chat: %.40q, want an object: %w", text, snug.ErrCorrupt)
	}
	*o = object
	return nil
}

// MarshalJSON writes the object in the order of its keys.
func (o Object) MarshalJSON() ([]byte, error) {
	b := []byte{'{'}
	for i, f := range o {
		if i > 0 {
			b = append(b, ',')
		}
		for j, v := range []any{f.Name, f.Value} {
			var text bytes.Buffer
			e := json.NewEncoder(&text)
			e.SetEscapeHTML(false)
			if err := e.Encode(v); err != nil {
				return nil, err
			}
			if j == 1 {
				b = append(b, ':')
			}
			b = append(b, bytes.TrimSpace(text.Bytes())...)
		}
	}
	return append(b, '}'), nil
}

// maxDepth is how many lists and objects may lie within another.
const maxDepth = 100

// Value reads a JSON value as an [Object] holds it: objects keep their order, whole numbers are int64, or json.Number if they
// have more than 64 bits, and others float64.
// Errors wrap [snug.ErrCorrupt].
func Value(text []byte) (any, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	v, err := value(d, 0)
	if err == nil {
		if _, more := d.Token(); !errors.Is(more, io.EOF) {
			err = errors.New("more than one value")
		}
	}
	if err != nil {
		return nil, fmt.Errorf("chat: %w: %w", err, snug.ErrCorrupt)
	}
	return v, nil
}

func value(d *json.Decoder, depth int) (any, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("more than %d values within another", maxDepth)
	}
	token, err := d.Token()
	if err != nil {
		return nil, err
	}
	switch token {
	case json.Delim('['):
		list := []any{}
		for d.More() {
			v, err := value(d, depth+1)
			if err != nil {
				return nil, err
			}
			list = append(list, v)
		}
		_, err = d.Token()
		return list, err
	case json.Delim('{'):
		o, at := Object{}, map[string]int{}
		for d.More() {
			key, err := d.Token()
			if err != nil {
				return nil, err
			}
			v, err := value(d, depth+1)
			if err != nil {
				return nil, err
			}
			name := key.(string)
			i, found := at[name]
			if !found {
				i, at[name] = len(o), len(o)
				o = append(o, Field{Name: name})
			}
			o[i].Value = v
		}
		_, err = d.Token()
		return o, err
	}
	if n, ok := token.(json.Number); ok {
		if whole, err := n.Int64(); err == nil {
			return whole, nil
		}
		if !strings.ContainsAny(string(n), ".eE") {
			return n, nil
		}
		x, err := n.Float64()
		if err != nil || math.IsInf(x, 0) {
			return nil, fmt.Errorf("the number %.40s is too large", n)
		}
		return x, nil
	}
	return token, nil
}

// integer matches the integers of JSON.
var integer = regexp.MustCompile(`^-?(0|[1-9][0-9]*)$`)

// given returns a value as package jinja has it.
func given(v any, depth int) (any, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("more than %d values within another: %w", maxDepth, snug.ErrConfig)
	}
	switch v := v.(type) {
	case nil, bool, int, float64:
		return v, nil
	case string:
		if strings.ContainsAny(v, jinja.BeginMark+jinja.EndMark) {
			return nil, fmt.Errorf("a text has the noncharacter U+FDD0 or U+FDD1: %w", snug.ErrConfig)
		}
		return v, nil
	case int64:
		return jinja.Whole(strconv.FormatInt(v, 10)), nil
	case json.Number:
		if !integer.MatchString(string(v)) {
			return nil, fmt.Errorf("the json.Number %.40q, want an integer: %w", v, snug.ErrConfig)
		}
		return jinja.Whole(string(v)), nil
	case []any:
		list := make([]any, len(v))
		for i, item := range v {
			var err error
			if list[i], err = given(item, depth+1); err != nil {
				return nil, err
			}
		}
		return jinja.List(list...), nil
	case Object:
		pairs := make([]any, 0, 2*len(v))
		for _, f := range v {
			item, err := given(f.Value, depth+1)
			if err != nil {
				return nil, err
			}
			pairs = append(pairs, f.Name, item)
		}
		return jinja.Dict(pairs...), nil
	}
	return nil, fmt.Errorf("a value of type %T, want nil, bool, int, int64, float64, json.Number, string, []any or chat.Object: %w", v, snug.ErrConfig)
}
