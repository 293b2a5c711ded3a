package dataset

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/chat"
)

// fullTemplate writes all that a conversation can have.
const fullTemplate = "{% if tools %}<tools>{{ tools | tojson }}{% endif %}{% if enable_thinking is defined %}<thinks {{ enable_thinking }}>{% endif %}" +
	"{% for m in messages %}<{{ m.role }}>{% if m.name %}({{ m.name }}){% endif %}{% if m.reasoning_content %}<r>{{ m.reasoning_content }}</r>{% endif %}{{ m.content or '' }}" +
	"{% for c in m.tool_calls or [] %}<call>{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}" +
	"{% if m.role == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"

// shownForms opens lines and returns what is learned of each sample, answers of pairs divided by |, and what is said about the
// file without the name of its form.
func shownForms(t *testing.T, text string, o Options) (form string, samples, said []string, err error) {
	t.Helper()
	o.Context, o.EOS = 256, eos
	s, err := Open([]string{write(t, "a.jsonl", text)}, tok, o)
	if err != nil {
		return "", nil, nil, err
	}
	defer func() { require.NoError(t, s.Close()) }()
	for x, err := range s.Show(tok) {
		require.NoError(t, err)
		var texts []string
		for _, text := range x.Texts {
			texts = append(texts, strings.ReplaceAll(text.String(), "!", "§"))
		}
		samples = append(samples, strings.Join(texts, " | "))
	}
	f := s.Stats().Files[0]
	said = f.Lines()
	if said[0] = strings.TrimPrefix(said[0], "read as "+f.Form); said[0] == "" {
		said = append([]string(nil), said[1:]...)
	}
	return f.Form, samples, said, nil
}

const (
	hiUser = `{"role": "user", "content": "hi"}`
	ho     = `{"role": "assistant", "content": "ho"}`
)

