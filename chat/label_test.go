package chat

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/tokenizer"
)

// shapes are templates of the shapes that published ones have.
var shapes = map[string]struct {
	text, eos string
	special   []string
}{
	"ChatML": {"{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
		"<|im_end|>", []string{"<|im_start|>"}},
	"default system": {"{% if messages[0].role != 'system' %}<|im_start|>system\nYou are helpful.<|im_end|>\n{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}" +
		"{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}", "<|im_end|>", []string{"<|im_start|>"}},
	"Qwen3": {`{%- set ns = namespace(last=messages|length - 1, open=true) %}
{%- for m in messages[::-1] %}{%- set i = messages|length - 1 - loop.index0 %}
{%- if ns.open and m.role == 'user' and not (m.content.startswith('<tool_response>') and m.content.endswith('</tool_response>')) %}{%- set ns.open = false %}{%- set ns.last = i %}{%- endif %}{%- endfor %}
{%- for m in messages %}
{%- if m.role == 'assistant' %}
{%- set content = m.content if m.content is string else '' %}{%- set why = '' %}
{%- if m.reasoning_content is string %}{%- set why = m.reasoning_content %}{%- elif '</think>' in content %}{%- set why = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}{%- set content = content.split('</think>')[-1].lstrip('\n') %}{%- endif %}
{{- '<|im_start|>assistant\n' }}{%- if loop.index0 > ns.last and (loop.last or why) %}{{- '<think>\n' + why.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}{%- else %}{{- content }}{%- endif %}
{%- for c in m.tool_calls or [] %}{{- '\n' if content or not loop.first }}<tool_call>
{"name": "{{ c.function.name }}", "arguments": {% if c.function.arguments is string %}{{ c.function.arguments }}{% else %}{{ c.function.arguments | tojson }}{% endif %}}
</tool_call>{%- endfor %}{{- '<|im_end|>\n' }}
{%- elif m.role == 'tool' %}{{- '<|im_start|>user\n<tool_response>\n' + m.content + '\n</tool_response><|im_end|>\n' }}
{%- else %}{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{%- endif %}
{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}`, "<|im_end|>", []string{"<|im_start|>"}},
	"gpt-oss": {`<|start|>system<|message|>You are helpful.<|end|>
{%- for m in messages %}{%- if m.role == 'assistant' %}{%- if m.thinking and loop.last %}<|start|>assistant<|channel|>analysis<|message|>{{ m.thinking }}<|end|>{%- endif %}<|start|>assistant<|channel|>final<|message|>{{ m.content }}{{ '<|return|>' if loop.last else '<|end|>' }}
{%- else %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{%- endif %}{%- endfor %}{%- if add_generation_prompt %}<|start|>assistant{%- endif %}`,
		"<|return|>", []string{"<|start|>", "<|message|>", "<|channel|>", "<|end|>"}},
	"Llama 3.1": {"{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content | trim }}<|eot_id|>{% endfor %}{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}",
		"<|eot_id|>", []string{"<|start_header_id|>", "<|end_header_id|>"}},
	"Llama 3 of April 2024": {"{% for m in messages %}{% set c = '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' + m.content | trim + '<|eot_id|>' %}{% if loop.first %}{% set c = bos_token + c %}{% endif %}{{ c }}{% endfor %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}",
		"<|eot_id|>", []string{"<|start_header_id|>", "<|end_header_id|>"}},
	"Mistral Nemo": {"{% if messages[0].role == 'system' %}{% set s = messages[0].content %}{% set rest = messages[1:] %}{% else %}{% set rest = messages %}{% endif %}{{ bos_token }}{% for m in rest %}{% if m.role == 'user' %}" +
		"{% if loop.last and s is defined %}[INST]{{ s + '\n\n' + m.content }}[/INST]{% else %}[INST]{{ m.content }}[/INST]{% endif %}{% elif m.role == 'assistant' %}{{ m.content + eos_token }}{% endif %}{% endfor %}",
		"</s>", []string{"[INST]", "[/INST]"}},
	"DeepSeek-R1 distilled": {"{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}<｜User｜>{{ m.content }}{% elif m.role == 'assistant' %}{% set c = m.content %}{% if '</think>' in c %}{% set c = c.split('</think>')[-1] %}{% endif %}<｜Assistant｜>{{ c }}<｜end｜>" +
		"{% else %}{{ m.content }}{% endif %}{% endfor %}{% if add_generation_prompt %}<｜Assistant｜><think>\n{% endif %}", "<｜end｜>", []string{"<｜User｜>", "<｜Assistant｜>"}},
	"Gemma 3": {"{{ bos_token }}{% if messages[0].role == 'system' %}{% set first = messages[0].content + '\n\n' %}{% set rest = messages[1:] %}{% else %}{% set first = '' %}{% set rest = messages %}{% endif %}{% for m in rest %}<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n" +
		"{{ first if loop.first else '' }}{{ m.content | trim }}<end_of_turn>\n{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}", "<end_of_turn>", []string{"<start_of_turn>"}},
	"Phi-4":   {"{% for m in messages %}<|im_start|>{{ m.role }}<|im_sep|>{{ m.content }}<|im_end|>{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant<|im_sep|>{% endif %}", "<|im_end|>", []string{"<|im_start|>", "<|im_sep|>"}},
	"Zephyr":  {"{% for m in messages %}{% if m.role in ['user', 'system', 'assistant'] %}<|{{ m.role }}|>\n{{ m.content + eos_token }}\n{% endif %}{% if loop.last and add_generation_prompt %}<|assistant|>\n{% endif %}{% endfor %}", "</s>", nil},
	"GLM4":    {"[gMASK]<sop>{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}", "<|user|>", []string{"<|assistant|>", "<|system|>"}},
	"Qwen1.5": {"{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% if not loop.last or add_generation_prompt %}<|im_end|>\n{% endif %}{% endfor %}{% if add_generation_prompt and messages[-1].role != 'assistant' %}<|im_start|>assistant\n{% endif %}", "<|im_end|>", []string{"<|im_start|>"}},
	"SOLAR":   {"{% for m in messages %}{% if m.role != 'tool' %}### {{ m.role | capitalize }}:\n{{ m.content }}\n\n{% endif %}{% endfor %}{% if add_generation_prompt %}### Assistant:\n{% endif %}", "</s>", nil},
	"Command-R": {"{% for m in messages %}<|START|>{{ '<|CHATBOT|>' if m.role == 'assistant' else '<|USER|>' }}{{ m.content.strip() }}<|END|>{% endfor %}{% if add_generation_prompt %}<|START|><|CHATBOT|>{% endif %}",
		"<|END|>", []string{"<|START|>", "<|CHATBOT|>", "<|USER|>"}},
	"end of all":    {"{% for m in messages %}{{ '<U>' if m.role == 'user' else '<A>' }}{{ m.content }}{% endfor %}{% if add_generation_prompt %}<A>{% else %}{{ eos_token }}{% endif %}", "</s>", []string{"<U>", "<A>"}},
	"prompt thinks": {"{% for m in messages %}{{ '<U>' if m.role == 'user' else '<A>' }}{{ m.content }}{{ eos_token }}{% endfor %}{% if add_generation_prompt %}<A><think>\n{% endif %}", "</s>", []string{"<U>", "<A>"}},
	"system before a question": {"{% for m in messages %}{% if m.role == 'system' %}{% if messages[-1].role == 'user' %}<S>{{ m.content }}{% endif %}{% else %}{{ '<U>' if m.role == 'user' else '<A>' }}{{ m.content }}{{ eos_token }}{% endif %}{% endfor %}{% if add_generation_prompt %}<A>{% endif %}",
		"</s>", []string{"<U>", "<A>", "<S>"}},
	"parts":                      {"{% for m in messages %}<U>{% for c in m.content %}{% if c.type == 'text' %}{{ c.text }}{% endif %}{% endfor %}{{ eos_token }}{% endfor %}{% if add_generation_prompt %}<U>{% endif %}", "</s>", []string{"<U>"}},
	"marked":                     {"{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}<A>{{ m.content }}{{ eos_token }}\n{% endgeneration %}{% else %}<U>{{ m.content }}{% endif %}{% endfor %}{% if add_generation_prompt %}<A>{% endif %}", "</s>", []string{"<U>", "<A>"}},
	"marked without end":         {"{% for m in messages %}{% if m.role == 'assistant' %}<A>{% generation %}{{ m.content }}{% endgeneration %}{{ eos_token }}{% else %}<U>{{ m.content }}{% endif %}{% endfor %}{% if add_generation_prompt %}<A>{% endif %}", "</s>", []string{"<U>", "<A>"}},
	"in JSON":                    {"{% for m in messages %}<U>{{ m | tojson }}{{ eos_token }}{% endfor %}{% if add_generation_prompt %}<U>{% endif %}", "</s>", []string{"<U>"}},
	"text wanted":                {"{% for m in messages %}<U>{% for c in m.tool_calls or [] %}{{ c.function.name + c.function.arguments }}{% endfor %}{{ m.content or '' }}{{ eos_token }}{% endfor %}", "</s>", []string{"<U>"}},
	"calls without end":          {"{% for m in messages %}{% if m.role == 'assistant' %}<A>{{ m.content or '' }}{% for c in m.tool_calls or [] %}<call>{{ c.function.name }}\n{{ c.function.arguments | tojson }}\n</call>{% else %}{{ eos_token }}{% endfor %}{% else %}<U>{{ m.content }}{% endif %}{% endfor %}{% if add_generation_prompt %}<A>{% endif %}", "</s>", []string{"<U>", "<A>"}},
	"calls in place of a header": {"{% for m in messages %}{% if m.role == 'user' %}[INST]{{ m.content }}[/INST]{% else %}{% for c in m.tool_calls or [] %}[CALLS]{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}{{ m.content or '' }}{{ eos_token }}{% endif %}{% endfor %}", "</s>", []string{"[INST]", "[/INST]", "[CALLS]"}},
	"other end":                  {"{% for m in messages %}<U>{{ m.content }}<end>{% endfor %}{% if add_generation_prompt %}<U>{% endif %}", "</s>", []string{"<U>", "<end>"}},
	"every letter":               {"{% for m in messages %}<U>{% for c in m.content %}{{ c }}{% endfor %}{% if m.content == 'hi' %}!{% endif %}{{ eos_token }}{% endfor %}{% if add_generation_prompt %}<U>{% endif %}", "</s>", []string{"<U>"}},
}

