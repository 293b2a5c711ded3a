package dataset

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/chat"
	"github.com/snug-ml/snug/tokenizer"
)

// called is a row with a call whose member function is given.
func called(function string) string {
	return `{"messages": [` + hiUser + `, {"role": "assistant", "content": null, "tool_calls": [{"function": ` + function + `}]}, {"role": "tool", "content": "2"}, ` + ho + `]}`
}

// TestFieldsLearned: what rows say beside their first words is learned, or there is a line about it.
func TestFieldsLearned(t *testing.T) {
	full := template(t, fullTemplate)
	answers := func(arguments string) []string {
		return []string{"<user>hi<assistant>⟦<call>f" + arguments + "</s>⟧<tool>2<assistant>⟦ho</s>⟧"}
	}
	const learned = "<user>hi<assistant>⟦ho</s>⟧"
	for name, c := range map[string]struct {
		text     string
		template *chat.Template
		o        Options
		want     []string
		said     []string
	}{
		"arguments as LangChain names them":       {called(`{"name": "f", "args": {"a": 1}}`), full, Options{}, answers(`{"a": 1}`), nil},
		"arguments as Anthropic names them":       {called(`{"name": "f", "input": {"a": 1}}`), full, Options{}, answers(`{"a": 1}`), nil},
		"members of calls":                        {called(`{"name": "f", "arguments": {}, "strict": true}`), full, Options{}, answers(`{}`), []string{"ignored fields: messages.tool_calls.strict"}},
		"null in arguments":                       {called(`{"name": "f", "arguments": {"a": 1, "b": null}}`), full, Options{}, answers(`{"a": 1}`), []string{"line 1: tool_calls[0]: members of arguments that are null are left out, as tables have them for those of other rows; arguments that are a text of JSON keep theirs"}},
		"null in a text of arguments":             {called(`{"name": "f", "arguments": "{\"b\": null}"}`), full, Options{}, answers(`{"b": null}`), nil},
		"null in a text of a call":                {`{"conversations": [{"from": "human", "value": "hi"}, {"from": "function_call", "value": "{\"name\": \"f\", \"arguments\": {\"b\": null}}"}]}`, full, Options{}, []string{`<user>hi<assistant>⟦<call>f{"b": null}</s>⟧`}, []string{": human → user, function_call → assistant's tool call"}},
		"null in a text of tools":                 {`{"tools": "[{\"name\": \"f\", \"default\": null}]", "messages": [` + hiUser + `, ` + ho + `]}`, full, Options{}, []string{`<tools>[{"type": "function", "function": {"name": "f", "default": null}}]` + learned}, nil},
		"a model in from":                         {`{"messages": [` + hiUser + `, {"role": "assistant", "from": "gpt-4", "content": "ho"}]}`, full, Options{}, []string{learned}, []string{"ignored fields: messages.from"}},
		"a member beside an empty answer":         {`{"messages": [` + hiUser + `, {"role": "assistant", "content": "", "id": 1}, ` + hiUser + `, ` + ho + `]}`, full, Options{}, []string{"<user>hi<assistant>⟦</s>⟧" + learned}, []string{"ignored fields: messages.id", "line 1: message 1 (assistant) is empty, and only its end is learned"}},
		"variables that the template ignores":     {`{"documents": [{"text": "x"}], "reasoning_effort": "high", "chat_template_kwargs": {"style": 1}, "enable_thinking": true, "messages": [` + hiUser + `, ` + ho + `]}`, full, Options{}, []string{"<thinks True>" + learned}, []string{"ignored fields: documents, reasoning_effort, style"}},
		"an empty history":                        {`{"instruction": "hi", "output": "ho", "history": ""}`, full, Options{}, []string{learned}, []string{": instruction → user, output → assistant"}},
		"a question within the instruction":       {`{"instruction": "hi you", "question": "you", "output": "ho"}`, full, Options{}, []string{"<user>hi you<assistant>⟦ho</s>⟧"}, []string{": instruction → user, output → assistant", "ignored fields: question"}},
		"choices within the question":             {`{"question": "hi? A: x, B: y", "choices": ["x", "y"], "answer": "A"}`, full, Options{}, []string{"<user>hi? A: x, B: y<assistant>⟦A</s>⟧"}, []string{": question → user, answer → assistant", "ignored fields: choices"}},
		"a shorter answer":                        {`{"problem": "hi", "solution": "ho, so 4", "answer": "4"}`, full, Options{}, []string{"<user>hi<assistant>⟦ho, so 4</s>⟧"}, []string{": problem → user, solution → assistant", "ignored fields: answer"}},
		"a name in other letters beside the name": {`{"text": "one two", "TEXT": "x"}`, nil, Options{}, []string{"one⟦ two§⟧"}, []string{"ignored fields: TEXT"}},
		"a field behind the map":                  {`{"text": "x", "body": "one two"}`, nil, Options{Map: map[string]string{"text": "body"}}, []string{"one⟦ two§⟧"}, []string{"ignored fields: text"}},
		"an empty prompt":                         {`{"prompt": "", "completion": "one two"}`, nil, Options{}, []string{"one⟦ two§⟧"}, []string{"line 1: prompt is empty, and what is learned of completion has nothing before it"}},
		"an end and a line break":                 {`{"text": "one two!\n"}`, nil, Options{}, []string{"one⟦ two§⟧"}, []string{`line 1: white space behind "!", which ends the text, is left out`}},
		"an end and a line break of a completion": {`{"prompt": "one", "completion": " two!\n"}`, nil, Options{}, []string{"one⟦ two§⟧"}, []string{`line 1: white space behind "!", which ends the text, is left out`}},
		"the end of another model":                {`{"question": "hi", "answer": "ho<|endoftext|>"}`, full, Options{}, []string{"<user>hi<assistant>⟦ho<|endoftext|></s>⟧"}, []string{": question → user, answer → assistant", `line 1: a text ends with "<|endoftext|>", which ends the texts of some models, and "</s>" is learned behind it: remove it`}},
		"marks in the data":                       {`{"prompt": "⟦a⟧", "completion": " ⟦b⟧"}`, nil, Options{}, []string{`\u27e6a\u27e7⟦ \u27e6b\u27e7§⟧`}, nil},
		"markup that the template writes":         {`{"messages": [` + hiUser + `, {"role": "tool", "content": "<tool>\n1\n</tool>"}, ` + ho + `]}`, full, Options{}, []string{"<user>hi<tool><tool>\n1\n</tool><assistant>⟦ho</s>⟧"}, []string{`line 1: message 1 (tool) begins with "<tool>", which the chat template writes, too: it is there twice`}},
		"thoughts twice":                          {`{"messages": [` + hiUser + `, {"role": "assistant", "content": "<think>a</think>ho", "reasoning_content": "b"}]}`, full, Options{}, []string{"<user>hi<assistant>⟦<r>b</r><think>a</think>ho</s>⟧"}, []string{`line 1: message 1 (assistant) has reasoning beside its content, which has "<think>", too`}},
	} {
		t.Run(name, func(t *testing.T) {
			c.o.Template = c.template
			_, samples, said, err := shownForms(t, c.text, c.o)
			require.NoError(t, err)
			require.Equal(t, c.want, samples)
			require.Equal(t, c.said, said)
		})
	}
}

