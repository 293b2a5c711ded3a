package dataset

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"unicode/utf8"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/chat"
	"github.com/snug-ml/snug/tokenizer"
)

// Limits of what is read.
const (
	maxLine = 64 << 20 // bytes of a line of JSON
	maxFile = 1 << 30  // bytes of a text file
)

// reader adds files to a Set.
type reader struct {
	*Set
	tok    *tokenizer.Tokenizer
	tokens []int32 // of a text, or of a line
	form   string  // of the rows of this file so far
}

func firstInvalid(b []byte) int {
	if utf8.Valid(b) {
		return -1
	}
	at := 0
	for {
		c, n := utf8.DecodeRune(b[at:])
		if c == utf8.RuneError && n == 1 {
			return at
		}
		at += n
	}
}

// end appends the token that ends the text from lo on, unless the tokenizer has added it.
func (r *reader) end(lo int) {
	if n := len(r.tokens); r.options.EOS >= 0 && (n == lo || r.tokens[n-1] != r.options.EOS) {
		r.tokens = append(r.tokens, r.options.EOS)
	}
}

// line has the fields of a line of JSON that snug knows.
type line struct {
	Text       *string   `json:"text"`
	Prompt     *string   `json:"prompt"`
	Completion *string   `json:"completion"`
	Messages   []message `json:"messages"`
	given

	Chosen   json.RawMessage `json:"chosen"`
	Rejected json.RawMessage `json:"rejected"`
}

// given has the fields of a line that other programs pass to a chat template, and snug does not.
type given struct {
	Tools     json.RawMessage `json:"tools"`
	Functions json.RawMessage `json:"functions"`
	Documents json.RawMessage `json:"documents"`
}

// message is a turn. Fields that a template would write besides the content are refused, and so is a weight other than
// 1, because ignoring them would change what the model learns.
type message struct {
	Role      string          `json:"role"`
	Content   *string         `json:"content"`
	Weight    *float64        `json:"weight"`
	Calls     json.RawMessage `json:"tool_calls"`
	Call      json.RawMessage `json:"function_call"`
	Reasoning json.RawMessage `json:"reasoning_content"`
	Thinking  json.RawMessage `json:"thinking"`
}

// refuse returns an error if one of the fields has a value.
func (g *given) refuse() error {
	for _, f := range []field{{"tools", g.Tools}, {"functions", g.Functions}, {"documents", g.Documents}} {
		if f.holds() {
			return fmt.Errorf("%s are not given to the chat template: %w", f.name, snug.ErrConfig)
		}
	}
	return nil
}

// chats returns the messages as a template takes them.
func chats(messages []message) (list []chat.Message, err error) {
	for i, m := range messages {
		for _, f := range []field{{"tool_calls", m.Calls}, {"function_call", m.Call}, {"reasoning_content", m.Reasoning}, {"thinking", m.Thinking}} {
			if f.holds() {
				return nil, fmt.Errorf("message %d has %s, which the chat template is not given: write the content as the model does: %w", i, f.name, snug.ErrConfig)
			}
		}
		switch {
		case m.Content == nil:
			return nil, fmt.Errorf("message %d has no content: %w", i, snug.ErrConfig)
		case m.Weight != nil && *m.Weight != 1:
			return nil, fmt.Errorf("message %d has the weight %v, want 1 or none: %w", i, *m.Weight, snug.ErrConfig)
		}
		list = append(list, chat.Message{Role: m.Role, Content: *m.Content})
	}
	return list, nil
}

// field is a JSON field that may be missing.
type field struct {
	name string
	text json.RawMessage
}

// holds reports whether the field is present and neither null nor empty.
func (f field) holds() bool {
	switch string(f.text) {
	case "", "null", `""`, "[]", "{}":
		return false
	}
	return true
}

// readable words an error in a line of JSON without the names of Go types.
func readable(err error) error {
	var other *json.UnmarshalTypeError
	switch {
	case !errors.As(err, &other):
		return err
	case other.Field == "":
		return fmt.Errorf("type %s, want an object on each line", other.Value)
	}
	want := map[reflect.Kind]string{reflect.String: "string", reflect.Float64: "number", reflect.Slice: "array", reflect.Struct: "object"}
	return fmt.Errorf("%s: type %s, want %s", other.Field, other.Value, want[other.Type.Kind()])
}

// form returns which of the forms a line has.
func (l *line) form() (string, error) {
	var forms []string
	if l.Text != nil {
		forms = append(forms, "text")
	}
	if l.Prompt != nil || l.Completion != nil {
		if l.Completion == nil && (field{"", l.Chosen}).holds() {
			return "", fmt.Errorf("the line has chosen and rejected, which are for preferences: tune -dpo: %w", snug.ErrConfig)
		}
		if l.Prompt == nil || l.Completion == nil {
			return "", fmt.Errorf("prompt and completion come together: %w", snug.ErrConfig)
		}
		forms = append(forms, "prompt and completion")
	}
	if l.Messages != nil {
		forms = append(forms, "messages")
	}
	if len(forms) != 1 {
		return "", fmt.Errorf("the line has %d of text, prompt and completion, and messages, want one: %w", len(forms), snug.ErrConfig)
	}
	return forms[0], nil
}

// take adds a row of a file.
func (r *reader) take(x row) error {
	var used object
	for _, m := range x.fields {
		if slices.Contains(known, m.name) {
			used = append(used, m)
		}
	}
	text, err := json.Marshal(used)
	if err != nil {
		return fmt.Errorf("%w: %w", err, snug.ErrConfig)
	}
	form, err := r.line(text)
	if err == nil && r.form != "" && form != r.form {
		err = fmt.Errorf("the row has %s, and the first has %s: %w", form, r.form, snug.ErrConfig)
	}
	r.form = form
	return err
}

// line adds a line of JSON and returns its form.
func (r *reader) line(text []byte) (form string, err error) {
	if at := firstInvalid(text); at >= 0 {
		return "", fmt.Errorf("byte %d is not UTF-8: %w", at, snug.ErrCorrupt)
	}
	if r.options.Pairs {
		return r.preference(text)
	}
	var l line
	if err := json.Unmarshal(text, &l); err != nil {
		return "", fmt.Errorf("%w: %w", readable(err), snug.ErrCorrupt)
	}
	if form, err = l.form(); err != nil {
		return "", err
	}
	switch form {
	case "text":
		r.tokens, err = r.labelText(*l.Text, span{End: len(*l.Text)})
	case "messages":
		if err = l.refuse(); err != nil {
			break
		}
		var messages []chat.Message
		if messages, err = chats(l.Messages); err == nil {
			r.tokens, _, err = r.labelChat(chat.Conversation{Messages: messages})
		}
	default:
		text := *l.Prompt + *l.Completion
		r.tokens, err = r.labelText(text, span{Begin: len(*l.Prompt), End: len(text)})
	}
	if err != nil {
		return "", err
	}
	return form, r.add(r.tokens)
}
