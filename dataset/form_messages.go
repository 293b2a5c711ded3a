package dataset

import (
	"fmt"
	"slices"
	"strings"

	"github.com/snug-ml/snug/chat"
)

// messagesForm is a conversation as OpenAI has it.
var messagesForm = form{
	name: "messages", title: "messages", fields: "messages, each with role and content",
	learned: "the assistant's turns and their ends",
	fits:    func(v *view) bool { return v.has("messages") && !v.isShareGPT(v.values["messages"]) },
	read:    func(f *rows, v *view) (content, error) { return f.conversation(v, "messages", false) },
}

// shareGPT is a conversation of human and gpt.
var shareGPT = form{
	name: "sharegpt", title: "ShareGPT", fields: "conversations, each with from and value",
	learned: "the turns of gpt and their ends",
	fits:    func(v *view) bool { return v.first(conversationNames...) != "" },
	read:    func(f *rows, v *view) (content, error) { return f.conversation(v, v.first(conversationNames...), true) },
}

// conversationNames are names of fields with all messages of a conversation.
var conversationNames = []string{"conversations", "conversation", "messages"}

// conversation returns the content of the messages in a field.
func (f *rows) conversation(v *view, name string, mapped bool) (content, error) {
	messages, err := f.messages(name, v.take(name), mapped)
	if err != nil {
		return content{}, err
	}
	return f.chat(v, chat.Conversation{Messages: messages})
}

// chat returns the content of a conversation, with what the row has beside it.
func (f *rows) chat(v *view, c chat.Conversation) (content, error) {
	if f.reader.options.Template == nil {
		return content{}, f.reader.noTemplate()
	}
	if err := f.converse(v, &c); err != nil {
		return content{}, err
	}
	f.endOnce(v.at, c)
	if err := f.unseen(c); err != nil {
		return content{}, err
	}
	f.obeys(c)
	f.twice(v.at, c)
	return content{chats: []chat.Conversation{c}}, f.answers(v.at, c)
}

// endOnce takes the token that ends an answer once, where both the answer and the chat template have it.
func (f *rows) endOnce(at string, c chat.Conversation) {
	end := f.reader.knows().end
	for i := range c.Messages {
		m := &c.Messages[i]
		text := strings.TrimRight(m.Content, " \t\r\n")
		if end == "" || m.Role != "assistant" || !strings.HasSuffix(text, end) {
			continue
		}
		for strings.HasSuffix(text, end) {
			text = strings.TrimRight(strings.TrimSuffix(text, end), " \t\r\n")
		}
		m.Content = text
		f.warn(at, "end", "message %d (assistant) ends with %q, which the chat template writes: it is taken once", i, end)
	}
}

// answers returns an error if a conversation has no answer, or only empty ones, and says which answers are empty.
func (f *rows) answers(at string, c chat.Conversation) error {
	var roles []string
	learned, full, none := false, false, -1
	for i, m := range c.Messages {
		if !slices.Contains(roles, m.Role) {
			roles = append(roles, m.Role)
		}
		if m.Role != "assistant" {
			continue
		}
		learned = learned || !m.Untrained
		isBlank := blank(m.Content) && !f.speaks(m)
		if isBlank {
			c.Messages[i].Content = "" // white space is no answer
		}
		switch {
		case !isBlank:
			full = full || !m.Untrained
		case !m.Untrained && none < 0:
			none = i
		}
	}
	switch {
	case len(c.Messages) == 0:
		return unlearnable("there are no messages")
	case !slices.Contains(roles, "assistant"):
		return unlearnable(fmt.Sprintf("no message has the role assistant; there are %s", truncatedList(roles)))
	case !learned:
		return unlearnable("no turn of the assistant is to be learned")
	case !full:
		return unlearnable(fmt.Sprintf("message %d (assistant) is empty", none))
	case none >= 0:
		f.warn(at, "empty", "message %d (assistant) is empty, and only its end is learned", none)
	}
	return nil
}

