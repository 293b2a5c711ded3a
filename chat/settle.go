package chat

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"

	"github.com/snug-ml/snug/internal/jinja"
)

// settle returns the conversation in the form that the template writes, and its text with the marks of {% generation %}. A
// template that cannot use what it is given, or loses it, gets another form of the same:
//
//   - arguments of calls as an object where a text of JSON would be written as a text within JSON, and as a text where an
//     object would be written as Python does;
//   - content as a list of one text where a template iterates over parts, and writes nothing of a string;
//   - empty content where a template writes None for null;
//   - ids of calls of functions where a template refuses those that are given, or that there are none. made says so.
//
// The error is that of the conversation as it was given.
func (t *Template) settle(c Conversation, prompt bool) (settled Conversation, text string, made bool, err error) {
	if t != nil && t.wantsParts() {
		c, _ = inParts(c)
	}
	settled, text, err = t.adapt(c, prompt)
	if err == nil {
		return settled, text, false, nil
	}
	if other, found := numbered(c); found {
		if other, text, bad := t.adapt(other, prompt); bad == nil {
			return other, text, true, nil
		}
	}
	return settled, text, false, err
}

// adapt is settle with the ids that are given.
func (t *Template) adapt(c Conversation, prompt bool) (Conversation, string, error) {
	text, err := t.render(c, prompt)
	for _, form := range []struct {
		change func(Conversation) (Conversation, bool)
		wanted func() bool
		better func(other string) bool
	}{
		{objects, func() bool { return !hasArguments(text, c) }, func(string) bool { return true }},
		{texts, func() bool { return python.MatchString(text) }, func(other string) bool {
			return len(python.FindAllString(other, -1)) < len(python.FindAllString(text, -1))
		}},
		{emptied, func() bool { return strings.Contains(text, "None") }, func(other string) bool { return strings.Count(other, "None") < strings.Count(text, "None") }},
	} {
		if err == nil && !form.wanted() {
			continue
		}
		changed, found := form.change(c)
		if !found {
			continue
		}
		if other, bad := t.render(changed, prompt); bad == nil && (err != nil || form.better(other)) {
			c, text, err = changed, other, nil
		}
	}
	return c, text, err
}

// python is how Python writes an object whose first key is a name.
var python = regexp.MustCompile(`\{'\w+': `)

// hasArguments reports whether a text has all texts of arguments as they are, and not within the quotes of JSON.
func hasArguments(text string, c Conversation) bool {
	has := true
	eachArguments(c, func(v any) any {
		if s, ok := v.(string); ok {
			has = has && strings.Contains(text, s) && !strings.Contains(text, `"`+s+`"`)
		}
		return v
	})
	return has
}

// objects returns the conversation with arguments as objects where they are texts of objects.
func objects(c Conversation) (Conversation, bool) {
	found := false
	c = eachArguments(c, func(v any) any {
		if s, ok := v.(string); ok {
			if o, err := Value([]byte(s)); err == nil {
				if o, ok := o.(Object); ok {
					found = true
					return o
				}
			}
		}
		return v
	})
	return c, found
}

// texts returns the conversation with arguments as texts of JSON where they are objects, with spaces as json.dumps has them.
func texts(c Conversation) (Conversation, bool) {
	found := false
	c = eachArguments(c, func(v any) any {
		o, ok := v.(Object)
		if !ok {
			return v
		}
		text, err := dump(o)
		if err != nil {
			return v
		}
		found = true
		return text
	})
	return c, found
}

// dumps is a template of a value in JSON.
var dumps, _ = jinja.Parse("{{ v | tojson }}")

func dump(v any) (string, error) {
	value, err := given(v, 0)
	if err != nil {
		return "", err
	}
	return dumps.Render(map[string]any{"v": value})
}

// eachArguments returns the conversation with f of the arguments of each call.
func eachArguments(c Conversation, f func(any) any) Conversation {
	change := func(o Object) Object {
		o = append(Object(nil), o...)
		for i := range o {
			if o[i].Name == "arguments" {
				o[i].Value = f(o[i].Value)
			}
		}
		return o
	}
	call := func(v any) any {
		o, ok := v.(Object)
		if !ok {
			return v
		}
		o = change(o)
		for i := range o {
			if inner, ok := o[i].Value.(Object); ok && o[i].Name == "function" {
				o[i].Value = change(inner)
			}
		}
		return o
	}
	messages := append([]Message(nil), c.Messages...)
	for i, m := range messages {
		for j, field := range m.Fields {
			switch field.Name {
			case "tool_calls":
				list, ok := field.Value.([]any)
				if !ok {
					continue
				}
				list = append([]any(nil), list...)
				for k := range list {
					list[k] = call(list[k])
				}
				messages[i].Fields = append(Object(nil), messages[i].Fields...)
				messages[i].Fields[j].Value = list
			case "function_call":
				messages[i].Fields = append(Object(nil), messages[i].Fields...)
				messages[i].Fields[j].Value = call(field.Value)
			}
		}
	}
	c.Messages = messages
	return c
}

// wantsParts reports whether the template writes a question only if its content is a list of one text.
func (t *Template) wantsParts() bool {
	t.asked.Do(func() {
		const question = "question"
		c := Conversation{Messages: []Message{{Role: "user", Content: question}}}
		text, err := t.render(c, false)
		if err == nil && strings.Contains(text, question) {
			return
		}
		c, _ = inParts(c)
		text, err = t.render(c, false)
		t.inParts = err == nil && strings.Contains(text, question)
	})
	return t.inParts
}

// inParts returns the conversation with contents as lists of one text.
func inParts(c Conversation) (Conversation, bool) {
	messages, found := append([]Message(nil), c.Messages...), false
	for i, m := range messages {
		if _, has := m.Fields.Get("content"); !has && !m.NoContent {
			found = true
			messages[i].Fields = append(Object{{"content", []any{Object{{"type", "text"}, {"text", m.Content}}}}}, m.Fields...)
			messages[i].Content = ""
		}
	}
	c.Messages = messages
	return c, found
}

// emptied returns the conversation with empty content in place of null.
func emptied(c Conversation) (Conversation, bool) {
	messages, found := append([]Message(nil), c.Messages...), false
	for i := range messages {
		found = found || messages[i].NoContent
		messages[i].NoContent = false
	}
	c.Messages = messages
	return c, found
}

// who names a message.
func (l *labeler) who(i int) string {
	return fmt.Sprintf("message %d (%.40s)", i, l.c.Messages[i].Role)
}

// quoted is the beginning of a text, in quotation marks.
func quoted(text string) string {
	const most = 60
	runes := []rune(text)
	if len(runes) > most {
		text = string(runes[:most]) + "…"
	}
	b, err := json.Marshal(text)
	if err != nil {
		return fmt.Sprintf("%q", text)
	}
	return strings.NewReplacer(`\u003c`, "<", `\u003e`, ">", `\u0026`, "&").Replace(string(b))
}
