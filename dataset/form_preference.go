package dataset

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/snug-ml/snug/chat"
)

// preferenceForm is a prompt with a chosen and a rejected answer.
var preferenceForm = form{
	name: "preference", title: "preferences",
	fields:  "chosen and rejected, both strings or both messages, with prompt, conversations, or instruction and input; or messages that begin with the same turns",
	learned: "to prefer the chosen answer to the rejected one", pairs: true, asks: true,
	fits: func(v *view) bool { _, _, ok := answersOf(v); return ok },
	read: func(f *rows, v *view) (content, error) {
		chosen, rejected, _ := answersOf(v)
		isText := v.isString(v.values[chosen])
		if isText != v.isString(v.values[rejected]) {
			return content{}, fmt.Errorf("%s is %s and %s is %s, want both as strings or both as messages", chosen, kindOf(v.values[chosen]), rejected, kindOf(v.values[rejected]))
		}
		if isText {
			return f.textPair(v, chosen, rejected)
		}
		return f.messagePair(v, chosen, rejected)
	},
}

// answerNames are names of the fields of the two answers.
var answerNames = [][2]string{{"chosen", "rejected"}, {"chosen_response", "rejected_response"}, {"chosen_messages", "rejected_messages"}, {"preferred_output", "non_preferred_output"}}

// answersOf returns the names of the fields of the two answers.
func answersOf(v *view) (chosen, rejected string, ok bool) {
	for _, names := range answerNames {
		if v.has(names[0], names[1]) {
			return names[0], names[1], true
		}
	}
	return "", "", false
}

// isString reports whether a value is a text, and not messages that are written as one.
func (p parser) isString(x value) bool {
	text, ok := x.(string)
	return ok && !p.isList(text)
}

// prompts are names of fields with what both answers are for, besides prompt.
var prompts = []string{"instruction", "question", "query", "input"}

// textPair reads answers that are strings. A prompt of other names than prompt, and one with what only a chat template
// writes, are turns of the user.
func (f *rows) textPair(v *view, chosen, rejected string) (c content, err error) {
	if c.answer, err = v.text(chosen); err != nil {
		return c, err
	}
	if c.rejected, err = v.text(rejected); err != nil {
		return c, err
	}
	if c.answer == c.rejected {
		return c, unlearnable("chosen and rejected are equal")
	}
	for _, x := range [][2]string{{chosen, c.answer}, {rejected, c.rejected}} {
		if err := written(x[0], x[1]); err != nil {
			return c, err
		}
	}
	ask := v.first(prompts...)
	if f.chats == nil {
		asked := ask != "" && !v.has("prompt") || v.has("prompt") && !v.isString(v.values["prompt"]) || !v.has("prompt") && f.before(v) != ""
		asked = (asked || v.has("prompt") && v.converses()) && f.reader.options.Template != nil
		f.chats = &asked
	}
	switch {
	case v.has("prompt") && v.isString(v.values["prompt"]):
		if c.prompt, err = v.text("prompt"); err != nil {
			return c, err
		}
		switch one, two := repeats(c.prompt, c.answer), repeats(c.prompt, c.rejected); {
		case one != two:
			name := chosen
			if two {
				name = rejected
			}
			f.warn(v.at, "one prompt twice", "%s begins with the prompt, which is then there twice, and the other answer does not: cut it off", name)
		case one:
			f.warn(v.at, "prompt twice", "%s and %s begin with the prompt, which is taken once", chosen, rejected)
			c.answer, c.rejected = c.answer[len(c.prompt):], c.rejected[len(c.prompt):]
		}
		if !*f.chats {
			f.untemplated(v.at, chosen, c.prompt, c.answer)
			f.untemplated(v.at, rejected, c.prompt, c.rejected)
			return c, nil
		}
		f.maps("prompt", "user")
		if err := written("prompt", c.prompt); err != nil {
			return c, err
		}
		return f.pair(v, []chat.Message{{Role: "user", Content: c.prompt}}, c)
	case v.has("prompt") || f.before(v) != "":
		before, err := f.promptOf(v, []chat.Message{{Role: "assistant", Content: c.answer}})
		if err != nil {
			return c, err
		}
		return f.pair(v, before, c)
	case ask != "":
		x, said, err := f.instruction(v, ask)
		if err != nil {
			return c, err
		}
		f.maps(said, "user")
		if f.reader.options.Template == nil {
			c.prompt, err = f.alpacaPrompt(v, x)
			c.asked = x.user()
			return c, err
		}
		return f.pair(v, x.messages(), c)
	}
	n := common(c.answer, c.rejected)
	if n == 0 {
		return c, fmt.Errorf("%s and %s are strings that begin with different words, and want a prompt; the fields are %s", chosen, rejected, v.list())
	}
	f.maps("what both answers begin with", "prompt")
	if f.reader.options.Template != nil {
		f.maps("strings", "one text without the chat template")
	}
	c.prompt, c.answer, c.rejected = c.answer[:n], c.answer[n:], c.rejected[n:]
	return c, nil
}