func shape(t require.TestingT, name string) *Template {
	s, found := shapes[name]
	require.True(t, found, name)
	template, err := Parse(tokenizer.Config{ChatTemplate: s.text, EOS: s.eos, BOS: "<s>"}, Options{Special: append(s.special, s.eos)})
	require.NoError(t, err)
	return template
}

// shown writes a labeled text with its turns in brackets.
func shown(l Labeled) string {
	var b strings.Builder
	at := 0
	for _, x := range l.Turns {
		b.WriteString(l.Text[at:x.Begin] + "⟦" + l.Text[x.Begin:x.End] + "⟧")
		at = x.End
	}
	return b.String() + l.Text[at:]
}

// says makes a conversation of roles by their first letters and contents.
func says(turns ...string) (c Conversation) {
	for _, x := range turns {
		role, content, _ := strings.Cut(x, ":")
		c.Messages = append(c.Messages, Message{Role: map[string]string{"s": "system", "u": "user", "a": "assistant", "t": "tool"}[role], Content: content})
	}
	return c
}

// with adds fields to a message.
func (c Conversation) with(i int, fields Object) Conversation {
	c.Messages[i].Fields = fields
	return c
}

func calling(arguments any) Object {
	return Object{{"tool_calls", []any{Object{{"type", "function"}, {"function", Object{{"name", "clock"}, {"arguments", arguments}}}}}}}
}

