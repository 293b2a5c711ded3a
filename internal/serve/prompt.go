package serve

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/chat"
	"github.com/snug-ml/snug/tokenizer"
)

// readChat reads a request for a chat completion.
func (s *Server) readChat(f fields) (*request, *failure) {
	r := &request{chat: true, top: -1}
	var name string
	_, fault := f.take("model", &name, "a text")
	if fault == nil {
		r.model, fault = s.named(name)
	}
	if fault != nil {
		return nil, fault
	}
	if r.model.Template == nil {
		return nil, refuse("messages", "the model has no chat template: use /v1/completions")
	}
	var c chat.Conversation
	for _, read := range []func() *failure{
		func() *failure { return readMessages(f, &c) },
		func() *failure { return readTools(f, &c) },
		func() *failure { _, fault := f.take("chat_template_kwargs", &c.Values, "an object"); return fault },
		func() *failure { return r.readChatOdds(f) },
		func() *failure { return r.render(c) },
		func() *failure { return s.readRequest(f, r, 0) },
	} {
		if fault := read(); fault != nil {
			return nil, fault
		}
	}
	return r, nil
}

// readChatOdds reads whether the log-probabilities of tokens are wanted.
func (r *request) readChatOdds(f fields) *failure {
	on := false
	if _, fault := f.take("logprobs", &on, "true or false"); fault != nil {
		return fault
	}
	top, given, fault := f.count("top_logprobs", 0, 0, 20)
	switch {
	case fault != nil:
		return fault
	case given && !on && top > 0:
		return refuse("top_logprobs", "top_logprobs is for logprobs: true")
	case on:
		r.top = int(top)
	}
	return nil
}

// readMessages reads the messages of a conversation.
func readMessages(f fields, c *chat.Conversation) *failure {
	var list []chat.Object
	if found, fault := f.take("messages", &list, "a list of objects"); fault != nil {
		return fault
	} else if !found || len(list) == 0 {
		return refuse("messages", "there are no messages")
	}
	for i, o := range list {
		m, fault := readMessage(o)
		if fault != nil {
			fault.param, fault.message = "messages", "message "+number(i)+": "+fault.message
			return fault
		}
		c.Messages = append(c.Messages, m)
	}
	return nil
}

func readMessage(o chat.Object) (m chat.Message, fault *failure) {
	role, _ := o.Get("role")
	m.Role, _ = role.(string)
	switch m.Role {
	case "developer":
		m.Role = "system" // which the protocol called it before
	case "system", "user", "assistant", "tool":
	default:
		return m, refuse("messages", "role is %.40v, want system, developer, user, assistant or tool", role)
	}
	content, _ := o.Get("content")
	switch content := content.(type) {
	case nil:
		m.NoContent = true
	case string:
		m.Content = content
	case []any:
		for _, part := range content {
			p, _ := part.(chat.Object)
			kind, _ := p.Get("type")
			text, _ := p.Get("text")
			t, is := text.(string)
			if kind != "text" || !is {
				return m, unsupported("messages", "content has a part of type %.40v, and this server takes text alone", kind)
			}
			m.Content += t
		}
	default:
		return m, refuse("messages", "content is neither a text nor a list of parts")
	}
	for _, field := range o {
		switch {
		case field.Name == "role" || field.Name == "content" || field.Value == nil:
		case field.Name == "tool_calls":
			m.Fields = append(m.Fields, chat.Field{Name: field.Name, Value: withArguments(field.Value)})
		default:
			m.Fields = append(m.Fields, field)
		}
	}
	if m.NoContent && len(m.Fields) == 0 {
		return m, refuse("messages", "there is no content")
	}
	return m, nil
}

// withArguments returns calls of functions whose arguments are objects, as templates take them. The protocol has them as texts of JSON.
func withArguments(v any) any {
	switch v := v.(type) {
	case []any:
		list := slices.Clone(v)
		for i := range list {
			list[i] = withArguments(list[i])
		}
		return list
	case chat.Object:
		o := slices.Clone(v)
		for i, field := range o {
			text, isText := field.Value.(string)
			var arguments chat.Object
			switch {
			case field.Name == "function":
				o[i].Value = withArguments(field.Value)
			case field.Name == "arguments" && isText && json.Unmarshal([]byte(text), &arguments) == nil:
				o[i].Value = arguments
			}
		}
		return o
	}
	return v
}

