// Package chat renders conversations with the chat templates of published tokenizers, as transformers'
// apply_chat_template does, and finds in the text what the assistant writes.
//
//	template, err := chat.Open(tok, chat.Options{})
//	c := chat.Conversation{Messages: []chat.Message{{Role: "user", Content: "Hello"}, {Role: "assistant", Content: "Hi"}}}
//	text, err := template.Render(c, true)      // ends where the assistant's next turn begins
//	labeled, err := template.Label(c)          // labeled.Turns are the bytes of labeled.Text to learn
//
// The language is that of Jinja2, as far as templates use it; what is not known is an error. A template sees messages, tools, add_generation_prompt, the special tokens that
// the tokenizer has (bos_token, eos_token, image_token and others, see [tokenizer.Config]), and the conversation's Values; documents are none.
package chat

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/jinja"
	"github.com/snug-ml/snug/tokenizer"
)

// Options say what a template cannot know. Their zero value is usable: the end of a turn is then the tokenizer's EOS.
type Options struct {
	// Ends are the texts of the tokens that end a turn when the model writes them, besides the tokenizer's EOS: those of
	// config.json and generation_config.json.
	Ends []string
	// Special are the texts of all special tokens. If no end follows an answer, the first of these does.
	Special []string
	// Now is the time that strftime_now formats, in its own time zone, in all renderings. Zero is the time of Parse.
	Now time.Time
	// Name selects one of the Config's Templates. The empty name is the default template, with tool_use, if there is
	// one, for conversations with tools, as in transformers.
	Name string
}

// Template is a chat template. It is safe for concurrent use.
type Template struct {
	parsed  *jinja.Template
	tools   *jinja.Template // for conversations with tools
	names   map[string]any  // of special tokens
	ends    []string
	special []string
	starts  [256]bool // the bytes with which special tokens begin
	now     time.Time
	clock   bool
	once    sync.Once
	learned traits // by once
	asked   sync.Once
	inParts bool // by asked
}

// Open is [Parse] with the tokenizer's special tokens, besides those of o.
func Open(tok *tokenizer.Tokenizer, o Options) (*Template, error) {
	o.Special = slices.Clone(o.Special)
	for id := range int32(tok.Len()) {
		if text, known := tok.Token(id); known && tok.Special(id) {
			o.Special = append(o.Special, text)
		}
	}
	return Parse(tok.Config(), o)
}

// Parse parses the template of a tokenizer. The error wraps [snug.ErrConfig] when the tokenizer has none (it then names
// the templates that there are), or one that cannot be parsed.
func Parse(c tokenizer.Config, o Options) (*Template, error) {
	text, err := choose(c, o.Name)
	if err != nil {
		return nil, err
	}
	t := &Template{names: map[string]any{}, now: o.Now}
	if t.now.IsZero() {
		t.now = time.Now()
	}
	if t.parsed, err = parse(text); err != nil {
		return nil, err
	}
	t.clock = strings.Contains(text, clock)
	if text, found := c.Templates["tool_use"]; found && o.Name == "" {
		if t.tools, err = parse(text); err != nil {
			return nil, err
		}
		t.clock = t.clock || strings.Contains(text, clock)
	}
	for _, special := range c.Special {
		t.names[special.Name] = special.Text
	}
	for name, token := range map[string]string{"bos_token": c.BOS, "eos_token": c.EOS, "pad_token": c.Pad, "unk_token": c.Unknown} {
		if token != "" {
			t.names[name] = token
		}
	}
	for _, end := range append([]string{c.EOS}, o.Ends...) {
		if end != "" && !slices.Contains(t.ends, end) {
			t.ends = append(t.ends, end)
		}
	}
	t.special = slices.DeleteFunc(append(slices.Clone(o.Special), t.ends...), func(s string) bool { return s == "" })
	for _, s := range t.special {
		t.starts[s[0]] = true
	}
	return t, nil
}

// choose returns the text of the template of a name.
func choose(c tokenizer.Config, name string) (string, error) {
	text, found := c.Templates[name]
	if name == "" || name == "default" {
		text, found = c.ChatTemplate, c.ChatTemplate != ""
	}
	names := slices.Sorted(maps.Keys(c.Templates))
	if c.ChatTemplate != "" {
		names = append([]string{"default"}, names...)
	}
	switch {
	case found:
		return text, nil
	case name != "" && len(names) > 0:
		return "", fmt.Errorf("chat: the tokenizer has no chat template %.40q, it has %q: %w", name, names, snug.ErrConfig)
	case len(names) > 0:
		return "", fmt.Errorf("chat: the tokenizer has no chat template of the name default, it has %q: choose one by its name (-template), or save it as chat_template.jinja: %w", names, snug.ErrConfig)
	}
	return "", fmt.Errorf("chat: the tokenizer has no chat template: %w", snug.ErrConfig)
}

func parse(text string) (*jinja.Template, error) {
	parsed, err := jinja.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("chat: the chat template: %w: %w", err, snug.ErrConfig)
	}
	return parsed, nil
}

