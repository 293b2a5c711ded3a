package dataset

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/snug-ml/snug/chat"
)

// rule says what is done with a field of a row that changes what is said or learned, where the row's form does not take
// the field itself. All other fields are ignored, and listed once for a file.
type rule struct {
	about string // for the documentation
	// check returns an error if the value would change what is said or learned, and else whether it is followed. If it is
	// not, it is listed as ignored.
	check func(f *rows, name string, x value) (obeyed bool, err error)
}

// refuse makes a check that refuses all values.
func refuse(why string) func(*rows, string, value) (bool, error) {
	return func(_ *rows, name string, _ value) (bool, error) { return false, fmt.Errorf("%s: %s", name, why) }
}

const withoutIt = "; -map %s= leaves it out"

// rowRules are the rules for fields of rows. Conversations take the fields of conversationFields before.
var rowRules = map[string]rule{
	"label":   {"true is learned; false, of a bad answer, is refused", checkLabel},
	"kto_tag": {"as label", checkLabel}, "kto_label": {"as label", checkLabel}, "desirable": {"as label", checkLabel},

	"correct": verdict, "is_correct": verdict, "is_good": verdict, "accepted": verdict, "is_accepted": verdict,
	"rejected": fault, "is_rejected": fault, "incorrect": fault, "is_bad": fault,

	"trainable": {"as train", checkWeight}, "is_train": {"as train", checkWeight}, "learn": {"as train", checkWeight}, "loss": {"as weight", checkWeight},
	"skip": {"false; true is refused", checkSkip}, "ignore": {"as skip", checkSkip}, "masked": {"as skip", checkSkip},
	"loss_mask": {"refused, as input_ids", refuse("a mask of tokens, want text" + leave("loss_mask"))},
	"masks":     {"refused, as input_ids", refuse("a mask of tokens, want text" + leave("masks"))},
	"split":     apart, "data_split": apart, "partition": apart,
	"winner":    {"of preferences refused: chosen is the better answer", checkWinner},
	"reasoning": thoughts, "reasoning_content": thoughts, "thinking": thoughts,

	"train":         {"true or 1; another value is refused", checkWeight},
	"weight":        {"1; another value is refused", checkWeight},
	"loss_weight":   {"as weight", checkWeight},
	"sample_weight": {"as weight", checkWeight},
	"mask":          {"User, which is what is always done; another value is refused", checkMask},

	"train_on_inputs": {"true is refused: the prompt is not learned", checkInputs},
	"train_on_input":  {"as train_on_inputs", checkInputs},
	"input_ids":       {"refused: tokens in place of text", refuse("the row has tokens, want text: give the text from which they were made" + leave("input_ids"))},
	"completion_mask": {"refused, as input_ids", refuse("a mask of tokens, want text" + leave("completion_mask"))},
	"assistant_masks": {"refused, as input_ids", refuse("a mask of tokens, want text" + leave("assistant_masks"))},
	"chat_template":   {"refused: the template of the tokenizer is used", refuse("a row cannot bring its own chat template: put it into the model's folder" + leave("chat_template"))},
	"history":         {"obeyed with an instruction, else refused", refuse("earlier turns are for instructions: use messages" + leave("history"))},
	"context":         {"the input of an instruction; refused beside a question", checkContext},
	"image":           images, "images": images, "video": videos, "videos": videos, "audio": sounds, "audios": sounds,
	"fps": timing, "sample_fps": timing, "max_frames": timing,
	"system": aside, "system_prompt": aside, "system_message": aside, "tools": aside, "functions": aside, "documents": aside,
	"chat_template_kwargs": aside, "enable_thinking": aside, "reasoning_effort": aside,
}

var sounds = rule{"refused: only text, images and videos are learned", refuseMedia}

var videos = rule{"as image, for a model that takes videos: Qwen2-VL, Qwen2.5-VL, Qwen3-VL", refuseMedia}

// timing is the rule for a field that says how the frames of a video are read: it is of one video, and a row may have several.
var timing = rule{"beside a video refused: a member of the video", func(f *rows, name string, _ value) (bool, error) {
	if !slices.ContainsFunc(f.images, func(x imageSource) bool { return x.video != nil }) {
		return false, nil
	}
	return false, fmt.Errorf(`the row has %s, which is of a video: write it into the video, as {"path": "clips/7", %q: 2}`+withoutIt, name, name, name)
}}

var images = rule{"of a conversation or a question, for PaliGemma of prompt and completion, for a model that sees images; else refused", refuseMedia}

func refuseMedia(_ *rows, name string, _ value) (bool, error) {
	return false, fmt.Errorf("the row has %s, and only text is learned"+withoutIt, name, name)
}