func TestLabel(t *testing.T) {
	two := says("u:1+1?", "a:two", "u:more?", "a:no")
	first := says("a:Welcome!", "u:hi", "a:Bye")
	twice := says("u:hi", "a:one", "a:two")
	for _, c := range []struct {
		shape string
		c     Conversation
		want  string
		notes []string
	}{
		{"ChatML", two, "<|im_start|>user\n1+1?<|im_end|>\n<|im_start|>assistant\n⟦two<|im_end|>⟧\n<|im_start|>user\nmore?<|im_end|>\n<|im_start|>assistant\n⟦no<|im_end|>⟧\n", nil},
		{"ChatML", twice, "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n⟦one<|im_end|>⟧\n<|im_start|>assistant\n⟦two<|im_end|>⟧\n", nil},
		{"ChatML", says("u:", "a:"), "<|im_start|>user\n<|im_end|>\n<|im_start|>assistant\n⟦<|im_end|>⟧\n", nil},
		{"ChatML", says("u:a", "a:a", "u:a", "a: a\n"), "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n⟦a<|im_end|>⟧\n<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n⟦ a\n<|im_end|>⟧\n", nil},
		{"ChatML", says("u:Say <|im_start|>assistant\nx", "a:x"), "<|im_start|>user\nSay <|im_start|>assistant\nx<|im_end|>\n<|im_start|>assistant\n⟦x<|im_end|>⟧\n", nil},
		{"default system", first, "<|im_start|>system\nYou are helpful.<|im_end|>\n<|im_start|>assistant\n⟦Welcome!<|im_end|>⟧\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n⟦Bye<|im_end|>⟧\n", nil},
		{"Qwen3", two, "<|im_start|>user\n1+1?<|im_end|>\n<|im_start|>assistant\n⟦two<|im_end|>⟧\n<|im_start|>user\nmore?<|im_end|>\n<|im_start|>assistant\n⟦<think>\n\n</think>\n\nno<|im_end|>⟧\n", nil},
		{"Qwen3", says("u:x", "a:<think>\nwhy\n</think>\n\ny", "u:z", "a:<think>\nbut\n</think>\n\nw"), "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n⟦y<|im_end|>⟧\n<|im_start|>user\nz<|im_end|>\n<|im_start|>assistant\n⟦<think>\nbut\n</think>\n\nw<|im_end|>⟧\n",
			[]string{`the chat template leaves out a part of message 1 (assistant): "<think>\nwhy\n</think>"`}},
		{"Qwen3", says("u:x", "a:y").with(1, Object{{"thinking", "why"}}), "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n⟦<think>\nwhy\n</think>\n\ny<|im_end|>⟧\n", nil},
		{"Qwen3", says("u:x", "a:", "t:noon", "a:Noon.").with(1, calling(Object{{"zone", "UTC"}})), "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n⟦<tool_call>\n{\"name\": \"clock\", \"arguments\": {\"zone\": \"UTC\"}}\n</tool_call><|im_end|>⟧\n" +
			"<|im_start|>user\n<tool_response>\nnoon\n</tool_response><|im_end|>\n<|im_start|>assistant\n⟦<think>\n\n</think>\n\nNoon.<|im_end|>⟧\n", nil},
		{"Qwen3", says("u:<tool_response>a</tool_response>", "a:y", "u:<tool_response>b</tool_response>", "a:z"), "<|im_start|>user\n<tool_response>a</tool_response><|im_end|>\n<|im_start|>assistant\n⟦y<|im_end|>⟧\n<|im_start|>user\n<tool_response>b</tool_response><|im_end|>\n<|im_start|>assistant\n⟦z<|im_end|>⟧\n", nil},
		{"gpt-oss", two, "<|start|>system<|message|>You are helpful.<|end|><|start|>user<|message|>1+1?<|end|><|start|>assistant⟦<|channel|>final<|message|>two<|end|>⟧<|start|>user<|message|>more?<|end|><|start|>assistant⟦<|channel|>final<|message|>no<|return|>⟧",
			[]string{"the chat template ends answers with <|end|>, at which generation does not stop"}},
		{"gpt-oss", says("u:x", "a:y").with(1, Object{{"reasoning_content", "why"}}), "<|start|>system<|message|>You are helpful.<|end|><|start|>user<|message|>x<|end|><|start|>assistant⟦<|channel|>analysis<|message|>why<|end|><|start|>assistant<|channel|>final<|message|>y<|return|>⟧", nil},
		{"Llama 3.1", two, "<s><|start_header_id|>user<|end_header_id|>\n\n1+1?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n⟦two<|eot_id|>⟧<|start_header_id|>user<|end_header_id|>\n\nmore?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n⟦no<|eot_id|>⟧", nil},
		{"Llama 3.1", first, "<s><|start_header_id|>assistant<|end_header_id|>\n\n⟦Welcome!<|eot_id|>⟧<|start_header_id|>user<|end_header_id|>\n\nhi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n⟦Bye<|eot_id|>⟧", nil},
		{"Llama 3 of April 2024", says("u:1+1?", "a:2"), "<s><|start_header_id|>user<|end_header_id|>\n\n1+1?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n⟦2<|eot_id|>⟧<|start_header_id|>assistant<|end_header_id|>\n\n", nil},
		{"Llama 3 of April 2024", twice, "<s><|start_header_id|>user<|end_header_id|>\n\nhi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n⟦one<|eot_id|>⟧<|start_header_id|>assistant<|end_header_id|>\n\n⟦two<|eot_id|>⟧<|start_header_id|>assistant<|end_header_id|>\n\n", nil},
		{"Llama 3 of April 2024", first, "<s><|start_header_id|>assistant<|end_header_id|>\n\n⟦Welcome!<|eot_id|>⟧<|start_header_id|>user<|end_header_id|>\n\nhi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n⟦Bye<|eot_id|>⟧<|start_header_id|>assistant<|end_header_id|>\n\n", nil},
		{"Mistral Nemo", says("s:Be brief.", "u:1+1?", "a:two"), "<s>[INST]1+1?[/INST]⟦two</s>⟧", []string{"the chat template leaves out message 0 (system)"}},
		{"Mistral Nemo", twice, "<s>[INST]hi[/INST]⟦one</s>⟧⟦two</s>⟧", nil},
		{"DeepSeek-R1 distilled", says("u:x", "a:<think>\nwhy\n</think>\n\n42"), "<s><｜User｜>x<｜Assistant｜>⟦\n\n42<｜end｜>⟧", []string{`the chat template leaves out a part of message 1 (assistant): "<think>\nwhy\n</think>"`}},
		{"Gemma 3", says("s:Be brief.", "u:1+1?", "a:two"), "<s><start_of_turn>user\nBe brief.\n\n1+1?<end_of_turn>\n<start_of_turn>model\n⟦two<end_of_turn>⟧\n", nil},
		{"Phi-4", two, "<|im_start|>user<|im_sep|>1+1?<|im_end|><|im_start|>assistant<|im_sep|>⟦two<|im_end|>⟧<|im_start|>user<|im_sep|>more?<|im_end|><|im_start|>assistant<|im_sep|>⟦no<|im_end|>⟧", nil},
		{"Zephyr", says("u:x", "a:y", "t:z", "a:w"), "<|user|>\nx</s>\n<|assistant|>\n⟦y</s>⟧\n<|assistant|>\n⟦w</s>⟧\n", []string{"the chat template leaves out message 2 (tool)"}},
		{"GLM4", two, "[gMASK]<sop><|user|>\n1+1?<|assistant|>\n⟦two<|user|>⟧\nmore?<|assistant|>\n⟦no<|user|>⟧", []string{`the chat template writes "<|user|>" after an answer only if a message follows; it is added to the last one`}},
		{"Qwen1.5", two, "<|im_start|>user\n1+1?<|im_end|>\n<|im_start|>assistant\n⟦two<|im_end|>⟧\n<|im_start|>user\nmore?<|im_end|>\n<|im_start|>assistant\n⟦no<|im_end|>⟧", []string{`the chat template writes "<|im_end|>" after an answer only if a message follows; it is added to the last one`}},
		{"Qwen1.5", says("u:1+1?", "a:two"), "<|im_start|>user\n1+1?<|im_end|>\n<|im_start|>assistant\n⟦two<|im_end|>⟧", []string{`the chat template writes "<|im_end|>" after an answer only if a message follows; it is added to the last one`}},
		{"SOLAR", two, "### User:\n1+1?\n\n### Assistant:\n⟦two⟧\n\n### User:\nmore?\n\n### Assistant:\n⟦no⟧\n\n", []string{"no answer ends with an end token; generation will not stop"}},
		{"Command-R", first, "<|START|><|CHATBOT|>⟦Welcome!<|END|>⟧<|START|><|USER|>hi<|END|><|START|><|CHATBOT|>⟦Bye<|END|>⟧", nil},
		{"end of all", two, "<U>1+1?<A>⟦two⟧<U>more?<A>⟦no</s>⟧", []string{"the chat template writes no end of message 1 (assistant)"}},
		{"prompt thinks", says("u:1+1?", "a:two"), "<U>1+1?</s><A>⟦two</s>⟧", nil},
		{"prompt thinks", says("u:1+1?", "a:<think>\nhm</think>two"), "<U>1+1?</s><A><think>\n⟦hm</think>two</s>⟧", nil},
		{"system before a question", says("s:Be brief.", "u:x", "a:y"), "<U>x</s><A>⟦y</s>⟧", []string{"the chat template leaves out message 0 (system)"}},
		{"parts", two, "<U>1+1?</s><U>⟦two</s>⟧<U>more?</s><U>⟦no</s>⟧", nil},
		{"marked", two, "<U>1+1?<A>⟦two</s>⟧\n<U>more?<A>⟦no</s>⟧\n", nil},
		{"marked without end", two, "<U>1+1?<A>⟦two⟧</s><U>more?<A>⟦no⟧</s>", []string{"no answer ends with an end token; generation will not stop"}},
		{"in JSON", says("u:say \"1\"\n2", "a:\"1\"\n2"), `<U>{"role": "user", "content": "say \"1\"\n2"}</s><U>⟦{"role": "assistant", "content": "\"1\"\n2"}</s>⟧`, nil},
		{"text wanted", says("u:x", "a:").with(1, calling(Object{{"zone", "UTC"}})), `<U>x</s>⟦<U>clock{"zone": "UTC"}</s>⟧`,
			[]string{`the chat template writes no generation prompt before message 1 (assistant), so that the model learns to write its header "<U>"`}},
		{"Qwen3", says("u:x", "a:").with(1, calling(`{"zone":"UTC"}`)), "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n⟦<think>\n\n</think>\n\n<tool_call>\n{\"name\": \"clock\", \"arguments\": {\"zone\":\"UTC\"}}\n</tool_call><|im_end|>⟧\n", nil},
		{"calls without end", says("u:x", "a:", "u:noon", "a:Noon.").with(1, calling(Object{{"zone", "UTC"}})), "<U>x<A>⟦<call>clock\n{\"zone\": \"UTC\"}\n</call>⟧<U>noon<A>⟦Noon.</s>⟧",
			[]string{"the chat template writes no end of message 1 (assistant)"}},
		{"calls in place of a header", says("u:x", "a:").with(1, calling(Object{{"zone", "UTC"}})), "[INST]x[/INST]⟦[CALLS]clock{\"zone\": \"UTC\"}</s>⟧", nil},
		{"other end", two, "<U>1+1?<end><U>⟦two<end>⟧<U>more?<end><U>⟦no<end>⟧", []string{"the chat template ends answers with <end>, at which generation does not stop"}},
		{"every letter", says("u:hi", "a:hello", "u:hi", "a:world"), "<U>hi!</s><U>⟦hello</s>⟧<U>hi!</s><U>⟦world</s>⟧", nil},
	} {
		t.Run(c.shape, func(t *testing.T) {
			l, err := shape(t, c.shape).Label(c.c)
			require.NoError(t, err)
			require.Equal(t, c.want, shown(l))
			var notes []string
			for _, n := range l.Notes {
				notes = append(notes, n.Text)
			}
			require.Equal(t, c.notes, notes)
		})
	}
}

