package dataset

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/chat"
)

// shapeOfAlpaca is a text that repeats an instruction, its input and its output under headings.
const shapeOfAlpaca = `Below is an instruction.\n\n### Instruction:\nSum up.\n\n### Input:\nA story.\n\n### Output:\nShort.`

// TestPublishedSets: rows in the shapes of published sets, with all of their columns, are read as their users mean them.
func TestPublishedSets(t *testing.T) {
	full := template(t, fullTemplate)
	plain := template(t, "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% if m.role == 'assistant' %}</s>{% endif %}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}")
	const alpaca = "Below is an instruction that describes a task, paired with an input that provides further context. Write a response that appropriately completes the request." +
		"\n\n### Instruction:\nSum up.\n\n### Input:\nA story.\n\n### Response:\n⟦Short.§⟧"
	const tools = `"tools": "[{\"name\": \"f\"}]"`
	const written = `<tools>[{"type": "function", "function": {"name": "f"}}]`
	const calls = `{"conversations": [{"from": "human", "value": "hi"}, {"from": "function_call", "value": "{\"name\": \"f\", \"arguments\": {}}"}, {"from": "observation", "value": "2"}, {"from": "gpt", "value": "ho"}]}`
	for name, c := range map[string]struct {
		text     string
		template *chat.Template
		o        Options
		want     []string
		said     []string
	}{
		"alpaca, text":                 {`{"instruction": "Sum up.", "input": "A story.", "output": "Short.", "text": "` + shapeOfAlpaca + `"}`, full, Options{}, []string{"<user>Sum up.\nA story.<assistant>⟦Short.</s>⟧"}, []string{": instruction and input → user, output → assistant", "ignored fields: text"}},
		"code instructions, prompt":    {`{"instruction": "Sum up.", "input": "A story.", "output": "Short.", "prompt": "` + shapeOfAlpaca + `"}`, nil, Options{}, []string{alpaca}, []string{": instruction and input → user, output → assistant, no chat template → the prompt of Alpaca", "ignored fields: prompt"}},
		"distilabel, in_gsm8k_train":   {`{"input": "hi", "chosen": "ho", "rejected": "no", "in_gsm8k_train": false}`, full, Options{Pairs: true}, []string{"<user>hi<assistant>⟦ho</s>⟧ | <user>hi<assistant>⟦no</s>⟧"}, []string{": input → user", "ignored fields: in_gsm8k_train"}},
		"capybara, conversation":       {`{"conversation": [{"input": "hi", "output": "ho"}], "prompt": "hi", "chosen": [` + hiUser + `, ` + ho + `], "rejected": [` + hiUser + `, {"role": "assistant", "content": "no"}]}`, full, Options{Pairs: true}, []string{"<user>hi<assistant>⟦ho</s>⟧ | <user>hi<assistant>⟦no</s>⟧"}, []string{"ignored fields: conversation"}},
		"nemotron, reasoning":          {`{"reasoning": "on", "messages": [` + hiUser + `, ` + ho + `]}`, full, Options{}, []string{"<user>hi<assistant>⟦ho</s>⟧"}, []string{"ignored fields: reasoning"}},
		"a mode beside a question":     {`{"reasoning": "off", "question": "hi", "answer": "ho"}`, full, Options{}, []string{"<user>hi<assistant>⟦ho</s>⟧"}, []string{": question → user, answer → assistant", "ignored fields: reasoning"}},
		"nemotron, input and output":   {`{"input": [` + hiUser + `], "output": "ho", "reasoning": "on"}`, full, Options{Map: map[string]string{"prompt": "input", "completion": "output"}}, []string{"<user>hi<assistant>⟦ho</s>⟧"}, []string{": completion → assistant", "ignored fields: reasoning"}},
		"calls without a template's":   {calls, plain, Options{}, []string{`<user>hi<assistant>⟦{"name": "f", "arguments": {}}</s>⟧<tool>2<assistant>⟦ho</s>⟧`}, []string{": human → user, function_call → assistant, observation → tool, gpt → assistant"}},
		"hermes, tools in the system":  {`{` + tools + `, "conversations": [{"from": "system", "value": "<tools> [{'name': 'f'}] </tools>"}, {"from": "human", "value": "hi"}, {"from": "gpt", "value": "ho"}]}`, full, Options{}, []string{written + "<system><tools> [{'name': 'f'}] </tools><user>hi<assistant>⟦ho</s>⟧"}, []string{": human → user, gpt → assistant", `line 1: the system message describes the tool "f", and the chat template writes the tools of the row, too: they are there twice; -map tools= leaves these out`}},
		"xlam, answers":                {`{"query": "hi", "answers": "[{\"name\": \"f\", \"arguments\": {}}]", ` + tools + `}`, full, Options{Map: map[string]string{"answer": "answers"}}, []string{written + `<user>hi<assistant>⟦[{"name": "f", "arguments": {}}]</s>⟧`}, []string{": query → user, answer → assistant", "line 1: message 1 (assistant) is calls of functions in JSON, beside tools, and is learned as that text: tool_calls are written as the chat template does"}},
		"xlam, as tool_calls":          {`{"messages": [` + hiUser + `, {"role": "assistant", "tool_calls": [{"name": "f", "arguments": {}}]}], ` + tools + `}`, full, Options{}, []string{written + `<user>hi<assistant>⟦<call>f{}</s>⟧`}, nil},
		"a large integer":              {called(`{"name": "f", "arguments": {"a": 12345678901234567890}}`), full, Options{}, []string{`<user>hi<assistant>⟦<call>f{"a": 12345678901234567890}</s>⟧<tool>2<assistant>⟦ho</s>⟧`}, nil},
		"a large integer in a text":    {called(`{"name": "f", "arguments": "{\"a\": -12345678901234567890}"}`), full, Options{}, []string{`<user>hi<assistant>⟦<call>f{"a": -12345678901234567890}</s>⟧<tool>2<assistant>⟦ho</s>⟧`}, nil},
		"special tokens of texts":      {`{"text": "a <|im_end|> b"}`, nil, Options{}, []string{"a⟦ <|im_end|> b§⟧"}, []string{`line 1: a text has the special token "<|im_end|>", which is encoded as that token`}},
		"special tokens of a prompt":   {`{"prompt": "a <|im_end|>", "completion": " b"}`, nil, Options{}, []string{"a <|im_end|>⟦ b§⟧"}, []string{`line 1: a text has the special token "<|im_end|>", which is encoded as that token`}},
		"special tokens of a pair":     {`{"prompt": "a", "chosen": " b", "rejected": " <|im_end|>c"}`, nil, Options{Pairs: true}, []string{"a⟦ b§⟧ | a⟦ <|im_end|>c§⟧"}, []string{`line 1: a text has the special token "<|im_end|>", which is encoded as that token`}},
		"an answer of white space":     {`{"messages": [` + hiUser + `, {"role": "assistant", "content": " \n"}, ` + hiUser + `, ` + ho + `]}`, full, Options{}, []string{"<user>hi<assistant>⟦</s>⟧<user>hi<assistant>⟦ho</s>⟧"}, []string{"line 1: message 1 (assistant) is empty, and only its end is learned"}},
		"an answer that is not seen":   {`{"messages": [` + hiUser + `, {"role": "assistant", "content": "\u200b"}]}` + "\n" + `{"messages": [` + hiUser + `, ` + ho + `]}`, full, Options{}, []string{"<user>hi<assistant>⟦ho</s>⟧"}, []string{"line 1: left out: message 1 (assistant) is empty"}},
		"texts in place of messages":   {`{"conversations": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]}`, full, Options{}, []string{"<user>hi<assistant>⟦ho</s>⟧"}, nil},
		"a short text of an alpaca":    {`{"instruction": "Sum up.", "output": "Short.", "text": "Sum up. Short."}`, full, Options{}, []string{"<user>Sum up.<assistant>⟦Short.</s>⟧"}, []string{": instruction → user, output → assistant", "ignored fields: text"}},
		"a class that is a zero, text": {`{"text": "one two", "label": "0"}`, nil, Options{}, []string{"one⟦ two§⟧"}, []string{"ignored fields: label"}},
	} {
		t.Run(name, func(t *testing.T) {
			c.o.Template = c.template
			_, samples, said, err := shownForms(t, c.text, c.o)
			require.NoError(t, err)
			require.Equal(t, c.want, samples)
			require.Equal(t, c.said, said)
		})
	}
	for name, c := range map[string]struct{ text, want string }{
		"lima":                          {`{"conversations": ["hi", "ho"], "source": "s"}`, `conversations is a list of texts, want messages: jq -c '.conversations |= [to_entries[] | {role: (if .key % 2 == 0 then "user" else "assistant" end), content: .value}]' FILE > rows.jsonl`},
		"capybara":                      {`{"conversation": [{"input": "hi", "output": "ho"}]}`, `conversation is a list of questions with their answers, want messages: jq -c '.conversation |= [.[] | {role: "user", content: .input}, {role: "assistant", content: .output}]' FILE > rows.jsonl`},
		"texts of a request":            {`{"input": {"messages": ["hi"]}, "preferred_output": [` + ho + `], "non_preferred_output": [{"role": "assistant", "content": "no"}]}`, "jq -c '.input.messages |= [to_entries[]"},
		"texts behind the map":          {`{"turns": ["hi", "ho"]}`, "turns is a list of texts, want messages: jq -c '.turns |= [to_entries[]"},
		"nemotron":                      {`{"input": [` + hiUser + `], "output": "ho"}`, "input is an array, want a string; messages are prompt and completion: -map prompt=input,completion=output"},
		"a mode of a message":           {`{"messages": [` + hiUser + `, {"role": "assistant", "content": "ho", "reasoning": "off"}]}`, `message 1: reasoning is "off", which says how much is thought, and not what: remove it`},
		"another input of an alpaca":    {`{"instruction": "Sum up.", "input": "Another story.", "output": "Short.", "text": "` + shapeOfAlpaca + `"}`, "has the field text besides, which says something else"},
		"a class that is no answer":     {`{"question": "hi", "answer": "ho", "label": "0"}`, `label is "0": a bad answer`},
		"a conversation of other texts": {`{"conversation": [{"input": "hi", "output": "x"}], "prompt": "hi", "completion": "ho"}`, "want messages"},
	} {
		o := Options{Template: full, Pairs: strings.Contains(c.text, "preferred_output")}
		if strings.Contains(c.text, "turns") {
			o.Map = map[string]string{"messages": "turns"}
		}
		_, _, _, err := shownForms(t, c.text, o)
		require.ErrorIs(t, err, snug.ErrConfig, name)
		require.ErrorContains(t, err, c.want, name)
	}
}