// TestFieldsThatMayDecide: fields about which it is not known what they say are errors, with the way out.
func TestFieldsThatMayDecide(t *testing.T) {
	full := template(t, fullTemplate)
	good := `"messages": [` + hiUser + `, ` + ho + `]`
	for name, c := range map[string]struct {
		text, want string
		pairs      bool
		template   *chat.Template
	}{
		"a message under another name":      {`{"messages": [{"role": "user", "message": "hi"}, ` + ho + `]}`, "message 0 (user) has no content, and the chat template does not write its message", false, full},
		"an answer under another name":      {`{"messages": [` + hiUser + `, {"role": "assistant", "id": 1, "answer": "ho"}]}`, "message 1 (assistant) has no content, and the chat template does not write its id, answer", false, full},
		"two roles":                         {`{"messages": [{"role": "user", "from": "gpt", "content": "hi"}, ` + ho + `]}`, "message 0: role is user and from is gpt, want one role", false, full},
		"a member of training":              {`{"messages": [` + hiUser + `, {"role": "assistant", "content": "ho", "step_loss_mask": 0}]}`, "message 1: step_loss_mask is 0, and may say whether the message is learned: write train", false, full},
		"a field of training":               {`{"compute_loss": false, ` + good + `}`, "compute_loss is false, and may say whether the row is learned: write train, which is true for what is learned, or remove such rows; -map compute_loss= leaves it out", false, full},
		"a member with a blank":             {`{"messages": [` + hiUser + `, {"role": "assistant", "content": "ho", "train ": false}]}`, `message 1: "train ": names are exact: write train`, false, full},
		"a member in Cyrillic":              {`{"messages": [` + hiUser + `, {"role": "assistant", "content": "ho", "trаin": false}]}`, "message 1: trаin: names are exact: write train", false, full},
		"a field with a blank":              {`{"system ": "s", ` + good + `}`, `the row has "system ", which differs only in case, blanks or letters that look alike from system, a field that is known: -map 'system=system ' reads it so, -map 'system =' leaves it out`, false, full},
		"a field with a mark":               {`{"\ufeffsystem": "s", ` + good + `}`, `the row has "\ufeffsystem", which differs only in case`, false, full},
		"a field in full width":             {`{"ｓｙｓｔｅｍ": "s", ` + good + `}`, "which differs only in case, blanks or letters that look alike from system", false, full},
		"a field of the form in capitals":   {`{"instruction": "hi", "Input": "x", "output": "ho"}`, "the row has Input, which differs only in case, blanks or letters that look alike from input, a field that is known: -map input=Input reads it so", false, full},
		"a prompt in capitals":              {`{"Prompt": "x", "chosen": "one two", "rejected": "one three"}`, "the row has Prompt, which differs only in case", true, nil},
		"another question":                  {`{"instruction": "hi", "question": "x", "output": "ho"}`, "the row has question besides, which is not in what is asked: -format alpaca leaves it out, and -map question= too", false, full},
		"another question of preferences":   {`{"prompt": "hi", "question": "x", "chosen": " a", "rejected": " b"}`, "the row has question besides", true, nil},
		"answers to choose from":            {`{"question": "hi", "choices": ["x", "y"], "answer": 1}`, "the row has answers to choose from (choices), which the question does not name: write them into the question; -map choices= leaves them out", false, full},
		"answers to choose from, in fields": {`{"question": "hi", "A": "x", "B": "y", "answer": "B"}`, "the row has answers to choose from (A)", false, full},
		"a longer answer":                   {`{"question": "hi", "solution": "ho, so 4", "answer": "4"}`, "both answer and the longer solution, want one answer: -map solution= leaves one out, and -map answer=solution reads the longer one", false, full},
		"a part that is not learned":        {`{"messages": [` + hiUser + `, {"role": "assistant", "content": [{"type": "text", "text": "a", "loss": false}]}]}`, "message 1: part 0: loss is false: a part cannot be left out", false, full},
		"a part that is masked":             {`{"messages": [` + hiUser + `, {"role": "assistant", "content": [{"type": "text", "text": "a", "masked": true}]}]}`, "message 1: part 0: masked is true: a part cannot be left out", false, full},
		"a part with a blank":               {`{"messages": [` + hiUser + `, {"role": "assistant", "content": [{"type": "text", "text": "a", "train ": false}]}]}`, `message 1: part 0: "train " is false: a part cannot be left out`, false, full},
		"a part with two texts":             {`{"messages": [` + hiUser + `, {"role": "assistant", "content": [{"type": "text", "text": "a", "value": "b"}]}]}`, `message 1: part 0: both "a" and "b" are its text, want one`, false, full},
		"a part with an image":              {`{"messages": [` + hiUser + `, {"role": "assistant", "content": [{"type": "text", "text": "a", "image_url": "x"}]}]}`, "message 1: part 0: the part has image_url, and only text is learned", false, full},
		"a name twice in parameters":        {`{"tools": [{"name": "f", "parameters": "{\"a\":1,\"a\":2}"}], ` + good + `}`, "tools: tool 0: parameters is a string that is no JSON of an object: a: the name comes twice", false, full},
		"a summary in capitals":             {`{"text": "one two", "Summary": "s"}`, "the row has Summary, which differs only in case", false, nil},
		"what follows a completion":         {`{"prompt": "a", "completion": " b", "suffix": "c"}`, "has the field suffix besides", false, nil},
		"a call without arguments":          {called(`{"name": "f", "kwargs": {"a": 1}}`), "tool_calls[0] has no arguments; its members are name, kwargs: write them as arguments, {} for none", false, full},
		"arguments twice":                   {called(`{"name": "f", "args": {"a": 1}, "arguments": {}}`), "tool_calls[0]: both arguments and args, want one", false, full},
		"a call without a name":             {called(`{"name": "", "arguments": {}}`), "tool_calls[0] has no name of a function", false, full},
		"a call that is not learned":        {called(`{"name": "f", "arguments": {}, "weight": 0}`), "tool_calls[0] has weight, which may say whether it is learned", false, full},
		"a name twice in arguments":         {called(`{"name": "f", "arguments": "{\"a\":1,\"a\":2}"}`), "a: the name comes twice in one object", false, full},
		"a name twice deep in arguments":    {called(`{"name": "f", "arguments": "{\"x\":[{\"a\":1,\"a\":2}]}"}`), "x[0].a: the name comes twice in one object", false, full},
		"NaN in a text of arguments":        {called(`{"name": "f", "arguments": "{\"a\": NaN}"}`), "arguments of f: a: NaN is not JSON", false, full},
		"NaN in arguments":                  {called(`{"name": "f", "arguments": {"a": [NaN]}}`), "arguments of f: a[0]: NaN is not JSON: write null, or a string", false, full},
		"a large number":                    {called(`{"name": "f", "arguments": {"a": 1e400}}`), "a: the number 1e400 has more than 64 bits", false, full},
		"a large number of tools":           {`{"tools": [{"name": "f", "maximum": 1e999}], ` + good + `}`, "tools: tool 0: maximum: the number 1e999 has more than 64 bits", false, full},
		"NaN for the template":              {`{"chat_template_kwargs": {"a": NaN}, ` + good + `}`, "chat_template_kwargs.a: NaN is not JSON", false, full},
		"other prompts":                     {`{"chosen": [` + hiUser + `, ` + ho + `], "rejected": [{"role": "user", "content": "x"}, ` + ho + `]}`, "chosen and rejected begin with different messages, and want the same prompt: remove such rows", true, full},
		"a turn behind the prompt":          {`{"prompt": [` + hiUser + `], "chosen": [{"role": "user", "content": "x"}, ` + ho + `], "rejected": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "no"}]}`, "chosen: it begins with a turn of user that is not the prompt's: begin it with the answer", true, full},
		"a message for a row":               {`[` + hiUser + `, ` + ho + `]`, "which are those of one message, and a row is a whole conversation: write {\"messages\": [...]} around the messages of each; if each line is an array of them, jq -c '{messages: .}' FILE > rows.jsonl does so", false, full},
		"equal tokens":                      {`{"prompt": "a", "chosen": " b!", "rejected": " b!\n"}`, "chosen and rejected have equal tokens", true, nil},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, _, err := shownForms(t, c.text, Options{Template: c.template, Pairs: c.pairs})
			require.ErrorContains(t, err, c.want)
			require.ErrorContains(t, err, "line 1: ")
		})
	}
}

