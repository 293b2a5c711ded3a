package dataset

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/snug-ml/snug/chat"
)

// glaive is a conversation with calls of functions in one text, as glaive-function-calling has it.
var glaive = form{
	name: "glaive", title: "glaive function calls", fields: "system and chat, a text with USER: and ASSISTANT:",
	learned: "the assistant's turns and their ends",
	fits: func(v *view) bool {
		text, ok := v.values["chat"].(string)
		return ok && glaiveTurn.MatchString(text)
	},
	read: func(f *rows, v *view) (content, error) {
		text, err := v.text("chat")
		if err != nil {
			return content{}, err
		}
		system, err := v.text("system")
		if err != nil {
			return content{}, err
		}
		if f.reader.options.Template == nil {
			return content{}, f.reader.noTemplate()
		}
		delete(v.values, "system") // it is read here, and not beside the conversation
		var c chat.Conversation
		if system = strings.TrimSpace(strings.TrimPrefix(system, "SYSTEM:")); f.reader.knows().tools {
			if said, tools, found := f.glaiveTools(system); found {
				system = said
				if c.Tools, err = f.toolsOf("system", tools); err != nil {
					return content{}, err
				}
				f.maps("the functions in system", "tools")
			}
		}
		if system != "" {
			f.maps("SYSTEM", "system")
			c.Messages = append(c.Messages, chat.Message{Role: "system", Content: system})
		}
		if err := f.glaiveTurns(&c, text, f.reader.knows().calls); err != nil {
			return content{}, err
		}
		return f.chat(v, c)
	},
}

var (
	// glaiveTurn is what begins a turn.
	glaiveTurn = regexp.MustCompile(`(?:^|\n)\s*(USER|ASSISTANT|A|FUNCTION RESPONSE):[ \t]*`)
	glaiveRole = map[string]string{"USER": "user", "ASSISTANT": "assistant", "A": "assistant", "FUNCTION RESPONSE": "tool"}
)

const (
	glaiveEnd  = "<|endoftext|>"
	glaiveCall = "<functioncall>"
)

// glaiveTurns appends the turns of a text. Calls are tool calls if the template writes them, else text.
func (f *rows) glaiveTurns(c *chat.Conversation, text string, calls bool) error {
	found := glaiveTurn.FindAllStringSubmatchIndex(text, -1)
	if len(found) == 0 || strings.TrimSpace(text[:found[0][0]]) != "" {
		return fmt.Errorf("chat begins with another word than USER: and ASSISTANT")
	}
	for i, at := range found {
		end := len(text)
		if i+1 < len(found) {
			end = found[i+1][0]
		}
		name := text[at[2]:at[3]]
		m := &turn{Message: chat.Message{Role: glaiveRole[name], Content: strings.TrimSpace(text[at[1]:end])}}
		m.Content = strings.TrimSpace(strings.TrimSuffix(m.Content, glaiveEnd))
		f.maps(name, m.Role)
		if before, after, found := strings.Cut(m.Content, glaiveCall); found && calls && m.Role == "assistant" {
			m.Content, m.NoContent = strings.TrimSpace(before), strings.TrimSpace(before) == ""
			if err := f.call(m, glaiveCall, strings.TrimSpace(after)); err != nil {
				return fmt.Errorf("chat: turn %d: %w", i, err)
			}
			f.maps(glaiveCall, "tool_calls")
		}
		c.Messages = append(c.Messages, m.Message)
	}
	return nil
}

// glaiveTools divides a system text into what it says and the functions that follow it, one after the other. The sentence
// that announces them is left out: the template has one of its own.
func (p parser) glaiveTools(system string) (said string, tools list, found bool) {
	at := strings.Index(system, "\n{")
	if at < 0 {
		return system, nil, false
	}
	d := newDecoder(strings.NewReader(system[at:]), int64(p))
	for {
		if err := d.space(); err != nil {
			return system, nil, false
		}
		if d.peek() < 0 {
			break
		}
		x, err := d.next()
		if _, ok := x.(object); err != nil || !ok {
			return system, nil, false
		}
		tools = append(tools, x)
	}
	said = system[:at]
	if i := strings.Index(said, "with access to the following functions"); i >= 0 {
		said = strings.TrimSpace(said[:i])
		if said != "" && !strings.HasSuffix(said, ".") {
			said += "."
		}
	}
	return strings.TrimSpace(said), tools, len(tools) > 0
}