// A JSON text of arguments is given as an object where the template writes JSON of it.
func TestArguments(t *testing.T) {
	template := parsed(t, "{% for m in messages %}{{ m.role }}:{{ m.content or '' }}{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson }}{% endfor %}{{ eos_token }}{% endfor %}")
	for _, given := range []any{Object{{"b", int64(1)}, {"a", "x"}}, `{"b": 1, "a": "x"}`} {
		l, err := template.Label(says("u:q", "a:").with(1, calling(given)))
		require.NoError(t, err)
		require.Equal(t, `user:q</s>assistant:{"b": 1, "a": "x"}</s>`, l.Text)
	}
}

// Null content is written as nothing where a template would write None.
func TestNull(t *testing.T) {
	c := says("u:q", "a:").with(1, calling(Object{}))
	c.Messages[1].NoContent = true
	l, err := parsed(t, "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}[{{ c.function.name }}]{% endfor %}{{ eos_token }}{% endfor %}").Label(c)
	require.NoError(t, err)
	require.Equal(t, "q</s>[clock]</s>", l.Text)
}

func TestToolsLeftOut(t *testing.T) {
	c := says("u:q", "a:x")
	c.Tools = []any{Object{{"type", "function"}, {"function", Object{{"name", "clock"}}}}}
	l, err := shape(t, "ChatML").Label(c)
	require.NoError(t, err)
	require.Equal(t, []Note{{-1, LeftOut, "the chat template leaves out the tools"}}, l.Notes)
	template := parsed(t, "{{ tools | tojson }}{{ mood }}{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}")
	c.Values = Object{{"mood", "calm"}}
	l, err = template.Label(c)
	require.NoError(t, err)
	require.Equal(t, `[{"type": "function", "function": {"name": "clock"}}]calmq</s>⟦x</s>⟧`, shown(l))
	require.Empty(t, l.Notes)
}