func TestFormsOfPeople(t *testing.T) {
	full := template(t, fullTemplate)
	const learned = "<user>hi<assistant>⟦ho</s>⟧"
	for name, c := range map[string]struct {
		text     string
		template *chat.Template
		o        Options
		form     string
		want     []string
		said     []string
	}{
		"text":                                 {`{"text": "one two"}`, nil, Options{}, "text", []string{"one⟦ two§⟧"}, nil},
		"prompt and completion":                {`{"prompt": "One", "completion": " two", "id": 3}`, nil, Options{}, "prompt and completion", []string{"One⟦ two§⟧"}, []string{"ignored fields: id"}},
		"messages as completion":               {`{"prompt": [` + hiUser + `, ` + ho + `, ` + hiUser + `], "completion": [` + ho + `]}`, full, Options{}, "prompt and completion", []string{"<user>hi<assistant>ho</s>" + learned}, nil},
		"a prompt and messages":                {`{"prompt": "hi", "completion": [` + ho + `]}`, full, Options{}, "prompt and completion", []string{learned}, []string{": prompt → user"}},
		"a completion that repeats the prompt": {`{"prompt": [` + hiUser + `], "completion": [` + hiUser + `, ` + ho + `]}`, full, Options{}, "prompt and completion", []string{learned}, nil},
		"messages in a string":                 {`{"prompt": "[{\"role\": \"user\", \"content\": \"hi\"}]", "completion": "[{\"role\": \"assistant\", \"content\": \"ho\"}]"}`, full, Options{}, "prompt and completion", []string{learned}, nil},
		"system beside strings":                {`{"system": "Speak Dutch.", "prompt": "hi", "completion": "ho"}`, full, Options{}, "prompt and completion", []string{"<system>Speak Dutch." + learned}, []string{": prompt → user, completion → assistant"}},
		"strings beside a template":            {`{"prompt": "One", "completion": " two"}`, full, Options{}, "prompt and completion", []string{"One⟦ two§⟧"}, []string{": strings → one text without the chat template"}},
		"strings without a blank": {`{"prompt": "2+2?", "completion": "4"}` + "\n" + `{"prompt": "2+2?\n", "completion": "4"}` + "\n" + `{"prompt": "二加二？", "completion": "四"}`, full, Options{}, "prompt and completion", []string{"2+2?⟦4§⟧", "2+2?\n⟦4§⟧", "二加二？⟦四§⟧"},
			[]string{": strings → one text without the chat template", "line 1: prompt and completion join without white space; -map question=prompt,answer=completion writes them as turns"}},
		"strings mapped to turns":                           {`{"prompt": "hi", "completion": "ho"}`, full, Options{Map: map[string]string{"question": "prompt", "answer": "completion"}}, "instruction and answer", []string{learned}, []string{": question → user, answer → assistant"}},
		"the whole text of a question":                      {`{"instruction": "hi", "text": "hi ho", "summary": "ho"}`, nil, Options{}, "text", []string{"hi⟦ ho§⟧"}, []string{"ignored fields: instruction, summary"}},
		"a number beside a text":                            {`{"text": "one two", "target": 1}`, nil, Options{}, "text", []string{"one⟦ two§⟧"}, []string{"ignored fields: target"}},
		"-format text":                                      {`{"text": "hi ho", "role": "prompter", "parent_id": "1"}`, nil, Options{Format: "text"}, "text", []string{"hi⟦ ho§⟧"}, []string{"ignored fields: role, parent_id"}},
		"a completion that repeats the end of the prompt":   {`{"prompt": [{"role": "system", "content": "s"}, ` + hiUser + `], "completion": [` + hiUser + `, ` + ho + `]}`, full, Options{}, "prompt and completion", []string{"<system>s" + learned}, nil},
		"a completion that repeats the prompt after system": {`{"prompt": [` + hiUser + `], "completion": [{"role": "system", "content": "s"}, ` + hiUser + `, ` + ho + `]}`, full, Options{}, "prompt and completion", []string{"<system>s" + learned}, nil},
		"a prompt with a blank behind it":                   {`{"prompt": [{"role": "user", "content": "hi "}], "completion": [` + hiUser + `, ` + ho + `]}`, full, Options{}, "prompt and completion", []string{"<user>hi <assistant>⟦ho</s>⟧"}, nil},
		"a completion text that repeats the prompt":         {`{"prompt": "One ", "completion": "One two"}`, nil, Options{}, "prompt and completion", []string{"One⟦ One two§⟧"}, []string{"line 1: completion begins with the prompt, which is then there twice: cut it off, or -map text=completion,prompt= reads the completion as a text"}},

		"messages":                    {`{"messages": [` + hiUser + `, ` + ho + `]}`, full, Options{}, "messages", []string{learned}, nil},
		"messages as a string":        {`{"messages": "[{\"role\": \"user\", \"content\": \"hi\"}, {\"role\": \"assistant\", \"content\": \"ho\"}]"}`, full, Options{}, "messages", []string{learned}, nil},
		"parts":                       {`{"messages": [{"role": "user", "content": [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]}, {"role": "assistant", "content": [{"type": "text", "value": "ho"}]}]}`, full, Options{}, "messages", []string{learned}, nil},
		"lists of roles and contents": {`{"messages": {"role": ["user", "assistant"], "content": ["hi", "ho"]}}`, full, Options{}, "messages", []string{learned}, nil},
		"lists of ShareGPT":           {`{"conversations": {"from": ["human", "gpt"], "value": ["hi", "ho"]}}`, full, Options{}, "ShareGPT", []string{learned}, []string{": human → user, gpt → assistant"}},
		"ShareGPT as strings":         {`{"prompt": "[{\"from\": \"human\", \"value\": \"hi\"}]", "completion": "[{\"from\": \"gpt\", \"value\": \"ho\"}]"}`, full, Options{}, "prompt and completion", []string{learned}, []string{": human → user, gpt → assistant"}},
		"ultrachat":                   {`{"prompt": "hi", "prompt_id": "1", "messages": [` + hiUser + `, ` + ho + `]}`, full, Options{}, "messages", []string{learned}, []string{"ignored fields: prompt, prompt_id"}},
		"no_robots":                   {`{"prompt": " hi\n", "prompt_id": "1", "messages": [{"role": "system", "content": "Be kind."}, ` + hiUser + `, ` + ho + `], "category": "Chat"}`, full, Options{}, "messages", []string{"<system>Be kind." + learned}, []string{"ignored fields: prompt, prompt_id, category"}},
		"a text of the whole":         {`{"text": "User: hi Assistant: ho", "messages": [` + hiUser + `, ` + ho + `]}`, full, Options{}, "messages", []string{learned}, []string{"ignored fields: text"}},
		"preferences without -dpo":    {`{"prompt": "hi", "chosen": [` + hiUser + `, ` + ho + `], "rejected": [` + hiUser + `, {"role": "assistant", "content": "no"}], "messages": [` + hiUser + `, ` + ho + `]}`, full, Options{}, "messages", []string{learned}, []string{"ignored fields: prompt, chosen, rejected"}},
		"a later prompt that differs": {`{"prompt": "hi", "messages": [` + hiUser + `, ` + ho + `]}` + "\n" + `{"prompt": "HI!", "messages": [` + hiUser + `, ` + ho + `]}`, full, Options{}, "messages", []string{learned, learned},
			[]string{"ignored fields: prompt", "line 2: the field prompt, which is ignored, says something else than the messages"}},

		"system beside messages": {`{"system": "Speak Dutch.", "messages": [` + hiUser + `, ` + ho + `]}`, full, Options{}, "messages", []string{"<system>Speak Dutch." + learned}, nil},
		"the same system twice":  {`{"system": "a", "messages": [{"role": "system", "content": "a"}, ` + hiUser + `, ` + ho + `]}`, full, Options{}, "messages", []string{"<system>a" + learned}, nil},
		"no tools in a string":   {`{"tools": "[]", "messages": [` + hiUser + `, ` + ho + `]}`, full, Options{}, "messages", []string{learned}, nil},
		"tools":                  {`{"tools": [{"type": "function", "function": {"name": "f"}}], "messages": [` + hiUser + `, ` + ho + `]}`, full, Options{}, "messages", []string{`<tools>[{"type": "function", "function": {"name": "f"}}]` + learned}, nil},
		"tools in a string":      {`{"tools": "[{\"name\": \"f\"}]", "messages": [` + hiUser + `, ` + ho + `]}`, full, Options{}, "messages", []string{`<tools>[{"type": "function", "function": {"name": "f"}}]` + learned}, nil},
		"calls": {`{"messages": [` + hiUser + `, {"role": "assistant", "content": null, "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}}]}, {"role": "tool", "name": "f", "content": "2"}, ` + ho + `]}`, full, Options{}, "messages",
			[]string{"<user>hi<assistant>⟦<call>f{\"a\": 1}</s>⟧<tool>(f)2<assistant>⟦ho</s>⟧"}, nil},
		"an end that the template writes": {`{"question": "hi", "answer": "ho</s>"}`, full, Options{}, "instruction and answer", []string{learned}, []string{": question → user, answer → assistant", `line 1: message 1 (assistant) ends with "</s>", which the chat template writes: it is taken once`}},
		"markup in a text":                {`{"text": "<|im_start|>user hi"}`, full, Options{}, "text", []string{"<|im_start|>⟦user hi§⟧"}, []string{`line 1: a text has "<|im_start|>", the markup of a chat template, which is learned as text; messages are written by the model's own template, and only the answers are learned`}},
		"markup that is no token":         {`{"prompt": "[INST] hi [/INST]", "completion": " ho"}`, nil, Options{}, "prompt and completion", []string{"[INST] hi [/INST]⟦ ho§⟧"}, []string{`line 1: a text has "[INST]", the markup of a chat template, which is no token of this tokenizer, and strings are learned as they are; messages are written by the model's own template`}},
		"markup in an answer":             {`{"question": "[INST] hi", "answer": "ho"}`, full, Options{}, "instruction and answer", []string{"<user>[INST] hi<assistant>⟦ho</s>⟧"}, []string{": question → user, answer → assistant", `line 1: a text has "[INST]", the markup of a chat template, which is no token of this tokenizer, and the chat template writes its own around it`}},
		"a header in a question":          {`{"messages": [{"role": "user", "content": "Go on\n<assistant>ho"}, ` + ho + `]}`, full, Options{}, "messages", []string{"<user>Go on\n<assistant>ho<assistant>⟦ho</s>⟧"}, []string{`line 1: a line of message 0 (user) begins with "<assistant>", as the chat template begins an answer: the model reads another turn there`}},
		"a header within a line":          {`{"question": "Is <assistant> HTML?", "answer": "ho"}`, full, Options{}, "instruction and answer", []string{"<user>Is <assistant> HTML?<assistant>⟦ho</s>⟧"}, []string{": question → user, answer → assistant"}},
		"a special token in a question":   {`{"messages": [{"role": "user", "content": "hi <|im_start|> x"}, ` + ho + `]}` + "\n" + `{"messages": [` + hiUser + `, {"role": "assistant", "content": "ho", "thinking": "<|im_start|>"}]}`, full, Options{}, "messages", []string{"<user>hi <|im_start|> x<assistant>⟦ho</s>⟧", "<user>hi<assistant>⟦<r><|im_start|></r>ho</s>⟧"}, []string{`2 rows, first line 1: the text of message 0 (user) has the special token "<|im_start|>", which is encoded as that token`}},
		"no arguments":                    {`{"messages": [` + hiUser + `, {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": ""}}, {"function": {"name": "g", "arguments": null}}]}]}`, full, Options{}, "messages", []string{"<user>hi<assistant>⟦<call>f{}<call>g{}</s>⟧"}, nil},
		"function_call":                   {`{"messages": [` + hiUser + `, {"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}}]}`, full, Options{}, "messages", []string{"<user>hi<assistant>⟦<call>f{}</s>⟧"}, nil},
		"reasoning":                       {`{"messages": [` + hiUser + `, {"role": "assistant", "content": "ho", "thinking": "why"}]}`, full, Options{}, "messages", []string{"<user>hi<assistant>⟦<r>why</r>ho</s>⟧"}, nil},
		"not trained":                     {`{"messages": [` + hiUser + `, {"role": "assistant", "content": "no", "train": false}, ` + hiUser + `, ` + ho + `]}`, full, Options{}, "messages", []string{"<user>hi<assistant>no</s>" + learned}, nil},
		"weight 0":                        {`{"messages": [{"role": "user", "content": "hi", "loss_weight": 0.0}, {"role": "assistant", "content": "no", "weight": 0}, ` + hiUser + `, {"role": "assistant", "content": "ho", "loss_weight": 1.0}]}`, full, Options{}, "messages", []string{"<user>hi<assistant>no</s>" + learned}, nil},
		"masked":                          {`{"messages": [{"role": "user", "content": "hi", "masked": true}, {"role": "assistant", "content": "no", "masked": true}, ` + hiUser + `, {"role": "assistant", "content": "ho", "masked": false}]}`, full, Options{}, "messages", []string{"<user>hi<assistant>no</s>" + learned}, nil},
		"a variable of the template":      {`{"enable_thinking": false, "messages": [` + hiUser + `, ` + ho + `]}`, full, Options{}, "messages", []string{"<thinks False>" + learned}, nil},
		"kwargs of the template":          {`{"chat_template_kwargs": {"enable_thinking": true}, "messages": [` + hiUser + `, ` + ho + `]}`, full, Options{}, "messages", []string{"<thinks True>" + learned}, nil},
		"a good answer":                   {`{"label": true, "messages": [` + hiUser + `, ` + ho + `]}`, full, Options{}, "messages", []string{learned}, nil},
		"a class":                         {`{"label": "science", "messages": [` + hiUser + `, ` + ho + `]}`, full, Options{}, "messages", []string{learned}, []string{"ignored fields: label"}},

		"trainable and ignore": {`{"messages": [` + hiUser + `, {"role": "assistant", "content": "no", "trainable": false}, ` + hiUser + `, {"role": "assistant", "content": "no", "ignore": true}, ` + hiUser + `, {"role": "assistant", "content": "ho", "learn": true, "skip": false, "label": 1}]}`, full, Options{}, "messages", []string{"<user>hi<assistant>no</s><user>hi<assistant>no</s>" + learned}, nil},
		"members of messages":  {`{"messages": [{"role": "user", "content": "hi", "name": "A", "id": 7}, {"role": "assistant", "content": "ho", "likes": 3}]}`, full, Options{}, "messages", []string{"<user>(A)hi<assistant>⟦ho</s>⟧"}, []string{"ignored fields: messages.id, messages.likes"}},
		"no blank before an answer": {`{"prompt": "un", "completion": "do"}` + "\n" + `{"prompt": "Please un", "completion": "do"}`, nil, Options{}, "prompt and completion", []string{"und⟦o§⟧", "Please⟦ undo§⟧"},
			[]string{"2 rows, first line 1: prompt and completion join without white space", "line 1: the prompt and the beginning of the answer are one token, the first of the text, which is not learned: begin the answer with a blank, or use a longer prompt"}},

		"a class is ignored":      {`{"label": 0, "text": "one two"}`, nil, Options{}, "text", []string{"one⟦ two§⟧"}, []string{"ignored fields: label"}},
		"content twice":           {`{"messages": [{"role": "user", "content": "hi", "value": "hi", "text": "hi"}, ` + ho + `]}`, full, Options{}, "messages", []string{learned}, nil},
		"ShareGPT":                {`{"id": 1, "conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "ho"}]}`, full, Options{}, "ShareGPT", []string{learned}, []string{": human → user, gpt → assistant", "ignored fields: id"}},
		"ShareGPT in messages":    {`{"messages": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "ho"}]}`, full, Options{}, "ShareGPT", []string{learned}, []string{": human → user, gpt → assistant"}},
		"conversations of OpenAI": {`{"conversations": [` + hiUser + `, ` + ho + `]}`, full, Options{}, "ShareGPT", []string{learned}, nil},
		"role and value":          {`{"conversation": [{"role": "human", "value": "hi"}, {"role": "Assistant", "value": "ho", "weight": 1}]}`, full, Options{}, "ShareGPT", []string{learned}, []string{": human → user, Assistant → assistant"}},
		"calls of ShareGPT": {`{"system": "s", "tools": "[{\"name\": \"f\"}]", "conversations": [{"from": "human", "value": "hi"}, {"from": "function_call", "value": "{\"name\": \"f\", \"arguments\": {\"a\": 1}}"}, {"from": "observation", "value": "2"}, {"from": "gpt", "value": "ho"}]}`, full, Options{}, "ShareGPT",
			[]string{`<tools>[{"type": "function", "function": {"name": "f"}}]` + "<system>s<user>hi<assistant>⟦<call>f{\"a\": 1}</s>⟧<tool>2<assistant>⟦ho</s>⟧"},
			[]string{": human → user, function_call → assistant's tool call, observation → tool, gpt → assistant"}},
		"-format sharegpt": {`{"messages": [{"role": "human", "content": "hi"}, {"role": "gpt", "content": "ho"}]}`, full, Options{Format: "sharegpt"}, "ShareGPT", []string{learned}, []string{": human → user, gpt → assistant"}},

		"Alpaca": {`{"instruction": "a", "input": "b", "output": "c", "text": "Below ... a b c"}`, full, Options{}, "instruction and answer", []string{"<user>a\nb<assistant>⟦c</s>⟧"}, []string{": instruction and input → user, output → assistant", "ignored fields: text"}},
		"Alpaca without a template": {`{"instruction": "a", "input": "", "output": "c"}`, nil, Options{}, "instruction and answer",
			[]string{"Below is an instruction that describes a task. Write a response that appropriately completes the request.\n\n### Instruction:\na\n\n### Response:\n⟦c§⟧"}, []string{": instruction and input → user, output → assistant, no chat template → the prompt of Alpaca"}},
		"history":               {`{"instruction": "a", "input": "", "output": "c", "system": "s", "history": [["x", "y"]]}`, full, Options{}, "instruction and answer", []string{"<system>s<user>x<assistant>⟦y</s>⟧<user>a<assistant>⟦c</s>⟧"}, []string{": instruction and input → user, output → assistant"}},
		"dolly":                 {`{"instruction": "a", "context": "b", "response": "c", "category": "qa"}`, full, Options{}, "instruction and answer", []string{"<user>a\nb<assistant>⟦c</s>⟧"}, []string{": instruction and context → user, response → assistant", "ignored fields: category"}},
		"GSM8K":                 {`{"question": "a", "answer": "c"}`, full, Options{}, "instruction and answer", []string{"<user>a<assistant>⟦c</s>⟧"}, []string{": question → user, answer → assistant"}},
		"OpenOrca":              {`{"id": 1, "system_prompt": "s", "question": "a", "response": "c"}`, full, Options{}, "instruction and answer", []string{"<system>s<user>a<assistant>⟦c</s>⟧"}, []string{": question → user, response → assistant", "ignored fields: id"}},
		"a column of reasoning": {`{"question": "a", "reasoning": "why", "answer": "c"}`, full, Options{}, "instruction and answer", []string{"<user>a<assistant>⟦<r>why</r>c</s>⟧"}, []string{": question → user, answer → assistant"}},
		"-map":                  {`{"frage": "One", "antwort": " two", "prompt": "x"}`, nil, Options{Map: map[string]string{"prompt": "frage", "completion": "antwort"}}, "prompt and completion", []string{"One⟦ two§⟧"}, []string{"ignored fields: prompt"}},
		"-map leaves out":       {`{"prompt": "One", "completion": " two", "label": false}`, nil, Options{Map: map[string]string{"label": ""}}, "prompt and completion", []string{"One⟦ two§⟧"}, nil},
		"-format completion":    {`{"prompt": "One", "completion": " two", "text": "other"}`, nil, Options{Format: "completion"}, "prompt and completion", []string{"One⟦ two§⟧"}, []string{"ignored fields: text"}},

		"glaive": {`{"system": "SYSTEM: You help with access to the following functions. Use them if required -\n{\"name\": \"f\"}\n{\"name\": \"g\"}\n", "chat": "USER: hi\n\n\nASSISTANT: <functioncall> {\"name\": \"f\", \"arguments\": '{\"a\": 1}'} <|endoftext|>\n\n\nFUNCTION RESPONSE: {\"b\": 2}\n\n\nASSISTANT: ho <|endoftext|>\n\n\n"}`, full, Options{}, "glaive function calls",
			[]string{`<tools>[{"type": "function", "function": {"name": "f"}}, {"type": "function", "function": {"name": "g"}}]` + "<system>You help.<user>hi<assistant>⟦<call>f{\"a\": 1}</s>⟧<tool>{\"b\": 2}<assistant>⟦ho</s>⟧"},
			[]string{": the functions in system → tools, SYSTEM → system, USER → user, ASSISTANT → assistant, <functioncall> → tool_calls, FUNCTION RESPONSE → tool"}},
		"glaive without tools": {`{"system": "SYSTEM: Use -\n{\"name\": \"f\"}\n", "chat": "USER: hi\n\n\nASSISTANT: <functioncall> {\"name\": \"f\"} <|endoftext|>"}`, template(t, "{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ '</s>' if m.role == 'assistant' }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"), Options{}, "glaive function calls",
			[]string{"<system>Use -\n{\"name\": \"f\"}<user>hi<assistant>⟦<functioncall> {\"name\": \"f\"}</s>⟧"}, []string{": SYSTEM → system, USER → user, ASSISTANT → assistant"}},
	} {
		t.Run(name, func(t *testing.T) {
			c.o.Template = c.template
			form, samples, said, err := shownForms(t, c.text, c.o)
			require.NoError(t, err)
			require.Equal(t, c.form, form)
			require.Equal(t, c.want, samples)
			require.Equal(t, c.said, said)
		})
	}
}

