package dataset

import (
	"fmt"
	"slices"
	"strings"

	"github.com/snug-ml/snug/chat"
)

// question is the name of a field with what is asked, and those of fields with the answer.
type question struct {
	ask     string
	answers []string
}

// questions are names of the field with what is asked, each with those of the answer.
var questions = []question{
	{"instruction", []string{"output", "response", "completion", "answer"}},
	{"question", []string{"answer", "response"}},
	{"query", []string{"response", "answer"}},
	{"problem", []string{"solution"}},
	{"prompt", []string{"response"}},
	{"input", []string{"output"}},
}

// instructionForm is an instruction with its answer, as Stanford's Alpaca has it, or a question with its answer. With a chat
// template it is a turn of the user and one of the assistant; without, the prompt of Alpaca.
var instructionForm = form{
	name: "alpaca", title: "instruction and answer",
	fields:  "instruction, input (may be missing) and output; or question and answer, query and response, problem and solution, prompt and response, input and output",
	learned: "the answer and its end", asks: true,
	fits: func(v *view) bool {
		ask, answers := asked(v)
		return ask != "" && len(answers) > 0
	},
	read: func(f *rows, v *view) (content, error) {
		ask, answers := asked(v)
		if len(answers) > 1 {
			return content{}, fmt.Errorf("both %s, want one answer: -map %s= leaves one out", strings.Join(answers, " and "), answers[1])
		}
		if _, isList := v.values[ask].(list); isList {
			return content{}, fmt.Errorf("%s is an array, want a string; messages are prompt and completion: -map prompt=%s,completion=%s", ask, ask, answers[0])
		}
		before, said, err := f.instruction(v, ask)
		if err != nil {
			return content{}, err
		}
		answer, err := v.text(answers[0])
		if err == nil && !f.told {
			err = v.longer(answers[0], answer)
		}
		if err != nil {
			return content{}, err
		}
		f.maps(said, "user")
		f.maps(answers[0], "assistant")
		if err := written(answers[0], answer); err != nil && !slices.ContainsFunc(reasoningNames, func(name string) bool { return !empty(v.values[name]) && !isMode(v.values[name]) }) {
			return content{}, err
		}
		if f.reader.options.Template == nil {
			prompt, err := f.alpacaPrompt(v, before)
			return content{prompt: prompt, answer: answer, asked: before.user()}, err
		}
		last := turn{Message: chat.Message{Role: "assistant", Content: answer}}
		for _, name := range reasoningNames {
			if isMode(v.values[name]) {
				continue
			}
			if x := v.take(name); !empty(x) {
				if err := f.reason(&last, name, x); err != nil {
					return content{}, err
				}
			}
		}
		return f.chat(v, chat.Conversation{Messages: append(before.messages(), last.Message)})
	},
}

// longer returns an error if the row has an answer under another name that says more, such as a solution beside its result.
func (v *view) longer(name, answer string) error {
	answer = words(answer)
	for _, q := range questions {
		for _, other := range q.answers {
			text, _ := v.values[other].(string)
			if text = words(text); other != name && len(text) > len(answer) && !strings.Contains(answer, text) {
				return fmt.Errorf("both %s and the longer %s, want one answer: -map %s= leaves one out, and -map %s=%s reads the longer one", name, other, other, name, other)
			}
		}
	}
	return nil
}

// asked returns the names of the fields of what is asked and of its answers.
func asked(v *view) (ask string, answers []string) {
	for _, q := range questions {
		if !v.has(q.ask) {
			continue
		}
		for _, name := range q.answers {
			if v.has(name) {
				answers = append(answers, name)
			}
		}
		if len(answers) > 0 {
			return q.ask, answers
		}
	}
	return "", nil
}

// instruction is what is asked.
type instruction struct {
	ask, input string
	history    [][2]string // earlier turns
}

// instruction takes the fields of what is asked, and says which they are. The row is left out if all of them are empty.
func (f *rows) instruction(v *view, ask string) (x instruction, said string, err error) {
	if x.ask, err = v.text(ask); err != nil {
		return x, "", err
	}
	said = ask
	if ask == "instruction" || ask != "input" && v.has("input") {
		for _, name := range []string{"input", "context"} {
			if ask != "instruction" && name == "context" {
				continue
			}
			text, err := v.text(name)
			if err != nil {
				return x, "", err
			}
			if _, there := v.values[name]; there {
				said += " and " + name
			}
			if text != "" && x.input != "" {
				return x, "", fmt.Errorf("both input and context: -map context= leaves one out")
			}
			x.input += text
		}
	}
	turns, err := v.items("history")
	if err != nil {
		return x, "", err
	}
	for i, t := range turns {
		pair, ok := t.(list)
		if ok && len(pair) == 2 {
			user, isText := pair[0].(string)
			assistant, alsoText := pair[1].(string)
			if isText && alsoText {
				x.history = append(x.history, [2]string{user, assistant})
				continue
			}
		}
		return x, "", fmt.Errorf("history: element %d is %s, want a pair of strings: what was asked, and the answer", i, shortJSON(t))
	}
	return x, said, written(said, x.user())
}

// user returns the turn of the user: the instruction, and on a line of its own the input.
func (x instruction) user() string {
	switch {
	case x.input == "":
		return x.ask
	case x.ask == "":
		return x.input
	}
	return x.ask + "\n" + x.input
}

// messages returns the conversation before the answer.
func (x instruction) messages() (list []chat.Message) {
	for _, h := range x.history {
		list = append(list, chat.Message{Role: "user", Content: h[0]}, chat.Message{Role: "assistant", Content: h[1]})
	}
	return append(list, chat.Message{Role: "user", Content: x.user()})
}

// alpacaPrompt returns the prompt with which Stanford's Alpaca was trained
// (https://github.com/tatsu-lab/stanford_alpaca), for models without a chat template.
func (f *rows) alpacaPrompt(v *view, x instruction) (string, error) {
	if len(x.history) > 0 {
		return "", fmt.Errorf("history wants a chat template, and the tokenizer has none")
	}
	f.maps("no chat template", "the prompt of Alpaca")
	if x.input != "" {
		return "Below is an instruction that describes a task, paired with an input that provides further context. " +
			"Write a response that appropriately completes the request.\n\n### Instruction:\n" + x.ask + "\n\n### Input:\n" + x.input + "\n\n### Response:\n", nil
	}
	return "Below is an instruction that describes a task. " +
		"Write a response that appropriately completes the request.\n\n### Instruction:\n" + x.ask + "\n\n### Response:\n", nil
}