// An untrained answer has no turn; other roles never have one.
func TestUntrained(t *testing.T) {
	c := says("u:a", "a:b", "u:c", "a:d")
	c.Messages[1].Untrained = true
	for _, name := range []string{"Phi-4", "marked"} {
		l, err := shape(t, name).Label(c)
		require.NoError(t, err)
		require.Len(t, l.Turns, 1)
		require.Equal(t, 3, l.Turns[0].Message)
	}
}

func TestLabelErrors(t *testing.T) {
	for text, want := range map[string]string{
		"{{ raise_exception('no system role') }}": "no system role",
		"{% for m in messages %}{{ m.content }}{% endfor %}{% if messages|length < 2 %}{{ raise_exception('short') }}{% endif %}": "",
		"{% if messages[-1].role == 'assistant' %}{{ raise_exception('last') }}{% endif %}":                                       "last",
	} {
		t.Run(text, func(t *testing.T) {
			_, err := parsed(t, text).Label(says("u:question one", "a:answer two"))
			if want == "" { // an error of a beginning is not the error of the conversation
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, snug.ErrConfig)
			require.ErrorContains(t, err, want)
		})
	}
	within := parsed(t, "{{ messages[1].content }}{{ messages[0].content }}{{ messages[1].content }}{{ eos_token }}")
	l, err := within.Label(says("u:question", "a:answer"))
	require.NoError(t, err)
	require.Equal(t, "answerquestion⟦answer</s>⟧", shown(l))
}

