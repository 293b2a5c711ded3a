// Package chat renders conversations with the chat templates of published tokenizers, as transformers'
// apply_chat_template does.
//
//	template, err := chat.Parse(tok.Config())
//	text, err := template.Render([]chat.Message{{Role: "user", Content: "Hello"}}, true)
//
// The language is that of package jinja. A template sees messages, the special tokens that the
// tokenizer has (bos_token, eos_token, pad_token and unk_token), and add_generation_prompt; tools
// and documents are none.
package chat

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/jinja"
	"github.com/snug-ml/snug/tokenizer"
)

// Message is one turn of a conversation.
type Message struct {
	Role    string `json:"role"` // system, user, assistant, or another that the template knows
	Content string `json:"content"`
}

// Template is a chat template.
type Template struct {
	parsed *jinja.Template
	names  map[string]any // of special tokens
}

// Parse parses the template of a tokenizer. The error wraps [snug.ErrConfig] when the tokenizer has
// none, or one that cannot be parsed.
func Parse(c tokenizer.Config) (*Template, error) {
	if c.ChatTemplate == "" {
		return nil, fmt.Errorf("chat: the tokenizer has no chat template: %w", snug.ErrConfig)
	}
	parsed, err := jinja.Parse(c.ChatTemplate)
	if err != nil {
		return nil, fmt.Errorf("chat: the chat template: %w: %w", err, snug.ErrConfig)
	}
	t := &Template{parsed: parsed, names: map[string]any{}}
	for name, token := range map[string]string{"bos_token": c.BOS, "eos_token": c.EOS, "pad_token": c.Pad, "unk_token": c.Unknown} {
		if token != "" {
			t.names[name] = token
		}
	}
	return t, nil
}

// Marks reports whether the template says what the assistant writes, by {% generation %}.
func (t *Template) Marks() bool { return t.parsed.Marks() }

// Render returns the text of a conversation. With prompt the text ends where the assistant's next turn begins: the
// template's add_generation_prompt. The error wraps [snug.ErrConfig]; it has the message of a template that calls
// raise_exception.
func (t *Template) Render(messages []Message, prompt bool) (string, error) {
	text, err := t.render(messages, prompt)
	if err != nil {
		return "", fmt.Errorf("chat: %w", err)
	}
	return strings.NewReplacer(jinja.BeginMark, "", jinja.EndMark, "").Replace(text), nil
}

// RenderMarked returns the text of a conversation, and the ranges [begin, end) of its bytes that the assistant writes.
// Without Marks there are no ranges. Errors are the errors of Render.
func (t *Template) RenderMarked(messages []Message) (text string, spans [][2]int, err error) {
	marked, err := t.render(messages, false)
	if err != nil {
		return "", nil, fmt.Errorf("chat: %w", err)
	}
	var b strings.Builder
	open := -1
	for {
		i := strings.IndexAny(marked, jinja.BeginMark+jinja.EndMark)
		if i < 0 {
			break
		}
		b.WriteString(marked[:i])
		if strings.HasPrefix(marked[i:], jinja.BeginMark) {
			open = b.Len()
		} else if open >= 0 {
			spans, open = append(spans, [2]int{open, b.Len()}), -1
		}
		marked = marked[i+len(jinja.BeginMark):]
	}
	b.WriteString(marked)
	return b.String(), spans, nil
}

func (t *Template) render(messages []Message, prompt bool) (string, error) {
	list := make([]any, len(messages))
	for i, m := range messages {
		if strings.ContainsAny(m.Content, jinja.BeginMark+jinja.EndMark) {
			return "", fmt.Errorf("message %d has the noncharacter U+FDD0 or U+FDD1: %w", i, snug.ErrConfig)
		}
		list[i] = jinja.Dict("role", m.Role, "content", m.Content)
	}
	values := map[string]any{"messages": jinja.List(list...), "add_generation_prompt": prompt, "tools": nil, "documents": nil,
		"raise_exception": function(func(message string) (string, error) { return "", errors.New(message) }),
		"strftime_now":    function(strftime)}
	for name, v := range t.names {
		values[name] = v
	}
	text, err := t.parsed.Render(values)
	if err != nil {
		return "", fmt.Errorf("%w: %w", err, snug.ErrConfig)
	}
	return text, nil
}

// function is a function of one text.
func function(f func(string) (string, error)) jinja.Func {
	return func(args []any, named map[string]any) (any, error) {
		if len(args) == 1 && len(named) == 0 {
			if text, ok := args[0].(string); ok {
				return f(text)
			}
		}
		return nil, errors.New("a function of the chat template takes one text")
	}
}

// strftime formats the present time as C's strftime does, with the directives that templates use.
func strftime(format string) (string, error) {
	now := time.Now()
	for code, layout := range map[string]string{"%d": "02", "%b": "Jan", "%B": "January", "%Y": "2006", "%m": "01", "%y": "06",
		"%H": "15", "%M": "04", "%S": "05", "%A": "Monday", "%a": "Mon"} {
		format = strings.ReplaceAll(format, code, now.Format(layout))
	}
	if strings.Contains(format, "%") {
		return "", fmt.Errorf("strftime_now of %q: a part of it is not supported", format)
	}
	return format, nil
}
