package chat

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"

	"github.com/snug-ml/snug/internal/jinja"
)

// settle returns the conversation in the form that the template writes, and its text with the marks of {% generation %}. A
// template that cannot use what it is given, or loses it, gets another form of the same:
//
//   - arguments of calls as an object where a text of JSON would be written as a text within JSON, or where the template
//     writes objects in a syntax of its own, and as a text where an object would be written as Python does;
//   - content as a list of one text where a template iterates over parts, and writes nothing of a string;
//   - empty content where a template writes None for null, and null where it writes no calls beside empty content;
//   - ids of calls of functions where a template refuses those that are given, or that there are none. made says so.
//
// The form with the fewest faults is taken, and of equal ones the first. The error is that of the conversation as it was
// given.
func (t *Template) settle(c Conversation, prompt bool) (settled Conversation, text string, made bool, err error) {
	if t != nil && t.wantsParts() {
		c, _ = inParts(c)
	}
	settled, text, err = t.adapt(c, prompt)
	if err == nil || errors.Is(err, jinja.ErrBound) {
		return settled, text, false, err
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
	if errors.Is(err, jinja.ErrBound) { // in every form, and each takes long
		return c, "", err
	}
	fewest := math.MaxInt
	if err == nil {
		fewest = t.faults(c, text, prompt)
	}
	unchanged := func(c Conversation) (Conversation, bool) { return c, true }
	given := c
	for _, content := range []func(Conversation) (Conversation, bool){unchanged, emptied, nulled} {
		for _, arguments := range []func(Conversation) (Conversation, bool){unchanged, objects, texts} {
			if fewest == 0 {
				break
			}
			changed, found := content(given)
			if !found {
				continue
			}
			if changed, found = arguments(changed); !found {
				continue
			}
			other, bad := t.render(changed, prompt)
			if bad != nil {
				continue
			}
			if n := t.faults(changed, other, prompt); n < fewest {
				c, text, err, fewest = changed, other, nil, n
			}
		}
	}
	if changed, found := objects(c); found && err == nil {
		if other, bad := t.render(changed, prompt); bad == nil && ownSyntax(changed, other) && t.faults(changed, other, prompt) <= fewest {
			c, text = changed, other
		}
	}
	return c, text, err
}

// python is how Python writes an object whose first key is a name.
var python = regexp.MustCompile(`\{'\w+': `)

// faults counts what is wrong in the text of a conversation: arguments within the quotes of JSON, or as Python writes
// them, None, and calls that are not there.
func (t *Template) faults(c Conversation, text string, prompt bool) (n int) {
	if !slices.ContainsFunc(c.Messages, func(m Message) bool { return m.NoContent || m.callsFunctions() }) {
		return 0
	}
	n = len(python.FindAllString(text, -1)) + strings.Count(text, "None")
	eachArguments(c, func(v any) any {
		if s, ok := v.(string); ok && (!strings.Contains(text, s) || strings.Contains(text, `"`+s+`"`)) {
			n++
		}
		return v
	})
	if slices.ContainsFunc(c.Messages, func(m Message) bool { return m.Content == "" && m.callsFunctions() }) {
		n += t.lostCalls(c, text, prompt)
	}
	return n
}

// lostCalls counts the names of functions in messages that are not in their text.
func (t *Template) lostCalls(c Conversation, text string, prompt bool) (n int) {
	m := marker{}
	marked := c
	marked.Messages = m.messages(c.Messages)
	has, known := map[int]bool{}, false
	if other, err := t.render(marked, prompt); err == nil {
		plain, hits := unmark(other)
		known = plain == text
		for _, h := range hits {
			has[h.number/2] = true
		}
	}
	for i, p := range m.parts {
		if p.isName() && (known && !has[i] || !known && !strings.Contains(text, p.text)) {
			n++
		}
	}
	return n
}

// ownSyntax reports whether a text has arguments that are objects neither in JSON nor as Python writes them.
func ownSyntax(c Conversation, text string) (own bool) {
	packed := strings.Join(strings.Fields(text), "")
	eachArguments(c, func(v any) any {
		if _, ok := v.(Object); !ok {
			return v
		}
		for _, template := range []*jinja.Template{dumps, represents} {
			value, err := given(v, 0)
			if err != nil {
				return v
			}
			have, err := template.Render(map[string]any{"v": value})
			if err != nil || strings.Contains(packed, strings.TrimSuffix(strings.Join(strings.Fields(have), ""), "]")) {
				return v
			}
		}
		own = true
		return v
	})
	return own
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
		t.inParts = err == nil && strings.Contains(text, question) && !strings.Contains(text, "'"+question+"'") && !strings.Contains(text, `"`+question+`"`)
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

// nulled returns the conversation with null in place of empty content beside calls.
func nulled(c Conversation) (Conversation, bool) {
	messages, found := slices.Clone(c.Messages), false
	for i, m := range messages {
		if _, has := m.Fields.Get("content"); !has && !m.NoContent && m.Content == "" && m.callsFunctions() {
			messages[i].NoContent, found = true, true
		}
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