// labels: whatever is said, every answer is learned with its end and nothing else, or a note says what is not so.
func labels(t *rapid.T) {
	names := []string{"ChatML", "default system", "Qwen3", "Llama 3.1", "Llama 3 of April 2024", "Mistral Nemo", "Gemma 3", "Phi-4", "GLM4", "Qwen1.5", "Command-R", "parts", "in JSON", "every letter", "marked", "prompt thinks"}
	name := rapid.SampledFrom(names).Draw(t, "shape")
	content := rapid.OneOf(rapid.SampledFrom([]string{"", " ", "a", "assistant", "user\n", "<think>x</think>y", "</think>", "\n\nz", "ok", "<U>", "{\"a\": 1}", "\\ufdd2", "é 世界"}), rapid.StringMatching(`[a-c <>/\n]{0,12}`))
	var c Conversation
	for i := range rapid.IntRange(1, 6).Draw(t, "messages") {
		m := Message{Role: rapid.SampledFrom([]string{"user", "assistant", "system"}).Draw(t, "role"), Content: content.Draw(t, "content")}
		if m.Role == "system" && i > 0 {
			m.Role = "user"
		}
		if m.Role != "assistant" { // without text nothing tells where it is
			m.Content += "?"
		}
		c.Messages = append(c.Messages, m)
	}
	template := shape(t, name)
	l, err := template.Label(c)
	if err != nil {
		require.ErrorIs(t, err, snug.ErrConfig)
		return
	}
	noted := map[int]bool{}
	for _, n := range l.Notes {
		noted[n.Message] = true
	}
	at := 0
	turns := map[int]string{}
	for _, x := range l.Turns {
		require.LessOrEqual(t, at, x.Begin)
		require.LessOrEqual(t, x.Begin, x.End)
		at = x.End
		turns[x.Message] = l.Text[x.Begin:x.End]
	}
	require.LessOrEqual(t, at, len(l.Text))
	for i, m := range c.Messages {
		text, has := turns[i]
		require.False(t, has && m.Role != "assistant")
		if m.Role != "assistant" || noted[i] || noted[-1] {
			continue
		}
		require.True(t, has, "message %d of %q has no turn and no note", i, l.Text)
		body, ended := strings.CutSuffix(text, shapes[name].eos)
		require.True(t, ended, "%s: %q", name, shown(l))
		if name == "in JSON" {
			continue
		}
		want := strings.TrimSpace(m.Content)
		body = strings.TrimPrefix(body, "<think>\n\n</think>\n\n")
		if name == "prompt thinks" || name == "Qwen3" { // the prompt may have the beginning of the answer
			require.True(t, strings.HasSuffix(want, strings.TrimSpace(body)) || strings.Contains(body, "</think>"), "%s: %q", name, shown(l))
			continue
		}
		require.Equal(t, want, strings.TrimSpace(body), "%s: %q", name, shown(l))
	}
}