// speaks reports whether a message says something beside its content.
func (f *rows) speaks(m chat.Message) bool {
	return slices.ContainsFunc(m.Fields, func(field chat.Field) bool { return slices.Contains(said, field.Name) || f.members[field.Name] })
}

// unlearnable says that nothing of a row can be learned. The row is left out.
type unlearnable string

func (u unlearnable) Error() string { return string(u) }

// isList reports whether a text is an array of JSON with objects.
func (p parser) isList(text string) bool {
	if !strings.HasPrefix(strings.TrimSpace(text), "[") {
		return false
	}
	x, err := p.parse(text)
	l, ok := x.(list)
	if err != nil || !ok || len(l) == 0 {
		return false
	}
	_, ok = l[0].(object)
	return ok
}

// turnsOf takes a field that is a text, a message or a list of messages, as messages. A text has the role.
func (f *rows) turnsOf(v *view, name, role string) ([]chat.Message, error) {
	x := v.take(name)
	switch y := x.(type) {
	case nil:
		return nil, nil
	case string:
		if !f.isList(y) {
			f.maps(name, role)
			var err error
			if role == "user" {
				err = written(name, y)
			}
			return []chat.Message{{Role: role, Content: y}}, err
		}
	case object:
		if _, columns := transposed(y); !columns {
			x = list{y}
		}
	case list:
	default:
		return nil, fmt.Errorf("%s is %s, want a string or messages", name, kindOf(x))
	}
	return f.messages(name, x, f.isShareGPT(x))
}

// answered returns the conversation of a prompt and its answer. Only the answer is learned.
func (f *rows) answered(v *view, prompt, answer string) (c chat.Conversation, err error) {
	before, err := f.turnsOf(v, prompt, "user")
	if err != nil {
		return c, err
	}
	after, err := f.turnsOf(v, answer, "assistant")
	if err != nil {
		return c, err
	}
	for i := range before {
		before[i].Untrained = before[i].Role == "assistant"
	}
	before, after, err = joined(before, after)
	if err != nil {
		return c, fmt.Errorf("%s: %w", answer, err)
	}
	c.Messages = slices.Concat(before, after)
	return c, nil
}

// joined returns a prompt and its answer without what the answer repeats at its beginning: the end of the prompt, or all of it
// after a system message. White space around a content makes no difference.
func joined(prompt, answer []chat.Message) (before, after []chat.Message, err error) {
	alike := func(a, b chat.Message) bool {
		a.Content, b.Content = strings.TrimSpace(a.Content), strings.TrimSpace(b.Content)
		return equal(a, b)
	}
	for n := min(len(prompt), len(answer)-1); n > 0; n-- {
		if slices.EqualFunc(prompt[len(prompt)-n:], answer[:n], alike) {
			return prompt, answer[n:], nil
		}
	}
	if len(prompt) == 0 || len(answer) == 0 || answer[0].Role != "system" {
		if len(prompt) > 0 && len(answer) > 1 && prompt[len(prompt)-1].Role == "user" && answer[0].Role == "user" {
			return nil, nil, fmt.Errorf("it begins with a turn of user that is not the prompt's: begin it with the answer")
		}
		return prompt, answer, nil
	}
	if n := len(prompt) + 1; len(answer) > n && slices.EqualFunc(prompt, answer[1:n], alike) {
		before = append(answer[:1:1], prompt...)
		return before, answer[n:], nil
	}
	return nil, nil, fmt.Errorf("it begins with a system message, and what follows does not repeat the prompt: put the system message into the prompt")
}

// same returns with how many equal messages two conversations begin.
func same(a, b []chat.Message) (n int) {
	for n < min(len(a), len(b)) && equal(a[n], b[n]) {
		n++
	}
	return n
}

// equal reports whether two messages say the same.
func equal(a, b chat.Message) bool {
	return a.Role == b.Role && a.Content == b.Content && a.NoContent == b.NoContent && equalFields(a.Fields, b.Fields)
}