// readTools reads the functions that the model may call.
func readTools(f fields, c *chat.Conversation) *failure {
	var raw, choice json.RawMessage
	given, _ := f.take("tools", &raw, "")
	chosen, _ := f.take("tool_choice", &choice, "")
	none := string(choice) == `"none"`
	if chosen && !none && string(choice) != `"auto"` {
		return unsupported("tool_choice", `tool_choice is %.60s, and this server can only have "auto" or "none"`, choice)
	}
	if !given || none {
		return nil
	}
	value, err := chat.Value(raw)
	list, is := value.([]any)
	if err != nil || !is {
		return refuse("tools", "tools is %.60s, want a list of objects", raw)
	}
	for _, tool := range list {
		o, _ := tool.(chat.Object)
		kind, _ := o.Get("type")
		if function, _ := o.Get("function"); kind != "function" || !isObject(function) {
			return refuse("tools", "a tool is of type %.40v, want function, and a function", kind)
		}
	}
	if len(list) > 0 {
		c.Tools = list
	}
	return nil
}

func isObject(v any) bool { _, is := v.(chat.Object); return is }

// render makes the prompt of a conversation.
func (r *request) render(c chat.Conversation) *failure {
	text, err := r.model.Template.Render(c, true)
	if err != nil {
		return refuse("messages", "%s", plain(err))
	}
	if c.Tools != nil {
		tools := c.Tools
		c.Tools = nil
		if without, err := r.model.Template.Render(c, true); err == nil && without == text {
			return unsupported("tools", "the chat template takes none of the %d tools", len(tools))
		}
	}
	special := r.model.AddsSpecial != nil && r.model.AddsSpecial(text)
	if r.prompt, err = r.model.Tokenizer.Encode(text, tokenizer.EncodeOptions{NoSpecial: !special}); err != nil {
		return refuse("messages", "%s", plain(err))
	}
	return nil
}

// plain returns the text of an error without the names of packages and sentinels, which clients do not know.
func plain(err error) string {
	text := err.Error()
	for _, name := range []string{"chat: ", "tokenizer: "} {
		text = strings.TrimPrefix(text, name)
	}
	for _, kind := range []error{snug.ErrConfig, snug.ErrShape, snug.ErrCorrupt} {
		text = strings.TrimSuffix(text, ": "+kind.Error())
	}
	return text
}

// readCompletion reads a request for a completion.
func (s *Server) readCompletion(f fields) (*request, *failure) {
	r := &request{top: -1}
	var name string
	_, fault := f.take("model", &name, "a text")
	if fault == nil {
		r.model, fault = s.named(name)
	}
	if fault == nil {
		fault = r.readPrompt(f)
	}
	if fault != nil {
		return nil, fault
	}
	top, given, fault := f.count("logprobs", 0, 0, 20)
	if given {
		r.top = int(top)
	}
	if fault == nil {
		fault = s.readRequest(f, r, 16)
	}
	return r, fault
}

// readPrompt reads a prompt: a text, a list of tokens, or a list with one of these.
func (r *request) readPrompt(f fields) *failure {
	var raw json.RawMessage
	if found, _ := f.take("prompt", &raw, ""); !found {
		return refuse("prompt", "there is no prompt")
	}
	var several []json.RawMessage
	if json.Unmarshal(raw, &several) == nil && len(several) > 0 && (several[0][0] == '"' || several[0][0] == '[') {
		if len(several) > 1 {
			return unsupported("prompt", "prompt is a list of %d, and this server takes one in a request", len(several))
		}
		raw = several[0]
	}
	var text string
	if json.Unmarshal(raw, &text) == nil {
		ids, err := r.model.Tokenizer.Encode(text, tokenizer.EncodeOptions{})
		if err != nil {
			return refuse("prompt", "%s", plain(err))
		}
		r.prompt = ids
		return nil
	}
	if json.Unmarshal(raw, &r.prompt) != nil {
		return refuse("prompt", "prompt is %.60s, want a text or a list of tokens", raw)
	}
	for _, id := range r.prompt {
		if id < 0 || int(id) >= r.model.vocab {
			return refuse("prompt", "a token of prompt is %d, want 0 to %d", id, r.model.vocab-1)
		}
	}
	return nil
}