// repeats reports whether an answer begins with its prompt, and says more.
func repeats(prompt, answer string) bool {
	return strings.TrimSpace(prompt) != "" && len(answer) > len(prompt) && strings.HasPrefix(answer, prompt)
}

// common returns with how many bytes of whole characters two texts begin alike, up to a blank before the first difference.
func common(a, b string) int {
	n := commonPrefix([]byte(a), []byte(b))
	for n > 0 && (n < len(a) && !startsRune(a[n]) || n < len(b) && !startsRune(b[n])) {
		n--
	}
	if n > 0 && a[n-1] == ' ' {
		n--
	}
	return n
}

func startsRune(c byte) bool { return c&0xC0 != 0x80 }

// before returns the name of the field with the conversation before the answers, if there is one.
func (f *rows) before(v *view) string {
	name := v.first(conversationNames...)
	if _, ok := v.values["input"].(object); ok && name == "" {
		return "input"
	}
	return name
}

// inputMessages is the field with the messages of a request, as OpenAI has it.
const inputMessages = "input.messages"

// promptOf takes the conversation before the answers. Where it has the chosen answer, too, that is left out.
func (f *rows) promptOf(v *view, chosen []chat.Message) ([]chat.Message, error) {
	if v.has("prompt") {
		return f.turnsOf(v, "prompt", "user")
	}
	name := f.before(v)
	if name != "input" {
		messages, err := f.turnsOf(v, name, "user")
		if n := len(messages) - len(chosen); err == nil && n > 0 && same(messages[n:], chosen) == len(chosen) {
			messages = messages[:n]
		}
		if n := len(messages); err == nil && n > 0 && messages[n-1].Role == "assistant" {
			err = fmt.Errorf("%s ends with an answer, which is not the chosen one: end it with what is answered, or -map %s= leaves it out", name, name)
		}
		return messages, err
	}
	o, _ := v.take(name).(object)
	for _, m := range o { // as OpenAI has it: the request's messages and tools
		switch m.Name {
		case "messages":
		case "tools", "functions":
			if v.has(m.Name) {
				return nil, fmt.Errorf("both %s and input.%s", m.Name, m.Name)
			}
			v.names, v.values[m.Name] = append(v.names, m.Name), m.Value
		case "parallel_tool_calls":
			f.ignore("input." + m.Name)
		default:
			return nil, fmt.Errorf("input has %s, want messages and tools", m.Name)
		}
	}
	x, _ := o.Get("messages")
	return f.messages(inputMessages, x, false)
}

// messagePair reads answers that are messages. They may begin with the prompt.
func (f *rows) messagePair(v *view, chosen, rejected string) (c content, err error) {
	if f.reader.options.Template == nil {
		return c, f.reader.noTemplate()
	}
	if f.chats != nil && !*f.chats {
		return c, fmt.Errorf("%s and %s are messages, and in the first row they are texts", chosen, rejected)
	}
	chats := true
	f.chats = &chats
	a, err := f.turnsOf(v, chosen, "assistant")
	if err != nil {
		return c, err
	}
	b, err := f.turnsOf(v, rejected, "assistant")
	if err != nil {
		return c, err
	}
	if reflect.DeepEqual(a, b) {
		return c, unlearnable("chosen and rejected are equal")
	}
	n := same(a, b)
	var prompt []chat.Message
	alone := isAnswer(a) && isAnswer(b) // without the prompt
	switch text, isText := v.values["prompt"].(string); {
	case isText && v.isString(text) && !alone:
		v.take("prompt")
		if n == 0 {
			return c, otherPrompts(chosen, rejected)
		}
		if said := (content{chats: []chat.Conversation{{Messages: a[:n]}}}); !said.saysText(text) {
			return c, fmt.Errorf("%s and %s have messages before the answer, and prompt is another text: -map prompt= leaves it out", chosen, rejected)
		}
	case v.has("prompt"), alone && f.before(v) != "":
		if prompt, err = f.promptOf(v, a); err != nil {
			return c, err
		}
		one, restA, err := joined(prompt, a)
		if err != nil {
			return c, fmt.Errorf("%s: %w", chosen, err)
		}
		two, restB, err := joined(prompt, b)
		if err != nil {
			return c, fmt.Errorf("%s: %w", rejected, err)
		}
		if len(a)-len(restA) != len(b)-len(restB) || len(one) != len(two) || same(one, two) != len(one) {
			return c, fmt.Errorf("one of %s and %s begins with the prompt, and the other does not", chosen, rejected)
		}
		prompt, a, b = one, restA, restB
	case alone:
		if name := v.first(prompts...); name != "" {
			x, said, err := f.instruction(v, name)
			if err != nil {
				return c, err
			}
			f.maps(said, "user")
			prompt = x.messages()
		}
	}
	if len(prompt) == 0 {
		if n == 0 && !alone {
			return c, otherPrompts(chosen, rejected)
		}
		prompt, a, b = a[:n:n], a[n:], b[n:]
	}
	if len(prompt) == 0 || len(a) == 0 || len(b) == 0 {
		return c, fmt.Errorf("there are %d messages of a prompt, %d chosen and %d rejected, want one or more of each", len(prompt), len(a), len(b))
	}
	return f.pairOf(v, prompt, a, b)
}

