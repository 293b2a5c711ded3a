package dataset

import (
	"regexp"
	"strings"

	"github.com/snug-ml/snug/chat"
)

// knowledge is what a chat template can express, found by rendering small conversations.
type knowledge struct {
	tools  bool   // it writes the descriptions of tools
	calls  bool   // it writes calls of functions
	header string // what begins a turn of the assistant
	end    string // the token that it writes behind an answer, empty if that is none between < and >
}

// knows returns what the template can express.
func (r *reader) knows() knowledge {
	if r.template == nil {
		r.template = &knowledge{}
		if t := r.options.Template; t != nil {
			r.template.probe(t)
		}
	}
	return *r.template
}

// endMark is a token that ends an answer, such as </s> or <|im_end|>.
var endMark = regexp.MustCompile(`^<[^<>\s]+>`)

func (k *knowledge) probe(t *chat.Template) {
	const mark = "zq8probe"
	user := chat.Message{Role: "user", Content: "x"}
	text := func(c chat.Conversation) (string, bool) {
		s, err := t.Render(c, false)
		return s, err == nil
	}
	object := func(pairs ...any) chat.Object {
		var o chat.Object
		for i := 0; i < len(pairs); i += 2 {
			o = append(o, chat.Field{Name: pairs[i].(string), Value: pairs[i+1]})
		}
		return o
	}
	tool := object("type", "function", "function", object("name", mark, "description", "d",
		"parameters", object("type", "object", "properties", object("a", object("type", "string", "description", "e")), "required", []any{"a"})))
	tools := []any{tool}
	s, ok := text(chat.Conversation{Messages: []chat.Message{user, {Role: "assistant", Content: "y"}}, Tools: tools})
	k.tools = ok && strings.Contains(s, mark)
	const value, id = "zq8value", "call00001"
	call := object("type", "function", "id", id, "function", object("name", mark, "arguments", object("a", value)))
	turns := []chat.Message{user, {Role: "assistant", NoContent: true, Fields: object("tool_calls", []any{call})},
		{Role: "tool", Content: "z", Fields: object("tool_call_id", id, "name", mark)}, {Role: "assistant", Content: "y"}}
	for _, n := range []int{len(turns), 2} {
		s, ok := text(chat.Conversation{Messages: turns[:n], Tools: tools})
		k.calls = k.calls || ok && strings.Contains(s, value)
	}
	if s, ok := text(chat.Conversation{Messages: []chat.Message{user, {Role: "assistant", Content: mark}}}); ok {
		_, after, _ := strings.Cut(s, mark)
		k.end = endMark.FindString(strings.TrimLeft(after, " \n"))
	}
	prompt, err := t.Render(chat.Conversation{Messages: []chat.Message{user}}, true)
	before, ok := text(chat.Conversation{Messages: []chat.Message{user}})
	if rest, found := strings.CutPrefix(prompt, before); err == nil && ok && found {
		if rest = strings.TrimSpace(rest); len(rest) > 2 {
			k.header = rest
		}
	}
}