func TestFormsOfPreferences(t *testing.T) {
	full := template(t, fullTemplate)
	no := `{"role": "assistant", "content": "no"}`
	const learned = "<user>hi<assistant>⟦ho</s>⟧ | <user>hi<assistant>⟦no</s>⟧"
	dutch := "<system>Speak Dutch." + strings.ReplaceAll(learned, " | ", " | <system>Speak Dutch.")
	for name, c := range map[string]struct {
		text     string
		template *chat.Template
		want     []string
		said     []string
	}{
		"strings":                         {`{"prompt": "Say", "chosen": " ho", "rejected": " no"}`, nil, []string{"Say⟦ ho§⟧ | Say⟦ no§⟧"}, nil},
		"no prompt":                       {`{"chosen": "The sky is blue.", "rejected": "The sky is green."}`, nil, []string{"The sky is⟦ blue.§⟧ | The sky is⟦ green.§⟧"}, []string{": what both answers begin with → prompt"}},
		"answers alone":                   {`{"prompt": [` + hiUser + `], "chosen": [` + ho + `], "rejected": [` + no + `]}`, full, []string{learned}, nil},
		"objects":                         {`{"prompt": [` + hiUser + `], "chosen": ` + ho + `, "rejected": ` + no + `}`, full, []string{learned}, nil},
		"with the prompt":                 {`{"chosen": [` + hiUser + `, ` + ho + `], "rejected": [` + hiUser + `, ` + no + `]}`, full, []string{learned}, nil},
		"the prompt twice":                {`{"prompt": [` + hiUser + `], "chosen": [` + hiUser + `, ` + ho + `], "rejected": [` + hiUser + `, ` + no + `]}`, full, []string{learned}, nil},
		"a text prompt twice":             {`{"prompt": "hi", "chosen": [` + hiUser + `, ` + ho + `], "rejected": [` + hiUser + `, ` + no + `], "messages": [` + hiUser + `, ` + ho + `], "score_chosen": 9.5}`, full, []string{learned}, []string{"ignored fields: messages, score_chosen"}},
		"a text prompt once":              {`{"prompt": "hi", "chosen": [` + ho + `], "rejected": [` + no + `]}`, full, []string{learned}, []string{": prompt → user"}},
		"the end of the prompt twice":     {`{"prompt": [{"role": "system", "content": "Speak Dutch."}, ` + hiUser + `], "chosen": [` + hiUser + `, ` + ho + `], "rejected": [` + hiUser + `, ` + no + `]}`, full, []string{dutch}, nil},
		"the prompt after system":         {`{"prompt": [` + hiUser + `], "chosen": [{"role": "system", "content": "Speak Dutch."}, ` + hiUser + `, ` + ho + `], "rejected": [{"role": "system", "content": "Speak Dutch."}, ` + hiUser + `, ` + no + `]}`, full, []string{dutch}, nil},
		"the prompt with a blank":         {`{"prompt": "hi ", "chosen": [` + hiUser + `, ` + ho + `], "rejected": [` + hiUser + `, ` + no + `]}`, full, []string{learned}, nil},
		"texts that repeat the prompt":    {`{"prompt": "Say", "chosen": "Say ho", "rejected": "Say no"}`, nil, []string{"Say⟦ ho§⟧ | Say⟦ no§⟧"}, []string{"line 1: chosen and rejected begin with the prompt, which is taken once"}},
		"hh-rlhf with its prompt":         {`{"prompt": "\n\nHuman: hi\n\nAssistant:", "chosen": "\n\nHuman: hi\n\nAssistant: ho", "rejected": "\n\nHuman: hi\n\nAssistant: no"}`, full, []string{learned}, []string{": Human → user, Assistant → assistant"}},
		"system":                          {`{"system": "Speak Dutch.", "prompt": "hi", "chosen": "ho", "rejected": "no"}`, full, []string{dutch}, []string{": prompt → user"}},
		"system and messages":             {`{"system": "Speak Dutch.", "chosen": [` + hiUser + `, ` + ho + `], "rejected": [` + hiUser + `, ` + no + `]}`, full, []string{dutch}, nil},
		"orca_dpo_pairs":                  {`{"system": "Speak Dutch.", "question": "hi", "chosen": "ho", "rejected": "no"}`, full, []string{dutch}, []string{": question → user"}},
		"LLaMA-Factory":                   {`{"conversations": [{"from": "human", "value": "hi"}], "chosen": {"from": "gpt", "value": "ho"}, "rejected": {"from": "gpt", "value": "no"}}`, full, []string{learned}, []string{": gpt → assistant, human → user"}},
		"Alpaca":                          {`{"instruction": "a", "input": "b", "chosen": "ho", "rejected": "no"}`, full, []string{"<user>a\nb<assistant>⟦ho</s>⟧ | <user>a\nb<assistant>⟦no</s>⟧"}, []string{": instruction and input → user"}},
		"argilla":                         {`{"instruction": "hi", "chosen_response": "ho", "rejected_response": "no"}`, full, []string{learned}, []string{": instruction → user"}},
		"OpenAI":                          {`{"input": {"messages": [` + hiUser + `], "tools": [], "parallel_tool_calls": true}, "preferred_output": [` + ho + `], "non_preferred_output": [` + no + `]}`, full, []string{learned}, []string{"ignored fields: input.parallel_tool_calls"}},
		"messages with the chosen answer": {`{"messages": [` + hiUser + `, ` + ho + `], "chosen": ` + ho + `, "rejected": ` + no + `}`, full, []string{learned}, nil},
		"messages with the chosen text":   {`{"messages": [` + hiUser + `, ` + ho + `], "chosen": "ho", "rejected": "no"}`, full, []string{learned}, nil},
		"hh-rlhf": {`{"chosen": "\n\nHuman: a\n\nAssistant: b\n\nHuman: hi\n\nAssistant: ho", "rejected": "\n\nHuman: a\n\nAssistant: b\n\nHuman: hi\n\nAssistant: no"}`, full,
			[]string{"<user>a<assistant>b</s>" + strings.ReplaceAll(learned, " | ", " | <user>a<assistant>b</s>")}, []string{": Human → user, Assistant → assistant"}},
		"hh-rlhf without a template": {`{"chosen": "\n\nHuman: hi\n\nAssistant: ho", "rejected": "\n\nHuman: hi\n\nAssistant: no"}`, nil,
			[]string{"\n\nHuman: hi\n\nAssistant:⟦ ho§⟧ | \n\nHuman: hi\n\nAssistant:⟦ no§⟧"}, []string{": up to the last Assistant: → prompt"}},
		"strings beside a template": {`{"prompt": "Say", "chosen": "ho", "rejected": " no"}`, full, []string{"Say⟦ho§⟧ | Say⟦ no§⟧"}, []string{": strings → one text without the chat template", "line 1: prompt and chosen join without white space"}},
		"equal answers":             {`{"prompt": "Say", "chosen": " ho", "rejected": " no"}` + "\n" + `{"prompt": "Say", "chosen": " ho", "rejected": " ho"}`, nil, []string{"Say⟦ ho§⟧ | Say⟦ no§⟧"}, []string{"line 2: left out: chosen and rejected are equal"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, samples, said, err := shownForms(t, c.text, Options{Template: c.template, Pairs: true})
			require.NoError(t, err)
			require.Equal(t, c.want, samples)
			require.Equal(t, c.said, said)
		})
	}
}

