package chat

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug/tokenizer"
)

// TestBegin has conversations in which a turn is easily taken for another, or its beginning for the prompt.
func TestBegin(t *testing.T) {
	const (
		chatML    = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
		noPrompt  = "{% for m in messages %}{% if m.role == 'tool' %}[RESULT]{{ m.content }}, {{ m.tool_call_id }}[/RESULT]{% elif m.role == 'user' %}[INST]{{ m.content }}[/INST]{% else %}{% for c in m.tool_calls or [] %}[CALL]{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}{{ m.content }}</s>{% endif %}{% endfor %}"
		unlike    = "{% for m in messages %}{% if m.role == 'user' %}[INST]{{ m.content }}[/INST]{% else %}{{ m.content }}</s>{% endif %}{% endfor %}{% if add_generation_prompt %}Answer:{% endif %}"
		oneHeader = "{% for m in messages %}{% if m.role == 'user' %}<|user|>\n{{ m.content }}<|end|>\n<|assistant|>\n{% else %}{{ m.content }}<|end|>\n{% endif %}{% endfor %}"
		quotes    = "{% for m in messages %}{% if m.role == 'tool' %}<|result>{{ m.content }}<result|>{% else %}<|turn>{{ m.role }}\n{% for c in m.tool_calls or [] %}<|call>{{ c.function.name }}{% for k, v in c.function.arguments.items() %}{{ k }}:<|\"|>{{ v }}<|\"|>{% endfor %}}<call|>{% else %}{{ m.content }}<turn|>\n{% endfor %}{% endif %}{% endfor %}{% if add_generation_prompt %}<|turn>assistant\n{% endif %}"
		behind    = "{% for m in messages %}{% if m.role == 'user' %}<|user|>{{ m.content }}</s>{% elif m.role == 'assistant' %}<|assistant|>{% for c in m.tool_calls or [] %}<|call>{{ c.function.name }}{{ c.function.arguments | tojson }}<call|><|result>{{ messages[loop.index0 + 2].content }}<result|>{% endfor %}{{ m.content }}</s>{% endif %}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
		numbered  = "{% for m in messages %}[{{ loop.index }}] {{ m.role }}: {{ m.content }}</s>\n{% endfor %}{% if add_generation_prompt %}[{{ messages|length + 1 }}] assistant: {% endif %}"
		falling   = "{% for m in messages %}<{{ loop.revindex }}|{{ m.role }}>{{ m.content }}</s>{% endfor %}{% if add_generation_prompt %}<0|assistant>{% endif %}"
		backwards = "{% for m in messages[::-1] %}{{ m.role }}: {{ m.content }}</s>\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
		noDots    = "{% for m in messages %}{{ m.role }}: {{ m.content.strip('.') }}</s>\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
		spaced    = "{% for m in messages %}{% if m.role == 'user' %}USER: {{ m.content }}\n{% else %}ASSISTANT: {{ m.content }}</s>\n{% endif %}{% endfor %}{% if add_generation_prompt %}ASSISTANT:\n{% endif %}"
		lastUser  = "{% if messages[-1].role == 'user' %}{{ messages[-1].content }}[/SYS]{% else %}{% for m in messages %}{% if m.role == 'user' %}[INST]{{ m.content }}[/INST]{% else %}{{ m.content }}</s>{% endif %}{% endfor %}{% endif %}"
		bare      = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
		judge     = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}\n{% endfor %}Say in one word whether the last answer above is safe.<|im_end|>"
	)
	calls := func(id string) Object {
		return Object{{"tool_calls", []any{Object{{"id", id}, {"function", Object{{"name", "f"}, {"arguments", Object{{"q", "x"}}}}}}}}}
	}
	for name, c := range map[string]struct {
		template string
		c        Conversation
		want     string
		notes    []string
	}{
		"nothing is said twice": {chatML, says("u:", "a:", "u:", "a:"), "<|im_start|>user\n<|im_end|>\n<|im_start|>assistant\n⟦<|im_end|>⟧\n<|im_start|>user\n<|im_end|>\n<|im_start|>assistant\n⟦<|im_end|>⟧\n", nil},
		"the same result of two calls": {noPrompt, says("u:hi", "a:", "t:r", "a:", "t:r", "a:Done.").with(1, calls("one")).with(2, Object{{"tool_call_id", "one"}}).with(3, calls("two")).with(4, Object{{"tool_call_id", "two"}}),
			`[INST]hi[/INST]⟦[CALL]f{"q": "x"}</s>⟧[RESULT]r, one[/RESULT]⟦[CALL]f{"q": "x"}</s>⟧[RESULT]r, two[/RESULT]⟦Done.</s>⟧`, nil},
		"an answer that begins as the prompt": {unlike, says("u:hi", "a:Answer 7"), "[INST]hi[/INST]⟦Answer 7</s>⟧", nil},
		"an answer after an end and a break":  {oneHeader, says("u:hi", "a:one", "a:two"), "<|user|>\nhi<|end|>\n<|assistant|>\n⟦one<|end|>⟧\n⟦two<|end|>⟧\n", []string{"the chat template ends answers with <|end|>, at which generation does not stop"}},
		"quotation marks that are tokens": {quotes, says("u:hi", "a:", "t:r", "a:Done.").with(1, calls("one")), "<|turn>user\nhi<turn|>\n<|turn>assistant\n⟦<|call>fq:<|\"|>x<|\"|>}<call|>⟧<|result>r<result|><|turn>assistant\n⟦Done.<turn|>⟧\n",
			[]string{"the chat template ends answers with <call|>, at which generation does not stop", "the chat template ends answers with <turn|>, at which generation does not stop"}},
		"content behind the result": {behind, says("u:hi", "a:late", "t:r", "a:Done.").with(1, calls("one")), `<|user|>hi</s><|assistant|>⟦<|call>f{"q": "x"}<call|>⟧<|result>r<result|>late</s><|assistant|>⟦Done.</s>⟧`,
			[]string{"the chat template ends answers with <call|>, at which generation does not stop", `the chat template writes content of message 1 (assistant) outside of its turn, where it is not learned: "late"`}},
		"numbers of turns":             {numbered, says("u:hi", "a:", "u:more", "a:end"), "[1] user: hi</s>\n[2] assistant: ⟦</s>⟧\n[3] user: more</s>\n[4] assistant: ⟦end</s>⟧\n", nil},
		"numbers that fall":            {falling, says("u:hi", "a:one", "a:two", "a:two"), "<4|user>hi</s><3|assistant>⟦one</s>⟧<2|assistant>⟦two</s>⟧<1|assistant>⟦two</s>⟧", nil},
		"numbers of two answers":       {numbered, says("u:hi", "a:one", "a:two"), "[1] user: hi</s>\n[2] assistant: ⟦one</s>⟧\n[3] assistant: ⟦two</s>⟧\n", nil},
		"backwards":                    {backwards, says("u:hi", "a:one", "u:more", "a:two"), "assistant: ⟦two</s>⟧\nuser: more</s>\nassistant: ⟦one</s>⟧\nuser: hi</s>\n", nil},
		"nothing is left":              {noDots, says("u:hi", "a:."), "user: hi</s>\nassistant: ⟦</s>⟧\n", []string{`the chat template leaves out a part of message 1 (assistant): "."`}},
		"an answer that is the prompt": {spaced, says("u:hi", "a:\nASSISTANT:\n"), "USER: hi\nASSISTANT:⟦ \nASSISTANT:\n</s>⟧\n", nil},
		"no prompt, and no question": {bare, says("a:hi", "u:x"), "⟦<|im_start|>assistant\nhi<|im_end|>⟧\n<|im_start|>user\nx<|im_end|>\n",
			[]string{`the chat template writes no generation prompt before message 0 (assistant), so that the model learns to write its header "<|im_start|>assistant\n"`}},
		"a sentence behind the answer": {judge, says("u:x", "a:one"), "<|im_start|>user\nx\n⟦<|im_start|>assistant\none\nSay in one word whether the last answer above is safe.<|im_end|>⟧",
			[]string{`the chat template writes behind message 1 (assistant), where it is learned as if it were the answer's: "Say in one word whether the last answer above is safe.<|im_e…"`}},
		"blanks without a prompt": {lastUser, says("u:hi", "a:  one"), "[INST]hi[/INST]⟦  one</s>⟧", nil},
	} {
		t.Run(name, func(t *testing.T) {
			special := []string{"<|im_start|>", "<|im_end|>", "[INST]", "[/INST]", "[CALL]", "[RESULT]", "[/RESULT]", "<|user|>", "<|assistant|>", "<|end|>", "<|call>", "<call|>", "<|\"|>", "<|turn>", "<turn|>", "<|result>", "<result|>", "</s>"}
			eos := "</s>"
			if strings.Contains(c.template, "<|im_end|>") {
				eos = "<|im_end|>"
			}
			template, err := Parse(tokenizer.Config{ChatTemplate: c.template, EOS: eos}, Options{Special: special})
			require.NoError(t, err)
			l, err := template.Label(c.c)
			require.NoError(t, err)
			var notes []string
			for _, n := range l.Notes {
				notes = append(notes, n.Text)
			}
			require.Equal(t, c.want, shown(l))
			require.ElementsMatch(t, c.notes, notes)
		})
	}
}

// TestBeginMany has more turns with prompts of their own than are rendered.
func TestBeginMany(t *testing.T) {
	template, err := Parse(tokenizer.Config{ChatTemplate: "{% for m in messages %}[{{ loop.index }}] {{ m.role }}: {{ m.content }}</s>\n{% endfor %}{% if add_generation_prompt %}[{{ messages|length + 1 }}] assistant: {% endif %}", EOS: "</s>"}, Options{})
	require.NoError(t, err)
	var c Conversation
	for range 40 {
		c.Messages = append(c.Messages, Message{Role: "user", Content: "1"}, Message{Role: "assistant"})
	}
	l, err := template.Label(c)
	require.NoError(t, err)
	require.Len(t, l.Turns, 40)
	for i, x := range l.Turns {
		require.Equal(t, 2*i+1, x.Message)
		require.Equal(t, "</s>", l.Text[x.Begin:x.End])
		require.True(t, strings.HasSuffix(l.Text[:x.Begin], "assistant: "), l.Text[:x.Begin])
	}
}
