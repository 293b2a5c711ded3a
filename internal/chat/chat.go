// Package chat renders conversations with the chat templates of published tokenizers, as transformers'
// apply_chat_template does.
//
//	template, err := chat.Parse(tok.Config())
//	text, err := template.Render([]chat.Message{{Role: "user", Content: "Hello"}}, true)
//
// A template is written in Jinja2, and package gonja executes it. It sees the variables messages, bos_token, eos_token,
// pad_token, unk_token and add_generation_prompt; tools and documents are None. It cannot read files. A rendered
// conversation has at most 16 MiB, and a loop over numbers at most 65,536 steps. Where gonja is known to differ from
// Jinja2, the package returns an error.
package chat

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/nikolalohinski/gonja/v2/builtins"
	"github.com/nikolalohinski/gonja/v2/config"
	"github.com/nikolalohinski/gonja/v2/exec"
	"github.com/nikolalohinski/gonja/v2/loaders"
	"github.com/nikolalohinski/gonja/v2/logging"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/tokenizer"
)

// Message is one turn of a conversation.
type Message struct {
	Role    string `json:"role"` // system, user, assistant, or another that the template knows
	Content string `json:"content"`
}

// Template is a chat template.
type Template struct {
	parsed *exec.Template
	names  map[string]any // values of bos_token and the other special tokens
	marks  bool           // the template has {% generation %} around what the assistant writes
}

// Limits of a template.
const (
	maxText  = 16 << 20 // bytes of a rendered conversation
	maxRange = 1 << 16  // steps of a loop over numbers
)

// The marks that replace {% generation %} and {% endgeneration %} around what the assistant writes. They are
// noncharacters of Unicode, and messages that have them are refused.
const (
	beginMark = "\ufdd0"
	endMark   = "\ufdd1"
)

// generation matches {% generation %} and {% endgeneration %}, tags of transformers that Jinja2 does not have, with the
// white space that Jinja2 removes around tags of blocks.
var generation = regexp.MustCompile(`(?m)(^[ \t]*)?\{%([-+]?)\s*(end)?generation\s*([-+]?)%\}\n?`)

// silence turns off gonja's log on the standard error.
var silence = sync.OnceFunc(func() { logging.SetEnabled(false) })

// Parse parses the ChatTemplate of a tokenizer. The error wraps [snug.ErrConfig] when the tokenizer has no template, or
// a template that cannot be parsed.
func Parse(c tokenizer.Config) (*Template, error) {
	silence()
	if c.ChatTemplate == "" {
		return nil, fmt.Errorf("chat: the tokenizer has no chat template: %w", snug.ErrConfig)
	}
	t := &Template{names: map[string]any{"bos_token": c.BOS, "eos_token": c.EOS, "pad_token": c.Pad, "unk_token": c.Unknown}}
	text := generation.ReplaceAllStringFunc(c.ChatTemplate, func(tag string) string {
		t.marks = true
		m := generation.FindStringSubmatch(tag)
		mark, before, after := beginMark, m[2], m[4]
		if m[3] != "" {
			mark = endMark
		}
		newline := ""
		if after == "" && !strings.HasSuffix(tag, "\n") || after != "" && strings.HasSuffix(tag, "\n") {
			newline = tag[len(strings.TrimSuffix(tag, "\n")):]
		}
		return "{{" + strings.TrimPrefix(before, "+") + ` "` + mark + `" ` + strings.TrimPrefix(after, "+") + "}}" + newline
	})
	settings := config.New()
	settings.TrimBlocks, settings.LeftStripBlocks = true, true
	if err := t.parse(text, settings); err != nil {
		return nil, fmt.Errorf("chat: the chat template: %w: %w", err, snug.ErrConfig)
	}
	return t, nil
}

func (t *Template) parse(text string, settings *config.Config) (err error) {
	defer caught(&err)
	t.parsed, err = exec.NewTemplate("chat_template", settings, onlyItself(text), environment())
	if err != nil {
		err = errors.New(firstLine(err)) // the other lines repeat the template
	}
	return err
}

// caught makes an error of a panic of gonja.
func caught(err *error) {
	if r := recover(); r != nil {
		*err = fmt.Errorf("gonja: %v", r)
	}
}

func firstLine(err error) string {
	lines := strings.Split(strings.TrimSpace(err.Error()), "\n")
	return lines[len(lines)-1]
}

// Marks reports whether the template marks what the assistant writes by {% generation %}.
func (t *Template) Marks() bool { return t.marks }