// TestTypesOfColumns: values of tables are the texts of what they are, or refused where they are used.
func TestTypesOfColumns(t *testing.T) {
	const file = "testdata/types.parquet"
	for name, c := range map[string]struct{ want, refused string }{
		"u64": {want: "18446744073709551615"}, "u32": {want: "4294967295"}, "i8": {want: "-3"}, "f16": {want: "1.5"}, "f64": {want: "2.0"},
		"decimal": {refused: "completion is a decimal, about whose text programs differ: store the column as strings"}, "date": {refused: "completion is a date"},
		"time": {refused: "completion is a time"}, "timestamp": {refused: "completion is a timestamp"},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := Open([]string{file}, tok, Options{Context: 64, EOS: eos, Map: map[string]string{"prompt": "text", "completion": name, "text": ""}})
			if c.refused != "" {
				require.ErrorIs(t, err, snug.ErrConfig)
				require.ErrorContains(t, err, c.refused)
				return
			}
			require.NoError(t, err)
			require.Equal(t, []string{"a b[" + c.want + "§]"}, s.learnedOf(t))
			require.NoError(t, s.Close())
		})
	}
	s, err := Open([]string{file}, tok, Options{Context: 64, EOS: eos})
	require.NoError(t, err, "columns that are not used may be of any type")
	require.NoError(t, s.Close())
	_, err = Open([]string{"testdata/twice.parquet"}, tok, Options{Context: 64, EOS: eos})
	require.ErrorIs(t, err, snug.ErrCorrupt)
	require.ErrorContains(t, err, "the column text comes twice, want it once")
}