// TestFieldsRefused: fields that change what is said or learned are refused where they cannot be obeyed, in every form, and
// the error says the remedy.
func TestFieldsRefused(t *testing.T) {
	full := template(t, fullTemplate)
	good := `"messages": [` + hiUser + `, ` + ho + `]`
	for _, c := range []struct {
		text, want string
		pairs      bool
		template   *chat.Template
	}{
		{`{"prompt": "2+2?", "completion": "5", "label": false}`, "label is false: a bad answer", false, nil},
		{`{"prompt": "2+2?", "completion": "5", "label": "False"}`, `label is "False": a bad answer`, false, nil},
		{`{"label": false, ` + good + `}`, "label is false: a bad answer", false, full},
		{`{"kto_tag": false, ` + good + `}`, "kto_tag is false: a bad answer", false, full},
		{`{"text": "x y", "label": false}`, "label is false", false, nil},
		{`{"instruction": "x", "output": "y", "label": 0}`, "label is 0", false, full},
		{`{"prompt": "x", "chosen": " y", "rejected": " z", "label": false}`, "label is false", true, nil},
		{`{"weight": 0.5, ` + good + `}`, "weight is 0.5, want 1 or none", false, full},
		{`{"train": false, ` + good + `}`, "train is false, want 1 or none", false, full},
		{`{"mask": "Assistant", ` + good + `}`, `mask is "Assistant", want User or none`, false, full},
		{`{"train_on_inputs": true, "prompt": "x", "completion": " y"}`, "prompts are not learned", false, nil},
		{`{"images": ["a.png"], ` + good + `}`, "the row has images, and only text is learned", false, full},
		{`{"image": {"bytes": "x", "path": null}, "text": "x y"}`, "the row has image, and only text is learned", false, nil},
		{`{"audio": "a.wav", "prompt": "x", "chosen": " y", "rejected": " z"}`, "the row has audio, and only text", true, nil},
		{`{"chat_template": "{{ 1 }}", ` + good + `}`, "cannot bring its own chat template", false, full},
		{`{"system": "Speak Dutch.", "text": "x y"}`, "system is for the chat template, and the row has only texts", false, full},
		{`{"system": "Speak Dutch.", "prompt": "x", "completion": " y"}`, "system is for the chat template", false, nil},
		{`{"tools": [{"name": "f"}], "prompt": "x", "chosen": " y", "rejected": " z"}`, "tools is for the chat template", true, nil},
		{`{"system": "a", "messages": [{"role": "system", "content": "b"}, ` + hiUser + `, ` + ho + `]}`, "the row has a system text, and message 0 is another one", false, full},
		{`{"system": "a", "system_prompt": "b", ` + good + `}`, "system_prompt beside another system message", false, full},
		{`{"history": [["a", "b"]], ` + good + `}`, "earlier turns are for instructions", false, full},
		{`{"question": "a", "context": "b", "answer": "c"}`, "-map input=context adds it to the question", false, full},
		{`{"input_ids": [1, 2], "text": "x y"}`, "the row has tokens, want text", false, nil},
		{`{"input_ids": [1, 2], "labels": [1, 2]}`, "the row has tokens (input_ids), want text", false, nil},
		{`{"chat_template_kwargs": {"messages": []}, ` + good + `}`, "chat_template_kwargs has messages, which a row cannot set", false, full},
		{`{"tools": "f(x)", ` + good + `}`, "tools is a string that is no JSON", false, full},

		{`{"question": "a", "answer": null}`, "line 1: answer is null, want a text or messages", false, full},
		{`{"question": null, "answer": null, "id": null}`, "line 1: question and answer are null, want", false, full},
		{`{"messages": null, "id": 1}`, "line 1: messages is null, want", false, full},
		{`{"prompt": "x", "chosen": "y", "rejected": null}`, "line 1: rejected is null, want", true, nil},
		{`{"data": [{` + good + `}]}`, "the fields of the row are data, and rows lie within data, want one row an object: jq -c '.data[]' FILE > rows.jsonl takes them out", false, full},
		{`{"version": "1", "splits": {"train": [{"text": "x"}]}}`, "jq -c '.splits.train[]' FILE", false, full},
		{`{"my rows": [{"text": "x"}]}`, `the fields of the row are "my rows", and rows lie within my rows, want one row an object: jq -c '.["my rows"][]' FILE`, false, full},
		{`{"turns": [` + hiUser + `, ` + ho + `]}`, "and turns has messages: -map messages=turns", false, full},
		{`{"Question": "a", "Answer": "b"}`, "whose names differ only in case or blanks from those of a form: -map question=Question,answer=Answer", false, full},
		{`{"question": "a", " Answer": "b"}`, `the fields of the row are question, " Answer", whose names differ only in case or blanks from those of a form: -map 'answer= Answer'`, false, full},
		{`{"Prompt": "x", "Chosen": "y", "Rejected": "z"}`, "-map prompt=Prompt,chosen=Chosen,rejected=Rejected", true, nil},
		{`{"": 0, "body": "x"}`, `the fields of the row are "" (a column without a name, such as the index that pandas writes), body`, false, full},

		{`{"messages": [{"content": "x"}, ` + ho + `]}`, "message 0: no role, want role: its members are content", false, full},
		{`{"messages": [{"role": "", "content": "x"}, ` + ho + `]}`, `message 0: role is "", want a role`, false, full},
		{`{"messages": [` + hiUser + `, ` + ho + `, ` + hiUser + `, {"role": "Assistant", "content": "y"}]}`, `message 3 has the role "Assistant", which chat templates call assistant`, false, full},
		{`{"messages": [{"role": "human", "content": "x"}, {"role": "gpt", "content": "y"}]}`, "no message has the role assistant; there are human and gpt: -format sharegpt reads these roles", false, full},
		{`{"messages": [` + hiUser + `, {"role": "model", "content": "y"}]}`, "no message has the role assistant; there are user and model", false, full},
		{`{"messages": [` + hiUser + `]}`, "line 1: no message has the role assistant; there are user", false, full},
		{`{"conversations": [{"from": "alien", "value": "x"}]}`, `the role "alien", want one of human, gpt`, false, full},
		{`{"prompt": [` + hiUser + `], "chosen": [{"role": "bot", "content": "y"}], "rejected": [` + ho + `]}`, "chosen: no message has the role assistant; there are bot", true, full},

		{`{"messages": [` + hiUser + `, {"role": "assistant", "content": "x", "weight": 0.5}]}`, "message 1: weight is 0.5, want 1, or 0", false, full},
		{`{"messages": [{"role": "user", "content": "x", "train": true}, ` + ho + `]}`, "message 0: train asks to learn a turn of user", false, full},
		{`{"messages": [` + hiUser + `, {"role": "assistant", "content": "x", "mask": 1}]}`, "message 1: mask: programs differ", false, full},
		{`{"messages": [` + hiUser + `, {"role": "assistant", "content": "x", "train_detail": [{"begin_offset": 0}]}]}`, "message 1: train_detail: ranges of characters", false, full},
		{`{"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}, ` + ho + `]}`, `message 0: part 0: its type is "image_url", and only text is learned`, false, full},
		{`{"messages": [` + hiUser + `, {"role": "assistant", "content": [{"type": "text", "text": "x", "train": false}]}]}`, "message 1: part 0: train is false: a part cannot be left out", false, full},
		{`{"messages": [` + hiUser + `, {"role": "assistant", "content": "x", "train": false}]}`, "line 1: no turn of the assistant is to be learned", false, full},
		{`{"messages": [{"role": "user", "content": "x", "tool_calls": [{"name": "f", "arguments": {}}]}, ` + ho + `]}`, "of the role user, want assistant", false, full},

		{`{"messages": [{"role": "user", "content": "a", "value": "b"}, ` + ho + `]}`, "message 0: both content and value", false, full},
		{`{"label": "bad", ` + good + `}`, `label is "bad": a bad answer`, false, full},
		{`{"label": "rejected", "text": "x y"}`, `label is "rejected": a bad answer`, false, nil},
		{`{"label": -1, "prompt": "x", "completion": " y"}`, "label is -1: a bad answer", false, nil},
		{`{"kto_label": false, ` + good + `}`, "kto_label is false: a bad answer", false, full},
		{`{"desirable": 0, ` + good + `}`, "desirable is 0: a bad answer", false, full},
		{`{"is_train": false, ` + good + `}`, "is_train is false, want 1 or none", false, full},
		{`{"trainable": "false", ` + good + `}`, `trainable is "false", want 1 or none`, false, full},
		{`{"loss": 0, "prompt": "x", "completion": " y"}`, "loss is 0, want 1 or none", false, nil},
		{`{"skip": true, ` + good + `}`, "skip is true, want false or none", false, full},
		{`{"masks": [0, 1], ` + good + `}`, "masks: a mask of tokens, want text", false, full},
		{`{"thinking": "why", ` + good + `}`, "the row has thinking, and its form has no place for it: put it into the message of the assistant; -map thinking=", false, full},
		{`{"winner": "b", "prompt": "x", "chosen": " y", "rejected": " z"}`, `winner is "b", and chosen is taken as the better answer`, true, nil},
		{`{"Label": false, ` + good + `}`, "the row has Label, which differs only in case, blanks or letters that look alike from label, a field that is known: -map label=Label reads it so, -map Label= leaves it out", false, full},
		{`{"System": "Speak Dutch.", ` + good + `}`, "look alike from system, a field that is known: -map system=System reads it so", false, full},

		{`{"messages": [` + hiUser + `, {"role": "assistant", "content": "x", "label": false}, ` + hiUser + `, ` + ho + `]}`, "message 1: label is false: a bad answer", false, full},
		{`{"messages": [` + hiUser + `, {"role": "assistant", "content": "x", "loss_mask": 1}]}`, "message 1: loss_mask: programs differ", false, full},
		{`{"messages": [` + hiUser + `, {"role": "assistant", "content": "x", "Train": false}, ` + hiUser + `, ` + ho + `]}`, "message 1: Train: names are exact: write train", false, full},
		{`{"messages": [` + hiUser + `, {"role": "assistant", "content": "", "refusal": "no"}]}`, "message 1: refusal: chat templates do not write it", false, full},
		{`{"messages": [` + hiUser + `, {"role": "assistant", "content": "x", "rejected": "y"}]}`, "message 1: rejected: answers that are compared are fields of the row", false, full},
		{`{"messages": [` + hiUser + `, {"role": "assistant", "content": "x", "text": "y"}]}`, "message 1: both content and text, which says something else", false, full},
		{`{"messages": {"role": ["user", "assistant"], "content": ["hi"]}}`, "messages is an object, want a list", false, full},
		{`{"prompt": "[{\"role\": \"human\", \"content\": \"hi\"}]", "completion": [` + ho + `]}`, "prompt: no message has the role assistant; there are human", false, full},
		{`{"prompt": "bye", ` + good + `}`, "the row is read as messages, and has the field prompt besides, which says something else; -format messages leaves it out, and -map prompt= too", false, full},
		{`{"text": "bye", "prompt": "x", "completion": " y"}`, "has the field text besides", false, nil},
		{`{"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "ho"}], "chosen": {"from": "gpt", "value": "x"}, "rejected": {"from": "gpt", "value": "y"}}`, "which are for preferences: tune -dpo; -map chosen=,rejected= leaves them out, and the row is then ShareGPT", false, full},
		{`{"frage": "x", "antwort": "y"}`, "such as -map question=FIELD,answer=FIELD", false, full},
		{`{"frage": "x", "antwort": "y"}`, "such as -map prompt=FIELD,completion=FIELD", false, nil},
		{`{"messages": [` + hiUser + `, {"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f", "arguments": "x=1"}}]}]}`, `message 1: tool_calls[0]: arguments of f: "x=1" is no JSON, want an object`, false, full},
		{`{"messages": [` + hiUser + `, {"role": "assistant", "function_call": {"name": "f", "arguments": "[1]"}}]}`, `arguments of f: "[1]" is an array, want an object`, false, full},
		{`{"messages": [` + hiUser + `, {"role": "assistant", "function_call": {"name": "f", "arguments": 3}}]}`, "arguments of f: a number, want an object", false, full},
		{`{"instruction": "", "input": " ", "output": "y"}`, "line 1: instruction and input is empty", false, full},
		{`{"prompt": "", "completion": [` + ho + `]}`, "line 1: prompt is empty", false, full},
		{`{"question": "", "chosen": "x", "rejected": "y"}`, "line 1: question is empty", true, full},
		{`{"system": "s", "prompt": "", "chosen": "x", "rejected": "y"}`, "line 1: prompt is empty", true, full},
		{`{"prompt": "x", "chosen": "", "rejected": " y"}`, "line 1: chosen is empty", true, nil},
		{`{"prompt": "x", "chosen": " y", "rejected": " "}`, "line 1: rejected is empty", true, nil},
		{`{"prompt": [` + hiUser + `], "chosen": [{"role": "assistant", "content": ""}], "rejected": [` + ho + `]}`, "chosen: message 1 (assistant) is empty", true, full},
		{`{"text": "bye", "chosen": "x", "rejected": "y"}`, "which are for preferences: tune -dpo", false, nil},
		{`{"prompt": "x", "response": "y", "chosen": "y", "rejected": "z"}`, "which are for preferences: tune -dpo", false, full},
		{`{"question": "x", "answer": "y", "chosen_response": "v", "rejected_response": "w"}`, "tune -dpo; -map chosen_response=,rejected_response= leaves them out", false, full},
		{`{"instruction": "Sum up.", "text": "a long text", "summary": "short"}`, "has the field instruction besides, which says something else: -map question=FIELD,answer=FIELD learns an answer, -format text learns the text alone", false, full},
		{`{"text": "a long text", "summary": "short"}`, "has the field summary besides", false, nil},
		{`{"message_id": "2", "parent_id": "1", "text": "hello", "role": "assistant"}`, "the row has parent_id beside text, as one message of a conversation has it: join the messages", false, full},
		{`{"question": "a", "answer": "b", "response": "c"}`, "both answer and response, want one answer", false, full},
		{`{"prompt": [` + hiUser + `], "chosen": [` + hiUser + `, ` + ho + `], "rejected": [{"role": "assistant", "content": "no"}]}`, "one of chosen and rejected begins with the prompt, and the other does not", true, full},
		{`{"prompt": [` + hiUser + `], "chosen": [{"role": "system", "content": "s"}, ` + hiUser + `, ` + ho + `], "rejected": [` + hiUser + `, {"role": "assistant", "content": "no"}]}`, "one of chosen and rejected begins with the prompt", true, full},
		{`{"prompt": [` + hiUser + `], "completion": [{"role": "system", "content": "s"}, ` + ho + `]}`, "completion: it begins with a system message, and what follows does not repeat the prompt", false, full},
		{`{"prompt": "bye", "chosen": [` + hiUser + `, ` + ho + `], "rejected": [` + hiUser + `, {"role": "assistant", "content": "no"}]}`, "prompt is another text: -map prompt= leaves it out", true, full},
		{`{"messages": [` + hiUser + `, {"role": "assistant", "content": "x"}], "chosen": "ho", "rejected": "no"}`, "messages ends with an answer, which is not the chosen one", true, full},
		{`{"conversations": [{"from": "human", "value": "hi"}]}` + "\n", "want a chat template, and the tokenizer has none", false, nil},
	} {
		_, _, _, err := shownForms(t, c.text, Options{Template: c.template, Pairs: c.pairs})
		require.ErrorIs(t, err, snug.ErrConfig, c.text)
		require.ErrorContains(t, err, c.want, c.text)
		require.ErrorContains(t, err, "line 1: ", c.text)
	}
	for _, c := range []struct {
		o    Options
		want string
	}{
		{Options{Format: "chatml"}, `the format "chatml", want auto, or of rows without preferences: messages, sharegpt, glaive, completion, alpaca, text`},
		{Options{Format: "text", Pairs: true}, `the format "text", want auto, or of preferences: hh-rlhf, preference`},
		{Options{Format: "messages"}, "the fields of the row are text, and the format messages wants messages, each with role and content"},
		{Options{Map: map[string]string{"question": "text", "answer": "text"}}, "-map answer=text and question=text read one field under two names"},
		{Options{Map: map[string]string{"text": "body"}}, "-map text=body: the row has no field body, its fields are text"},
	} {
		_, _, _, err := shownForms(t, `{"text": "x y"}`, c.o)
		require.ErrorIs(t, err, snug.ErrConfig)
		require.ErrorContains(t, err, c.want)
	}
}