func TestLabels(t *testing.T) { rapid.Check(t, labels) }

func FuzzLabels(f *testing.F) { f.Fuzz(rapid.MakeFuzz(labels)) }

// The time of a long conversation grows with its length alone.
//
//check:not race
func TestLabelLong(t *testing.T) {
	took := func(name string, n int) time.Duration {
		var c Conversation
		for i := range n / 2 {
			c.Messages = append(c.Messages, Message{Role: "user", Content: fmt.Sprint("<tool_response>question ", i, "</tool_response>")}, Message{Role: "assistant", Content: fmt.Sprint("answer ", i)})
		}
		template := shape(t, name)
		began := time.Now()
		l, err := template.Label(c)
		require.NoError(t, err)
		require.Len(t, l.Turns, n/2)
		for i, x := range l.Turns {
			require.Contains(t, l.Text[x.Begin:x.End], fmt.Sprint("answer ", i))
			require.True(t, x.Ended)
		}
		return time.Since(began)
	}
	for _, name := range []string{"ChatML", "Qwen3", "Qwen1.5", "every letter"} {
		t.Run(name, func(t *testing.T) {
			took(name, 100)
			for try := 1; ; try++ { // others use the machine too
				short, long := took(name, 500), took(name, 8000)
				t.Log(short, long)
				if long < 64*short+time.Second/5 { // 16 times as many messages, for which squares take 256 times as long
					return
				}
				require.Less(t, try, 5)
			}
		})
	}
}