// TestFileOfAFolder: an error of a file in a folder says which it is, and how to leave it out; descriptions are no data.
func TestFileOfAFolder(t *testing.T) {
	folder := t.TempDir()
	put := func(name, text string) {
		require.NoError(t, os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600))
	}
	put("a.jsonl", `{"prompt": "a", "chosen": " b", "rejected": " c"}`)
	put("meta.json", `{"version": 1}`)
	s, err := Open([]string{folder}, tok, Options{Context: 8, EOS: eos, Pairs: true})
	require.NoError(t, err)
	require.Equal(t, "describes the data", s.Stats().Files[1].Skipped)
	require.NoError(t, s.Close())
	put("b.json", `{"body": 1}`)
	_, err = Open([]string{folder}, tok, Options{Context: 8, EOS: eos, Pairs: true})
	require.ErrorIs(t, err, snug.ErrConfig)
	require.ErrorContains(t, err, filepath.Join(folder, "b.json")+": line 1: the row has no chosen and rejected answers")
	require.ErrorContains(t, err, "if this one is none, give the names of the others, or a pattern such as "+filepath.Join(folder, "*.jsonl"))
}

// TestBadAnswersAmongGood: rows of KTO are learned as long as their answers are good. The first bad one ends the reading, with
// its line, and says what to do.
func TestBadAnswersAmongGood(t *testing.T) {
	full := template(t, fullTemplate)
	const want = `: label is false: a bad answer, which would be learned as a good one. Remove such rows, or make pairs of good and bad answers for -dpo; if label is something else, -map label= leaves it out`
	for name, c := range map[string]struct {
		row    string // with the label to be written
		o      Options
		sample string
	}{
		"texts":    {`{"prompt": "One", "completion": " two", "label": %s}` + "\n", Options{}, "One⟦ two§⟧"},
		"messages": {`{"prompt": [` + hiUser + `], "completion": [` + ho + `], "label": %s}` + "\n", Options{Template: full}, "<user>hi<assistant>⟦ho</s>⟧"},
	} {
		t.Run(name, func(t *testing.T) {
			good, bad := fmt.Sprintf(c.row, "true"), fmt.Sprintf(c.row, "false")
			_, samples, _, err := shownForms(t, good+good, c.o)
			require.NoError(t, err)
			require.Equal(t, []string{c.sample, c.sample}, samples)
			_, _, _, err = shownForms(t, good+bad+good, c.o)
			require.ErrorIs(t, err, snug.ErrConfig)
			require.ErrorContains(t, err, "line 2"+want)
			c.o.Pairs = true
			_, _, _, err = shownForms(t, good+bad, c.o)
			require.ErrorContains(t, err, "line 1: the row has no chosen and rejected answers; its fields are prompt, completion, label")
		})
	}
}