// aside is the rule for a field that conversations obey, where the row has no conversation.
var aside = rule{"obeyed in conversations; beside texts refused", func(_ *rows, name string, _ value) (bool, error) {
	return false, fmt.Errorf("%s is for the chat template, and the row has only texts: write it into the text, or use messages"+withoutIt, name, name)
}}

func leave(name string) string { return fmt.Sprintf(withoutIt, name) }

// thoughts is the rule for what a model thinks, where the form does not take it.
var thoughts = rule{"of an instruction given to the template, else refused; a word such as on, off or high is listed", func(_ *rows, name string, x value) (bool, error) {
	if isMode(x) {
		return false, nil
	}
	return false, fmt.Errorf("the row has %s, and its form has no place for it: put it into the message of the assistant"+withoutIt, name, name)
}}

// checkLabel refuses the label of an answer that shall not be learned. Other values than yes and no name a class, and so does
// a number beside a text.
func checkLabel(f *rows, name string, x value) (bool, error) {
	if f.form.classes && isNumber(x) {
		return false, nil
	}
	if bad(x, !f.form.classes) {
		return false, fmt.Errorf("%s is %s: a bad answer, which would be learned as a good one. Remove such rows, or make pairs of good and bad answers for -dpo; if %s is something else, -map %s= leaves it out", name, shortJSON(x), name, name)
	}
	_, known := truth(x)
	return known, nil
}

// verdict is the rule for a boolean that says whether an answer is right. Other values, such as that of a choice, are harmless.
var verdict = rule{"as label if it is a boolean", func(f *rows, name string, x value) (bool, error) {
	if text, ok := x.(string); x == true || x == false || ok && slices.Contains([]string{"true", "false"}, strings.ToLower(strings.TrimSpace(text))) {
		return checkLabel(f, name, x)
	}
	return false, nil
}}

// fault is a boolean that is true of a bad answer.
var fault = rule{"as skip if it is a boolean", func(f *rows, name string, x value) (bool, error) {
	if x == true || x == false {
		return checkSkip(f, name, x)
	}
	return false, nil
}}

// apart is the part of the data that a row is of: what is kept for a test must not be learned.
var apart = rule{"train or another name; test, validation, eval, dev or holdout is refused", func(_ *rows, name string, x value) (bool, error) {
	text, _ := x.(string)
	words := strings.FieldsFunc(strings.ToLower(text), func(r rune) bool { return r < 'a' || r > 'z' })
	if len(words) > 0 && slices.Contains([]string{"test", "testing", "validation", "valid", "val", "eval", "evaluation", "dev", "holdout", "heldout", "hold", "held"}, words[0]) {
		return false, fmt.Errorf("%s is %s, of rows that are kept for a test: remove such rows; if it is something else, -map %s= leaves it out", name, shortJSON(x), name)
	}
	return false, nil
}}

// isNumber reports whether a value is a number, or the text of one, as tables of CSV have it.
func isNumber(x value) bool {
	if text, ok := x.(string); ok {
		_, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
		return err == nil
	}
	_, ok := x.(json.Number)
	return ok
}

// isMode reports whether a value says how much is thought, and not what.
func isMode(x value) bool {
	switch x := x.(type) {
	case bool:
		return true
	case string:
		return slices.Contains([]string{"on", "off", "true", "false", "enabled", "disabled", "none", "minimal", "low", "medium", "high"}, strings.ToLower(strings.TrimSpace(x)))
	}
	return false
}

// bad reports whether a label says that an answer is bad. Some words and numbers do so beside an answer, and are classes
// beside a text.
func bad(x value, answer bool) bool {
	if yes, known := truth(x); known {
		return !yes
	}
	switch x := x.(type) {
	case json.Number:
		return answer && strings.HasPrefix(string(x), "-")
	case string:
		switch strings.ToLower(strings.TrimSpace(x)) {
		case "bad", "rejected", "undesirable":
			return true
		case "negative", "no", "wrong", "incorrect", "-1":
			return answer
		}
	}
	return false
}

// want makes the check of a field that says yes or no, of which one is refused.
func want(want bool, why string) func(*rows, string, value) (bool, error) {
	return func(_ *rows, name string, x value) (bool, error) {
		if yes, known := truth(x); known && yes == want {
			return true, nil
		}
		return false, fmt.Errorf("%s is %s, %s-map %s= leaves it out", name, shortJSON(x), why, name)
	}
}

var (
	checkSkip   = want(false, "want false or none: remove such rows; if it is something else, ")
	checkWeight = want(true, "want 1 or none: remove such rows; if it is something else, ")
	checkInputs = want(false, "and prompts are not learned: give all as text; ")
)

func checkWinner(f *rows, name string, x value) (bool, error) {
	if !f.form.pairs {
		return false, nil
	}
	return false, fmt.Errorf("%s is %s, and chosen is taken as the better answer: make it so, then -map %s= leaves it out", name, shortJSON(x), name)
}