// otherPrompts says that two answers are to different prompts.
func otherPrompts(chosen, rejected string) error {
	return fmt.Errorf("%s and %s begin with different messages, and want the same prompt: remove such rows", chosen, rejected)
}

// isAnswer reports whether messages are an answer alone.
func isAnswer(messages []chat.Message) bool {
	return len(messages) > 0 && messages[0].Role == "assistant"
}

// pair returns the content of a prompt with two answers that are texts.
func (f *rows) pair(v *view, prompt []chat.Message, c content) (content, error) {
	if f.reader.options.Template == nil {
		return content{}, f.reader.noTemplate()
	}
	return f.pairOf(v, prompt, []chat.Message{{Role: "assistant", Content: c.answer}}, []chat.Message{{Role: "assistant", Content: c.rejected}})
}

// pairOf returns the content of a prompt with two answers. Of the prompt nothing is learned.
func (f *rows) pairOf(v *view, prompt, chosen, rejected []chat.Message) (content, error) {
	prompt = slices.Clone(prompt)
	for i := range prompt {
		prompt[i].Untrained = prompt[i].Role == "assistant"
	}
	one, two := chat.Conversation{Messages: slices.Concat(prompt, chosen)}, chat.Conversation{Messages: slices.Concat(prompt, rejected)}
	if err := f.converse(v, &one, &two); err != nil {
		return content{}, err
	}
	f.obeys(one)
	f.twice(v.at, one)
	for i, c := range []chat.Conversation{one, two} {
		f.endOnce(v.at, c)
		if err := f.unseen(c); err != nil {
			return content{}, err
		}
		if err := f.answers(v.at, c); err != nil {
			return content{}, unlearnable([]string{"chosen: ", "rejected: "}[i] + err.Error())
		}
	}
	return content{chats: []chat.Conversation{one, two}}, nil
}

// equalFields reports whether two messages have equal further fields.
func equalFields(a, b chat.Object) bool {
	if len(a) == 0 && len(b) == 0 {
		return true
	}
	x, errA := json.Marshal(a)
	y, errB := json.Marshal(b)
	return errA == nil && errB == nil && string(x) == string(y)
}

// transcripts are dialogues as hh-rlhf has them: their last answers differ.
var transcripts = form{
	name: "hh-rlhf", title: "dialogues of Human and Assistant", fields: "chosen and rejected, both texts with Human: and Assistant:",
	learned: "to prefer the chosen answer to the rejected one", pairs: true,
	fits: func(v *view) bool {
		a, isText := v.values["chosen"].(string)
		b, alsoText := v.values["rejected"].(string)
		prompt, _ := v.values["prompt"].(string)
		repeated := !v.has("prompt") || strings.HasPrefix(prompt, human) && strings.HasPrefix(a, prompt) && strings.HasPrefix(b, prompt)
		return isText && alsoText && repeated && strings.HasPrefix(a, human) && strings.HasPrefix(b, human) &&
			strings.Contains(a, helper) && strings.Contains(b, helper)
	},
	read: func(f *rows, v *view) (c content, err error) {
		v.take("prompt") // which the answers repeat
		a, _ := v.take("chosen").(string)
		b, _ := v.take("rejected").(string)
		if a == b {
			return c, unlearnable("chosen and rejected are equal")
		}
		if f.reader.options.Template == nil {
			n := strings.LastIndex(a[:commonPrefix([]byte(a), []byte(b))], helper)
			if n < 0 {
				return c, unlearnable("chosen and rejected are different dialogues")
			}
			n += len(helper)
			f.maps("up to the last Assistant:", "prompt")
			return content{prompt: a[:n], answer: a[n:], rejected: b[n:]}, nil
		}
		one, two := dialogue(a), dialogue(b)
		n := same(one, two)
		for n > 0 && (n == len(one) || n == len(two) || one[n].Role != "assistant" || two[n].Role != "assistant") {
			n-- // an answer begins where both have a turn of the assistant
		}
		if n == 0 {
			return c, unlearnable("chosen and rejected are different dialogues")
		}
		f.maps("Human", "user")
		f.maps("Assistant", "assistant")
		return f.pairOf(v, one[:n], one[n:], two[n:])
	},
}

const (
	human  = "\n\nHuman:"
	helper = "\n\nAssistant:"
)

// dialogue returns the turns of a text. Turns of one person that follow one another are one turn.
func dialogue(text string) (turns []chat.Message) {
	for text != "" {
		role, rest := "user", strings.TrimPrefix(text, human)
		if strings.HasPrefix(text, helper) {
			role, rest = "assistant", text[len(helper):]
		}
		end := len(rest)
		for _, next := range []string{human, helper} {
			if i := strings.Index(rest, next); i >= 0 {
				end = min(end, i)
			}
		}
		said := strings.TrimSpace(rest[:end])
		text = rest[end:]
		if n := len(turns); n > 0 && turns[n-1].Role == role {
			turns[n-1].Content = strings.TrimSpace(turns[n-1].Content + "\n\n" + said)
			continue
		}
		turns = append(turns, chat.Message{Role: role, Content: said})
	}
	return turns
}