// Render returns the text of a conversation. With prompt the text ends where the assistant's next turn begins: the
// template's add_generation_prompt. The error wraps [snug.ErrConfig]; it has the message of a template that calls
// raise_exception.
func (t *Template) Render(messages []Message, prompt bool) (string, error) {
	text, err := t.render(messages, prompt)
	if err != nil {
		return "", fmt.Errorf("chat: %w", err)
	}
	return strings.NewReplacer(beginMark, "", endMark, "").Replace(text), nil
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
		i := strings.IndexAny(marked, beginMark+endMark)
		if i < 0 {
			break
		}
		b.WriteString(marked[:i])
		if strings.HasPrefix(marked[i:], beginMark) {
			open = b.Len()
		} else if open >= 0 {
			spans, open = append(spans, [2]int{open, b.Len()}), -1
		}
		marked = marked[i+len(beginMark):]
	}
	b.WriteString(marked)
	return b.String(), spans, nil
}

func (t *Template) render(messages []Message, prompt bool) (text string, err error) {
	defer caught(&err)
	list := make([]any, len(messages))
	for i, m := range messages {
		if strings.ContainsAny(m.Content, beginMark+endMark) {
			return "", fmt.Errorf("message %d has the noncharacter U+FDD0 or U+FDD1: %w", i, snug.ErrConfig)
		}
		list[i] = map[string]any{"role": m.Role, "content": m.Content}
	}
	values := map[string]any{"messages": list, "add_generation_prompt": prompt, "tools": nil, "documents": nil}
	for name, v := range t.names {
		values[name] = v
	}
	out := &limited{}
	if err := t.parsed.Execute(out, exec.NewContext(values)); err != nil {
		return "", fmt.Errorf("%s: %w", firstLine(err), snug.ErrConfig)
	}
	return out.String(), nil
}

// limited is a buffer that refuses more than maxText bytes.
type limited struct{ bytes.Buffer }

func (l *limited) Write(b []byte) (int, error) {
	if l.Len()+len(b) > maxText {
		return 0, fmt.Errorf("the conversation has more than %d bytes of text", maxText)
	}
	return l.Buffer.Write(b)
}

func (l *limited) WriteString(s string) (int, error) { return l.Write([]byte(s)) }

// onlyItself is a loader of templates that has this one and reads no files.
type onlyItself string

func (o onlyItself) Read(path string) (io.Reader, error) {
	if path != "chat_template" {
		return nil, fmt.Errorf("it includes %q, and a chat template is alone", path)
	}
	return strings.NewReader(string(o)), nil
}

func (o onlyItself) Resolve(path string) (string, error)    { return path, nil }
func (o onlyItself) Inherit(string) (loaders.Loader, error) { return o, nil }

// environment has the functions and filters that templates may use: gonja's and those that transformers adds.
var environment = sync.OnceValue(func() *exec.Environment {
	functions := exec.NewContext(map[string]any{
		"raise_exception": func(message string) (string, error) { return "", errors.New(message) },
		"strftime_now":    strftime,
		"range":           numbers,
	})
	filters := exec.NewFilterSet(map[string]exec.FilterFunction{}).Update(builtins.Filters)
	_ = filters.Replace("tojson", toJSON) // fails only if gonja has no tojson
	return &exec.Environment{
		Context: exec.EmptyContext().Update(builtins.GlobalFunctions).Update(builtins.GlobalVariables).Update(functions),
		Filters: filters, Tests: builtins.Tests, ControlStructures: builtins.ControlStructures, Methods: builtins.Methods,
	}
})

// numbers is Python's range, of at most maxRange numbers.
func numbers(_ *exec.Evaluator, params *exec.VarArgs) ([]int, error) {
	var n [3]int
	if len(params.Args) < 1 || len(params.Args) > 3 {
		return nil, errors.New("range takes 1 to 3 integers")
	}
	for i, a := range params.Args {
		if !a.IsInteger() {
			return nil, errors.New("range takes integers")
		}
		n[i] = a.Integer()
	}
	start, stop, step := n[0], n[1], 1
	switch len(params.Args) {
	case 1:
		start, stop = 0, n[0]
	case 3:
		step = n[2]
	}
	if step == 0 {
		return nil, errors.New("range with a step of 0")
	}
	list := []int{}
	for i := start; step > 0 && i < stop || step < 0 && i > stop; i += step {
		if len(list) == maxRange {
			return nil, fmt.Errorf("range has more than %d numbers", maxRange)
		}
		list = append(list, i)
	}
	return list, nil
}

// toJSON writes a text, a number, a boolean or None as transformers' tojson does.
func toJSON(_ *exec.Evaluator, in *exec.Value, _ *exec.VarArgs) *exec.Value {
	if in.IsError() {
		return in
	}
	if !in.IsString() && !in.IsNumber() && !in.IsBool() && !in.IsNil() {
		return exec.AsValue(errors.New("tojson of a list or an object is not supported"))
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(in.Interface()); err != nil {
		return exec.AsValue(err)
	}
	return exec.AsSafeValue(strings.TrimSuffix(b.String(), "\n"))
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