func checkMask(_ *rows, name string, x value) (bool, error) {
	if text, _ := x.(string); text == "User" || text == "user" {
		return true, nil
	}
	return false, fmt.Errorf("%s is %s, want User or none"+withoutIt, name, shortJSON(x), name)
}

// checkContext refuses the text to which a question belongs.
func checkContext(_ *rows, name string, x value) (bool, error) {
	if _, ok := x.(string); !ok {
		return false, nil
	}
	return false, fmt.Errorf("%s may be the text that the question is about: -map input=%s adds it to the question, -map %s= leaves it out", name, name, name)
}

// shortJSON writes a value for an error.
func shortJSON(x value) string {
	if l, ok := x.(literal); ok {
		return string(l)
	}
	b, err := json.Marshal(x)
	if err != nil {
		return kindOf(x)
	}
	if len(b) > 40 {
		return fmt.Sprintf("%.40s…", b)
	}
	return string(b)
}

// variables are fields of rows that a chat template sees under their names.
var variables = []string{"documents", "enable_thinking", "reasoning_effort"}

// systemFields are fields of rows that hold the system message.
var systemFields = []string{"system", "system_prompt", "system_message"}

// conversationFields are the fields of rows that conversations obey.
var conversationFields = slices.Concat(systemFields, []string{"tools", "functions", "chat_template_kwargs"}, variables)

// converse gives conversations what a row has beside their messages: the system message, tools and variables of the template.
func (f *rows) converse(v *view, chats ...*chat.Conversation) error {
	system := ""
	for _, name := range systemFields {
		text, err := v.text(name)
		if err != nil {
			return err
		}
		if empty(text) || text == system {
			continue
		}
		if system != "" {
			return fmt.Errorf("the row has %s beside another system message", name)
		}
		system = text
	}
	var tools []any
	for _, name := range []string{"tools", "functions"} {
		list, err := f.toolsOf(name, v.take(name))
		if err != nil {
			return err
		}
		tools = append(tools, list...)
	}
	values, err := variablesOf(v)
	if err != nil {
		return err
	}
	for _, c := range chats {
		c.Values = append(c.Values, values...)
		c.Tools = append(c.Tools, tools...)
		if system == "" {
			continue
		}
		if i := slices.IndexFunc(c.Messages, func(m chat.Message) bool { return m.Role == "system" || m.Role == "developer" }); i >= 0 {
			if c.Messages[i].Content != system {
				return fmt.Errorf("the row has a system text, and message %d is another one: leave one of them out, such as with -map system=", i)
			}
			continue
		}
		c.Messages = slices.Insert(c.Messages, 0, chat.Message{Role: "system", Content: system})
	}
	return nil
}

// get returns a member of a type.
func get[T any](o object, name string) (x T, ok bool) {
	v, _ := o.Get(name)
	x, ok = v.(T)
	return x, ok
}

// with returns an object with another value of a member, which is added if it is missing.
func with(o object, name string, x value) object {
	o = slices.Clone(o)
	for i := range o {
		if o[i].Name == name {
			o[i].Value = x
			return o
		}
	}
	return append(o, member{Name: name, Value: x})
}

// noTemplate is the error of messages where there is no chat template.
func (r *reader) noTemplate() error {
	if r.tok.Config().ChatTemplate != "" {
		return errors.New("messages want a chat template, and Options.Template is nil: chat.Open makes it")
	}
	return errors.New("messages want a chat template, and the tokenizer has none")
}

// truncatedList writes a list of words for an error.
func truncatedList(words []string) string {
	switch n := len(words); n {
	case 0:
		return "none"
	case 1:
		return words[0]
	default:
		return strings.Join(words[:n-1], ", ") + " and " + words[n-1]
	}
}

// KnownField is a field that changes what is said or learned, under all of its names.
type KnownField struct {
	Names []string
	About string // what is done with it
}

// KnownFields returns the fields of rows, and the members of messages, that are known besides those of a form. It allocates
// the lists.
func KnownFields() (rows, members []KnownField) {
	byAbout := func(about map[string]string) (list []KnownField) {
		for _, name := range slices.Sorted(maps.Keys(about)) {
			i := slices.IndexFunc(list, func(f KnownField) bool { return f.About == about[name] })
			if i < 0 {
				i, list = len(list), append(list, KnownField{About: about[name]})
			}
			list[i].Names = append(list[i].Names, name)
		}
		return list
	}
	ofRows, ofMembers := map[string]string{}, map[string]string{}
	for name, r := range rowRules {
		ofRows[name] = r.about
	}
	for name, r := range messageRules {
		ofMembers[name] = r.about
	}
	return byAbout(ofRows), byAbout(ofMembers)
}