// TestVerdicts: a boolean that says that an answer is wrong is obeyed as a label, and the right choice of several is none.
func TestVerdicts(t *testing.T) {
	for _, name := range []string{"correct", "is_correct", "is_good", "accepted", "is_accepted"} {
		row := func(v string) string { return `{"question": "hi", "answer": "ho", "` + name + `": ` + v + "}" }
		for _, v := range []string{"false", `"False"`} {
			_, _, _, err := shownForms(t, row(v), Options{Template: template(t, fullTemplate)})
			require.ErrorIs(t, err, snug.ErrConfig, row(v))
			require.ErrorContains(t, err, "line 1: "+name+" is "+v+": a bad answer")
		}
		for _, v := range []string{"true", "0", `"B"`, `"no"`} {
			_, samples, _, err := shownForms(t, row(v), Options{Template: template(t, fullTemplate)})
			require.NoError(t, err, row(v))
			require.Equal(t, []string{"<user>hi<assistant>⟦ho</s>⟧"}, samples)
		}
	}
}

// TestFaults: a boolean that is true of a bad answer refuses its row.
func TestFaults(t *testing.T) {
	for _, name := range []string{"rejected", "is_rejected", "incorrect", "is_bad"} {
		row := `{"question": "hi", "answer": "ho", "` + name + `": `
		_, _, _, err := shownForms(t, row+"true}", Options{Template: template(t, fullTemplate)})
		require.ErrorIs(t, err, snug.ErrConfig, name)
		require.ErrorContains(t, err, "line 1: "+name+" is true, want false or none")
		_, samples, _, err := shownForms(t, row+"false}", Options{Template: template(t, fullTemplate)})
		require.NoError(t, err, name)
		require.Equal(t, []string{"<user>hi<assistant>⟦ho</s>⟧"}, samples)
	}
}