// All renderings of a template have the time that Parse was given.
func TestTime(t *testing.T) {
	c := tokenizer.Config{ChatTemplate: "{{ strftime_now('%d %b %Y') }} {% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}", EOS: "</s>"}
	template, err := Parse(c, Options{Now: time.Date(2024, 2, 29, 23, 0, 0, 0, time.FixedZone("", 14*3600))})
	require.NoError(t, err)
	require.True(t, template.UsesTime())
	l, err := template.Label(says("u:x", "a:y"))
	require.NoError(t, err)
	require.Equal(t, "29 Feb 2024 x</s>⟦y</s>⟧", shown(l))
	require.False(t, shape(t, "ChatML").UsesTime())
}

// Templates by their names.
func TestNames(t *testing.T) {
	c := tokenizer.Config{Templates: map[string]string{"rag": "{{ 'r' }}", "tool_use": "{{ 't' }}"}}
	_, err := Parse(c, Options{})
	require.ErrorIs(t, err, snug.ErrConfig)
	require.ErrorContains(t, err, `it has ["rag" "tool_use"]`)
	_, err = Parse(c, Options{Name: "chat"})
	require.ErrorContains(t, err, `no chat template "chat"`)
	c.ChatTemplate = "{{ 'd' }}"
	for _, x := range []struct {
		name, want string
		tools      []any
	}{{"", "d", nil}, {"", "t", []any{Object{}}}, {"rag", "r", []any{Object{}}}, {"default", "d", nil}} {
		template, err := Parse(c, Options{Name: x.name})
		require.NoError(t, err)
		text, err := template.Render(Conversation{Tools: x.tools}, false)
		require.NoError(t, err)
		require.Equal(t, x.want, text)
	}
}

// Zero values are errors, and so are values that JSON has not.
func TestZero(t *testing.T) {
	for _, template := range []*Template{nil, {}} {
		_, err := template.Render(Conversation{}, true)
		require.ErrorIs(t, err, snug.ErrConfig)
		_, err = template.Label(says("u:x", "a:y"))
		require.ErrorIs(t, err, snug.ErrConfig)
		require.False(t, template.UsesTime())
		require.Zero(t, template.Now())
	}
	l, err := shape(t, "ChatML").Label(Conversation{})
	require.NoError(t, err)
	require.Empty(t, l)
	for _, v := range []any{struct{}{}, map[string]any{}, []string{"x"}, int8(3)} {
		_, err := shape(t, "ChatML").Label(says("u:x").with(0, Object{{"extra", v}}))
		require.ErrorIs(t, err, snug.ErrConfig)
		require.ErrorContains(t, err, "message 0: a value of type")
	}
}

// Objects keep the order of their keys; of a repeated key the last value counts.
func TestValue(t *testing.T) {
	v, err := Value([]byte(`{"b": [1, 2.5, null, true, "<é>"], "a": {"z": -9223372036854775808}, "b": {}}`))
	require.NoError(t, err)
	require.Equal(t, Object{{"b", Object{}}, {"a", Object{{"z", int64(-9223372036854775808)}}}}, v)
	var o Object
	require.NoError(t, o.UnmarshalJSON([]byte(`{"b": [1, 2.5, null, true, "<é>"], "a": {"z": []}}`)))
	text, err := o.MarshalJSON()
	require.NoError(t, err)
	require.Equal(t, `{"b":[1,2.5,null,true,"<é>"],"a":{"z":[]}}`, string(text))
	for _, bad := range []string{"", "{", "[1", "1 2", "1e999", strings.Repeat("[", 200) + strings.Repeat("]", 200), "nul"} {
		_, err := Value([]byte(bad))
		require.ErrorIs(t, err, snug.ErrCorrupt, bad)
	}
	require.ErrorIs(t, o.UnmarshalJSON([]byte("[]")), snug.ErrCorrupt)
}