// TestMapOfColumns: names of columns are read under other names, and columns that no form has are listed and not read.
func TestMapOfColumns(t *testing.T) {
	type row struct {
		Frage   string  `parquet:"frage"`
		Antwort string  `parquet:"antwort"`
		Prompt  string  `parquet:"prompt"`
		Note    float64 `parquet:"note"`
	}
	o := Options{Context: 32, EOS: eos, Map: map[string]string{"prompt": "frage", "completion": "antwort", "label": ""}}
	want, err := Open([]string{write(t, "a.jsonl", `{"prompt": "One", "completion": " two"}`)}, tok, Options{Context: 32, EOS: eos})
	require.NoError(t, err)
	for name, text := range map[string]string{
		"a.parquet": table(t, []row{{"One", " two", "other", 1}}),
		"a.csv":     "frage,antwort,prompt,note,label\nOne, two,other,1,false\n",
		"a.tsv":     "frage\tantwort\tprompt\tnote\tlabel\nOne\t two\tother\t1\tfalse\n",
		"a.jsonl":   `{"frage": "One", "antwort": " two", "prompt": "other", "note": 1, "label": false}`,
		"a.json":    `[{"frage": "One", "antwort": " two", "prompt": "other", "note": 1, "label": false}]`,
	} {
		t.Run(name, func(t *testing.T) {
			s, err := Open([]string{write(t, name, text)}, tok, o)
			require.NoError(t, err, name)
			require.Equal(t, want.sum(t), s.sum(t), name)
			require.Contains(t, s.Stats().Files[0].Ignored, "note", name)
			require.Equal(t, "prompt and completion", s.Stats().Files[0].Form, name)
		})
	}
	_, err = Open([]string{write(t, "a.csv", "frage,antwort,label\nOne, two,false\n")}, tok, Options{Context: 32, EOS: eos, Map: map[string]string{"prompt": "frage", "completion": "antwort"}})
	require.ErrorContains(t, err, `label is "false": a bad answer`)
}