// TestApart: rows that their set keeps for a test are not learned.
func TestApart(t *testing.T) {
	for _, name := range []string{"split", "data_split", "partition"} {
		row := `{"question": "hi", "answer": "ho", "` + name + `": `
		for _, v := range []string{"test", "Test", "test_sft", "validation", "held-out"} {
			_, _, _, err := shownForms(t, row+`"`+v+`"}`, Options{Template: template(t, fullTemplate)})
			require.ErrorIs(t, err, snug.ErrConfig, name)
			require.ErrorContains(t, err, "line 1: "+name+` is "`+v+`", of rows that are kept for a test`)
		}
		for _, v := range []string{`"train"`, `"train_test"`, `"a"`, `""`, "1", "null"} {
			_, samples, _, err := shownForms(t, row+v+"}", Options{Template: template(t, fullTemplate)})
			require.NoError(t, err, name+v)
			require.Equal(t, []string{"<user>hi<assistant>⟦ho</s>⟧"}, samples)
		}
	}
}

// TestRemedies: what is nearly a file of rows is refused with what makes one of it.
func TestRemedies(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"arrays of messages":  {`[[` + hiUser + `, ` + ho + `]]`, "an array, want an object with the fields of a sample: jq -c '.[] | {messages: .}' FILE > rows.jsonl"},
		"an array of numbers": {`[[1]]`, "an array, want an object with the fields of a sample: snug"},
		"parts of Gemini": {`{"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}`,
			`contents has messages of parts: jq -c '.messages = [.contents[] | {role: (if .role == "model" then "assistant" else .role end), content: ([.parts[].text] | join(""))}] | del(.contents)' FILE > rows.jsonl`},
		"commas between rows": {`{"text": "one two"},` + "\n" + `{"text": "one two"}`, "',', want a value of JSON: remove the comma, or put [ before the first row and ] behind the last"},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, _, err := shownForms(t, c.text, Options{Template: template(t, fullTemplate)})
			require.ErrorContains(t, err, c.want)
		})
	}
}

// TestTemplateIsMissing: messages without a template say whether the tokenizer has one.
func TestTemplateIsMissing(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "tokenizer.json"), []byte(`{"version": "1.0", "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}`), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "tokenizer_config.json"), []byte(`{"chat_template": "{{ 'a' }}"}`), 0o600))
	with, err := tokenizer.Open(dir)
	require.NoError(t, err)
	_, err = Open([]string{write(t, "a.jsonl", `{"messages": [`+hiUser+`, `+ho+`]}`)}, with, Options{Context: 8, EOS: eos})
	require.ErrorIs(t, err, snug.ErrConfig)
	require.ErrorContains(t, err, "messages want a chat template, and Options.Template is nil: chat.Open makes it")
}