// clock is the function that gives templates the time.
const clock = "strftime_now"

// UsesTime reports whether the template asks for the time. Its renderings then depend on Options.Now, which a run that is
// resumed should keep.
func (t *Template) UsesTime() bool { return t != nil && t.clock }

// Now returns the time that the template is given.
func (t *Template) Now() time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.now
}

// Render returns the text of a conversation. With prompt the text ends where the assistant's next turn begins: the
// template's add_generation_prompt. The error wraps [snug.ErrConfig]; it has the message of a template that calls
// raise_exception.
func (t *Template) Render(c Conversation, prompt bool) (string, error) {
	_, text, _, err := t.settle(c, prompt)
	if err != nil {
		return "", fmt.Errorf("chat: %w", err)
	}
	return generation.Replace(text), nil
}

// plain returns the text of a conversation that is settled.
func (t *Template) plain(c Conversation, prompt bool) (string, error) {
	text, err := t.render(c, prompt)
	return generation.Replace(text), err
}

// generation removes the marks of {% generation %}.
var generation = strings.NewReplacer(jinja.BeginMark, "", jinja.EndMark, "")

// render returns the text of a conversation with the marks of {% generation %}.
func (t *Template) render(c Conversation, prompt bool) (string, error) {
	if t == nil || t.parsed == nil {
		return "", fmt.Errorf("a Template that was not parsed: %w", snug.ErrConfig)
	}
	messages := make([]any, len(c.Messages))
	for i, m := range c.Messages {
		var err error
		if messages[i], err = given(m.object(), 0); err != nil {
			return "", fmt.Errorf("message %d: %w", i, err)
		}
	}
	values := map[string]any{}
	maps.Copy(values, t.names)
	for _, f := range c.Values {
		v, err := given(f.Value, 0)
		if err != nil {
			return "", fmt.Errorf("%s: %w", f.Name, err)
		}
		values[f.Name] = v
	}
	parsed := t.parsed
	var tools any
	if c.Tools != nil {
		var err error
		if tools, err = given(c.Tools, 0); err != nil {
			return "", fmt.Errorf("tools: %w", err)
		}
		if t.tools != nil {
			parsed = t.tools
		}
	}
	maps.Copy(values, map[string]any{"messages": jinja.List(messages...), "add_generation_prompt": prompt, "tools": tools,
		"raise_exception": function(func(message string) (string, error) { return "", raised(message) }),
		clock:             function(t.strftime)})
	if _, found := values["documents"]; !found {
		values["documents"] = nil
	}
	text, err := parsed.Render(values)
	if err != nil {
		return "", fmt.Errorf("%w: %w", err, snug.ErrConfig)
	}
	return text, nil
}

// refusals are what is known to help against what templates say, by words of it in small letters.
var refusals = [][2]string{
	{"alternat", "join the turns of one role that follow each other, and begin with the user"},
	{"content type", "it takes contents that are texts: give turns of tool calls a content, or take a template that writes calls"},
	{"system", "write the system message into the first question, or take a template that writes it"},
	{"tool call id", "the id of a call is of 9 letters and digits, and its result has the same"},
	{"tool", "take a template that writes tools"},
	{"role", "write the turn with a role that the template knows"},
}

// raised is the error of a template that refuses a conversation.
func raised(message string) error {
	small := strings.ToLower(message)
	for _, r := range refusals {
		if strings.Contains(small, r[0]) {
			return fmt.Errorf("the chat template says: %s (%s)", message, r[1])
		}
	}
	return fmt.Errorf("the chat template says: %s", message)
}

// object returns the message as a template sees it.
func (m Message) object() Object {
	o := Object{{"role", m.Role}, {"content", m.Content}}
	if m.NoContent {
		o[1].Value = nil
	}
	for _, f := range m.Fields {
		o.set(f.Name, f.Value)
	}
	if _, text := m.reasoning(); text != nil { // as transformers does
		if _, found := o.Get("thinking"); !found {
			o.set("thinking", text)
		}
		o.set("reasoning_content", text)
	}
	return o
}

// said are the fields that hold the reasoning of an answer.
var said = []string{"reasoning_content", "thinking", "reasoning"}

// reasoning returns the first field with a reasoning, and its value.
func (m Message) reasoning() (name string, value any) {
	for _, name := range said {
		if v, _ := m.Fields.Get(name); v != nil {
			return name, v
		}
	}
	return "", nil
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

// strftime formats the template's time as C's strftime does, with the directives that templates use.
func (t *Template) strftime(format string) (string, error) {
	for code, layout := range map[string]string{"%d": "02", "%b": "Jan", "%B": "January", "%Y": "2006", "%m": "01", "%y": "06",
		"%H": "15", "%M": "04", "%S": "05", "%A": "Monday", "%a": "Mon"} {
		format = strings.ReplaceAll(format, code, t.now.Format(layout))
	}
	if strings.Contains(format, "%") {
		return "", fmt.Errorf("strftime_now of %q: a part of it is not supported", format)
	}
	return format, nil
}
