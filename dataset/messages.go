package dataset

import (
	"fmt"
	"slices"
	"strings"

	"github.com/snug-ml/snug/chat"
)

// Names that people give the members of a message.
var (
	roleNames    = []string{"role", "from"}
	contentNames = []string{"content", "value", "text"}
)

// reasoningNames are the members of a message that hold what the model thinks before it answers.
var reasoningNames = []string{"reasoning_content", "reasoning", "thinking"}

// call is the role of a turn that is the assistant's call of a function.
const call = "function_call"

// otherRoles maps the roles of other forms to those of chat templates, in small letters.
var otherRoles = map[string]string{
	"system": "system", "developer": "developer",
	"user": "user", "human": "user", "prompter": "user",
	"assistant": "assistant", "gpt": "assistant", "chatgpt": "assistant", "bing": "assistant", "bard": "assistant",
	"model": "assistant", "bot": "assistant", "ai": "assistant", "chatbot": "assistant", "llm": "assistant",
	"tool": "tool", "observation": "tool", "function_response": "tool", "function-response": "tool", "tool_response": "tool", "ipython": "tool", "function": "tool",
	"function_call": call, "function-call": call, "tool_call": call,
}

// messageRule says what is done with a member of a message.
type messageRule struct {
	about string
	apply func(f *rows, m *turn, name string, x value) error
}

// messageRules are the members of messages that change what is said or learned. The template sees all others, as in
// transformers.
var messageRules = map[string]messageRule{
	"train":        {"of the assistant: false or 0 is not learned, true or 1 is", weigh},
	"weight":       {"as train; other weights are refused", weigh},
	"loss_weight":  {"as weight", weigh},
	"loss":         {"as train", weigh},
	"trainable":    {"as train", weigh},
	"is_train":     {"as train", weigh},
	"learn":        {"as train", weigh},
	"masked":       {"true is not learned", mask},
	"ignore":       {"as masked", mask},
	"skip":         {"as masked", mask},
	"mask":         differs,
	"loss_mask":    differs,
	"label":        {"true is learned; false, of a bad answer, is refused", (*rows).judge},
	"desirable":    {"as label", (*rows).judge},
	"refusal":      {"refused: chat templates do not write it", refuseMember("chat templates do not write it: put it into content, or remove it")},
	"chosen":       ranked,
	"rejected":     ranked,
	"text":         {"the content where there is no other; another text beside a content is refused", (*rows).secondText},
	"train_detail": {"refused: ranges of characters", refuseMember("ranges of characters cannot be left out: cut the message, or use train")},

	"tool_calls":    {"given to the template; arguments in the form that it takes", (*rows).calls},
	"function_call": {"given to the template as tool_calls", (*rows).call},

	"reasoning_content": {"given to the template, also by its other names", (*rows).reason},
	"reasoning":         {"as reasoning_content", (*rows).reason},
	"thinking":          {"as reasoning_content", (*rows).reason},

	"image": refusedMedia, "images": refusedMedia, "video": refusedMedia, "videos": refusedMedia, "audio": refusedMedia, "audios": refusedMedia,
	"chat_template": {"refused", refuseMember("a message cannot bring a chat template")},
}

var refusedMedia = messageRule{"refused: images and videos are parts of the content, or fields of the row", refuseMember("only the content is learned: write images and videos as its parts")}

var (
	weigh = learnedIf(true, "1, or 0 for an answer that is not learned")
	mask  = learnedIf(false, "true or false")

	differs = messageRule{"refused: programs differ about what true says", refuseMember("programs differ about what it says: use train, which is true for what is learned")}
	ranked  = messageRule{"refused: fields of a row, for preferences", refuseMember("answers that are compared are fields of the row, which tune -dpo reads")}
)

func refuseMember(why string) func(*rows, *turn, string, value) error {
	return func(_ *rows, _ *turn, name string, _ value) error { return fmt.Errorf("%s: %s", name, why) }
}

// turn is a message while it is read.
type turn struct {
	chat.Message
	learned *bool // what the row says about it
}