// TestWarnings: what the template does otherwise than the rows say is counted by its kind, with the first row.
func TestWarnings(t *testing.T) {
	strict := template(t, "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system, please') }}{% endif %}[{{ m.role }}]{{ m.content }}{{ '</s>' if m.role == 'assistant' }}{% endfor %}"+
		"{% if add_generation_prompt %}[assistant]{% endif %}")
	drops := template(t, "{% for m in messages if m.role != 'system' %}[{{ m.role }}]{{ m.content.split('</think>')[-1] }}{{ '</s>' if m.role == 'assistant' }}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}")
	endless := template(t, "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}")
	system, good := `{"messages": [{"role": "system", "content": "s"}, `+hiUser+`, `+ho+`]}`, `{"messages": [`+hiUser+`, `+ho+`]}`
	calls := `{"messages": [` + hiUser + `, {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {}}}]}]}`
	thinks := func(what string) string {
		return `{"messages": [` + hiUser + `, {"role": "assistant", "content": "<think>` + what + `</think>ho"}]}`
	}
	for _, c := range []struct {
		template *chat.Template
		lines    []string
		want     []string
	}{
		{strict, []string{good, system, good, system}, []string{"2 rows, first line 2: left out: the chat template says: no system, please (write the system message into the first question, or take a template that writes it)"}},
		{drops, []string{good, system, system, thinks("why"), thinks("why not")}, []string{"2 rows, first line 2: the chat template leaves out message 0 (system)",
			`2 rows, first line 4: the chat template leaves out a part of message 1 (assistant): "<think>why</think>"`}},
		{drops, []string{good, `{"messages": [` + strings.Repeat(hiUser+`, `+ho+`, `, 6) + `{"role": "system", "content": "s"}]}`, system}, []string{"2 rows, first line 2: the chat template leaves out message 12 (system)"}},
		{endless, []string{good, good}, []string{"2 rows, first line 1: no answer ends with an end token; generation will not stop"}},
		{strict, []string{good, `{"messages": [` + hiUser + `, {"role": "assistant", "content": ""}]}`}, []string{"line 2: left out: message 1 (assistant) is empty"}},
		{strict, []string{`{"messages": [` + hiUser + `, {"role": "assistant", "content": ""}, ` + hiUser + `, {"role": "assistant", "content": " "}, ` + hiUser + `, ` + ho + `]}`}, []string{"line 1: message 1 (assistant) is empty, and only its end is learned"}},
		{strict, []string{`{"question": "a", "answer": "b"}`, `{"question": "c", "answer": ""}`, `{"question": "d", "answer": null}`, `{"question": "", "answer": "e"}`}, []string{": question → user, answer → assistant",
			"line 2: left out: answer is empty", "line 3: left out: answer is null, want a text or messages", "line 4: left out: question is empty"}},
		{strict, []string{`{"question": "a", "answer": null}`, `{"question": "a", "answer": "b"}`}, []string{": question → user, answer → assistant", "line 1: left out: answer is null, want a text or messages"}},
		{strict, []string{good, `{"messages": null}`}, []string{"line 2: left out: messages is null, want a text or messages"}},
		{strict, []string{good, calls}, []string{"line 2: the chat template leaves out the tool calls of message 1 (assistant)", "line 2: left out: nothing of it is learned"}},
		{nil, []string{`{"prompt": "a", "completion": " b"}`, `{"prompt": "a", "completion": " "}`, `{"prompt": "a", "completion": null}`}, []string{"line 2: left out: completion is empty", "line 3: left out: completion is null, want a text or messages"}},
		{nil, []string{`{"text": "a b"}`, `{"text": ""}`, `{"text": null}`}, []string{"line 2: left out: text is empty", "line 3: left out: text is null, want a text or messages"}},
		{strict, []string{`{"messages": [` + hiUser + `, {"role": "assistant", "content": "ho</s>\n"}]}`, good, `{"messages": [` + hiUser + `, {"role": "assistant", "content": "ho</s></s>"}]}`}, []string{"2 rows, first line 1: message 1 (assistant) ends with \"</s>\", which the chat template writes: it is taken once"}},
		{strict, []string{good, `{"messages": [` + hiUser + `, {"role": "assistant", "content": "` + strings.Repeat("long ", 300) + `"}]}`}, []string{"line 2: cut to 256 tokens (-context)"}},
		{strict, []string{good, `{"messages": [{"role": "user", "content": "` + strings.Repeat("long ", 300) + `"}, ` + ho + `]}`}, []string{"line 2: left out: none of its first 256 tokens is learned (-context)"}},
	} {
		t.Run(strings.Join(c.lines, " "), func(t *testing.T) {
			_, _, said, err := shownForms(t, strings.Join(c.lines, "\n"), Options{Template: c.template})
			require.NoError(t, err)
			require.Equal(t, c.want, said)
		})
	}
	pair := `{"chosen": [` + hiUser + `, ` + ho + `], "rejected": [` + hiUser + `, {"role": "assistant", "content": "no"}]}`
	_, _, said, err := shownForms(t, pair, Options{Template: endless, Pairs: true})
	require.NoError(t, err)
	require.Equal(t, []string{"line 1: no answer ends with an end token; generation will not stop"}, said, "a row counts once")
	_, _, _, err = shownForms(t, system, Options{Template: strict})
	require.ErrorIs(t, err, snug.ErrConfig)
	require.ErrorContains(t, err, "line 1: chat: the chat template says: no system, please")
	_, _, _, err = shownForms(t, calls, Options{Template: strict})
	require.ErrorIs(t, err, snug.ErrConfig)
	require.ErrorContains(t, err, "line 1: nothing of it is learned; the chat template leaves out the tool calls of message 1 (assistant)")

	// Many kinds of warnings of one file do not take memory without end.
	var lines strings.Builder
	for i := range 100 {
		lines.WriteString(`{"messages": [` + hiUser + `, {"role": "r` + strings.Repeat("x", i) + `", "content": "y"}]}` + "\n")
	}
	s, err := Open([]string{write(t, "a.jsonl", lines.String()+good)}, tok, Options{Context: 64, EOS: eos, Template: strict})
	require.NoError(t, err)
	require.Len(t, s.Stats().Files[0].Warnings, maxWarnings+1)
	require.Equal(t, Warning{Text: "more warnings of other kinds", Rows: 100 - maxWarnings, First: "line 31"}, s.Stats().Files[0].Warnings[maxWarnings])
}

// TestTextsOfJSONAreBounded: JSON within a text is decoded within the memory that a row may take.
func TestTextsOfJSONAreBounded(t *testing.T) {
	numbers := "[" + strings.Repeat("0,", 100_000) + "0]"
	for _, field := range []string{`"tools": "` + numbers + `", "messages": [` + hiUser + `, ` + ho + `]`, `"messages": "` + numbers + `"`} {
		_, _, _, err := shownForms(t, "{"+field+"}", Options{Template: template(t, fullTemplate), Memory: leastMemory})
		require.ErrorIs(t, err, snug.ErrConfig)
		require.ErrorContains(t, err, "the row takes more than 1048576 bytes of memory")
	}
}