// message reads a message. mapped says that roles of other forms are those of chat templates.
func (f *rows) message(x value, mapped bool) (chat.Message, error) {
	o, ok := x.(object)
	if text, is := x.(string); is {
		if p, err := f.parse(text); err == nil { // a column of texts
			o, ok = p.(object)
		}
	}
	if !ok {
		return chat.Message{}, fmt.Errorf("%s, want an object with role and content", kindOf(x))
	}
	m := &turn{}
	role, err := roleOf(o)
	if err != nil {
		return m.Message, err
	}
	if m.Role, err = f.role(role, mapped); err != nil {
		return m.Message, err
	}
	isCall := m.Role == call
	if isCall {
		m.Role = "assistant"
	}
	if err := f.contents(m, o); err != nil {
		return m.Message, err
	}
	content, _ := contentOf(o)
	for _, member := range o {
		name := member.Name
		if name == "role" || name == content || name == "content" || name == "value" || empty(member.Value) {
			continue
		}
		small := usual(name)
		if name == "from" {
			if err := otherRole(role, member.Value); err != nil {
				return m.Message, err
			}
			if _, beside := get[string](o, "role"); !beside {
				continue
			}
		}
		if rule, known := messageRules[name]; known {
			err = rule.apply(f, m, name, member.Value)
		} else if _, known := messageRules[small]; small != name && (known || slices.Contains(contentNames, small) || slices.Contains(roleNames, small)) {
			err = fmt.Errorf("%s: names are exact: write %s, or remove it", readable(name), small)
		} else if decides(name) && isSwitch(member.Value) {
			err = fmt.Errorf("%s is %s, and may say whether the message is learned: write train, which is true for what is learned, or remove it", readable(name), shortJSON(member.Value))
		} else {
			m.Fields = append(m.Fields, chat.Field{Name: name, Value: jinjaValue(withoutNulls(member.Value))})
		}
		if err != nil {
			return m.Message, err
		}
	}
	if isCall {
		err = f.callText(m)
	}
	if err == nil && m.NoContent && len(m.Fields) == 0 {
		err = fmt.Errorf("no content, want a string, or a list of parts with texts")
	}
	if m.learned != nil {
		m.Untrained = !*m.learned
	}
	return m.Message, err
}

// otherRole returns an error if a member from says another role than the member role. It may be something else, such as the
// name of a model.
func otherRole(role string, from value) error {
	text, _ := from.(string)
	one, two := otherRoles[strings.ToLower(strings.TrimSpace(role))], otherRoles[strings.ToLower(strings.TrimSpace(text))]
	if one != "" && two != "" && one != two {
		return fmt.Errorf("role is %s and from is %s, want one role", role, text)
	}
	return nil
}

// roleOf returns the role of a message, as it is written.
func roleOf(o object) (string, error) {
	for _, name := range roleNames {
		x, found := o.Get(name)
		if !found || x == nil {
			continue
		}
		if text, ok := x.(string); ok && strings.TrimSpace(text) != "" {
			return text, nil
		}
		return "", fmt.Errorf("%s is %s, want a role such as user or assistant", name, shortJSON(x))
	}
	return "", fmt.Errorf("no role, want role: its members are %s", listed(namesOf(o)))
}

// role returns a role as the template has it.
func (f *rows) role(role string, mapped bool) (string, error) {
	small := strings.ToLower(strings.TrimSpace(role))
	to, known := otherRoles[small]
	if mapped {
		if !known {
			return "", fmt.Errorf("the role %.40q, want one of human, gpt, system, tool, function_call and observation, or user and assistant", role)
		}
		switch {
		case to == call && f.reader.knows().calls:
			f.maps(role, "assistant's tool call")
		case to == call:
			f.maps(role, "assistant")
		default:
			f.maps(role, to)
		}
		return to, nil
	}
	return role, nil // checkRoles has seen it
}

// checkRoles returns an error if messages have roles that stand for those of chat templates, such as gpt or Assistant.
// Other roles may be the template's own.
func checkRoles(l list) error {
	var roles []string
	wrong, to := -1, ""
	for i, x := range l {
		o, _ := x.(object)
		role, err := roleOf(o)
		if err != nil {
			return nil // the message is reported when it is read
		}
		if !slices.Contains(roles, role) {
			roles = append(roles, role)
		}
		known := otherRoles[strings.ToLower(strings.TrimSpace(role))]
		if known == call {
			known = "assistant"
		}
		if wrong < 0 && known != "" && known != role && known != "tool" {
			wrong, to = i, fmt.Sprintf("the role %q, which chat templates call %s", role, known)
		}
	}
	switch {
	case wrong < 0:
		return nil
	case !slices.Contains(roles, "assistant"):
		return fmt.Errorf("no message has the role assistant; there are %s: -format sharegpt reads these roles", truncatedList(roles))
	}
	return fmt.Errorf("message %d has %s: write it so, or use -format sharegpt", wrong, to)
}

// partNames are the members of a part that hold its text.
var partNames = []string{"text", "value", "content", "thinking", "reasoning"}

// learnedIf makes the reading of a member that says whether a message is learned, which is if the member is yes.
func learnedIf(yes bool, want string) func(*rows, *turn, string, value) error {
	return func(_ *rows, m *turn, name string, x value) error {
		is, known := truth(x)
		if !known {
			return fmt.Errorf("%s is %s, want %s", name, shortJSON(x), want)
		}
		return m.learn(name, is == yes)
	}
}

// judge reads whether an answer is good. A bad one would be learned as a good one; other values are classes.
func (f *rows) judge(m *turn, name string, x value) error {
	if bad(x, true) {
		return fmt.Errorf("%s is %s: a bad answer, which would be learned as a good one: remove it, or set train to false", name, shortJSON(x))
	}
	return nil
}

// secondText refuses a text that says something else than the content.
func (f *rows) secondText(m *turn, name string, x value) error {
	if text, ok := x.(string); ok && words(text) != words(m.Content) {
		return fmt.Errorf("both content and %s, which says something else", name)
	}
	return nil
}

func (m *turn) learn(name string, yes bool) error {
	switch {
	case yes && m.Role != "assistant" && name != "masked":
		return fmt.Errorf("%s asks to learn a turn of %s, and only the assistant's are learned", name, m.Role)
	case m.learned != nil && *m.learned != yes:
		return fmt.Errorf("%s says otherwise than another of its members whether it is learned", name)
	}
	m.learned = &yes
	return nil
}

// reason gives the template what the model thinks, under the name that it knows.
func (f *rows) reason(m *turn, name string, x value) error {
	text, ok := x.(string)
	if !ok {
		parts, isList := x.(list)
		if !isList {
			return fmt.Errorf("%s is %s, want a string", name, kindOf(x))
		}
		var b strings.Builder
		for i, part := range parts {
			if err := f.part(m, &b, part); err != nil {
				return fmt.Errorf("%s: part %d: %w", name, i, err)
			}
		}
		text = b.String()
	}
	if isMode(text) {
		return fmt.Errorf("%s is %q, which says how much is thought, and not what: remove it", name, text)
	}
	for _, other := range reasoningNames { // a template is given it by all names, see [chat.Message]
		if old, found := m.Fields.Get(other); found && old != text {
			return fmt.Errorf("two fields with reasoning")
		} else if found {
			return nil
		}
	}
	m.Fields = append(m.Fields, chat.Field{Name: name, Value: text})
	return nil
}

// messages reads a list of messages.
func (f *rows) messages(name string, x value, mapped bool) (messages []chat.Message, err error) {
	l, err := f.listOf(name, x)
	if err != nil {
		return nil, err
	}
	if !mapped {
		if err := checkRoles(l); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	if err := f.shape(name, l); err != nil {
		return nil, err
	}
	for i, item := range l {
		m, err := f.message(item, mapped)
		if err != nil {
			return nil, fmt.Errorf("%s: message %d: %w", name, i, err)
		}
		messages = append(messages, m)
	}
	return messages, nil
}

// said are the members of a message that say something beside its content.
var said = append([]string{"tool_calls"}, reasoningNames...)

// unseen lists members of messages that are not known, and that the template does not write. It is an error if a message has
// only such.
func (f *rows) unseen(c chat.Conversation) error {
	for i, m := range c.Messages {
		says := !m.NoContent
		for _, field := range m.Fields {
			_, known := messageRules[field.Name]
			says = says || slices.Contains(said, field.Name) || f.members[field.Name] && !known
			if known || field.Name == "tool_call_id" {
				continue
			}
			if _, decided := f.members[field.Name]; decided || len(f.members) >= maxIgnored {
				continue
			}
			without := c
			without.Messages = slices.Clone(c.Messages)
			without.Messages[i].Fields = slices.DeleteFunc(slices.Clone(m.Fields), func(other chat.Field) bool { return other.Name == field.Name })
			one, err := f.reader.options.Template.Render(c, false)
			two, alone := f.reader.options.Template.Render(without, false)
			if err != nil || alone != nil {
				says = true
				continue // another row may tell
			}
			f.members[field.Name] = one != two
			says = says || one != two
			if one == two {
				f.ignore("messages." + field.Name)
			}
		}
		if !says {
			var names []string
			for _, field := range m.Fields {
				names = append(names, field.Name)
			}
			return fmt.Errorf("message %d (%s) has no content, and the chat template does not write its %s: write the text into content", i, m.Role, listed(names))
		}
	}
	return nil
}

// isShareGPT reports whether the messages of a list have the members of ShareGPT.
func (p parser) isShareGPT(x value) bool {
	if text, is := x.(string); is && !p.isList(text) {
		return false
	}
	l, err := p.listOf("", x)
	if err != nil || len(l) == 0 {
		return false
	}
	o, ok := l[0].(object)
	if !ok {
		return false
	}
	_, has := o.Get("from")
	return has
}
