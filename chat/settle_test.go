package chat

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug/tokenizer"
)

// channels is a template whose answers have a channel, and whose results of functions have the function's name.
const channels = `{% set ns = namespace(name='') %}{% for m in messages %}{% if m.tool_calls %}{% set c = m.tool_calls[0].function %}{% set ns.name = c.name %}<|start|>assistant to={{ c.name }}<|channel|>commentary<|message|>{{ c.arguments | tojson }}<|call|>
{%- elif m.role == 'assistant' %}<|start|>assistant<|channel|>final<|message|>{{ m.content }}{{ '<|return|>' if loop.last else '<|end|>' }}
{%- elif m.role == 'tool' %}<|start|>{{ ns.name }} to=assistant<|channel|>commentary<|message|>{{ m.content }}<|end|>
{%- else %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endif %}{% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}`

// The name of a function with its results is not its call, and what stands between the header and the content is no end,
// also where a call or a content is empty.
func TestChannels(t *testing.T) {
	template, err := Parse(tokenizer.Config{ChatTemplate: channels, EOS: "<|return|>"}, Options{Special: []string{"<|start|>", "<|message|>", "<|channel|>", "<|end|>", "<|call|>"}})
	require.NoError(t, err)
	const begin, end = "<|start|>user<|message|>q<|end|><|start|>assistant", "<|start|>assistant⟦<|channel|>final<|message|>z<|return|>⟧"
	result := func(text string) string {
		return "<|start|>clock to=assistant<|channel|>commentary<|message|>" + text + "<|end|>"
	}
	for name, c := range map[string]struct {
		c    Conversation
		want string
	}{
		"two results": {says("u:q", "a:", "t:r", "t:s", "a:z").with(1, calling(Object{{"a", int64(1)}})),
			begin + `⟦ to=clock<|channel|>commentary<|message|>{"a": 1}<|call|>⟧` + result("r") + result("s") + end},
		"three results": {says("u:q", "a:", "t:r", "t:s", "t:t", "a:z").with(1, calling(Object{{"a", true}})),
			begin + `⟦ to=clock<|channel|>commentary<|message|>{"a": true}<|call|>⟧` + result("r") + result("s") + result("t") + end},
		"one result": {says("u:q", "a:", "t:r", "a:z").with(1, calling(Object{})),
			begin + `⟦ to=clock<|channel|>commentary<|message|>{}<|call|>⟧` + result("r") + end},
		"empty answer": {says("u:q", "a:", "u:q", "a:z"),
			begin + "⟦<|channel|>final<|message|><|end|>⟧<|start|>user<|message|>q<|end|>" + end},
		"blank answer": {says("u:q", "a: \n", "u:q", "a:z"),
			begin + "⟦<|channel|>final<|message|> \n<|end|>⟧<|start|>user<|message|>q<|end|>" + end},
	} {
		t.Run(name, func(t *testing.T) {
			l, err := template.Label(c.c)
			require.NoError(t, err)
			require.Equal(t, c.want, shown(l))
		})
	}
}

// Whatever form a conversation has, arguments as objects or texts, content empty or null, its calls are written as the
// template writes them.
func TestForms(t *testing.T) {
	const loop, done = "{% for m in messages %}{% if m.role == 'user' %}<U>{{ m.content }}{% else %}<A>", "{{ eos_token }}{% endif %}{% endfor %}{% if add_generation_prompt %}<A>{% endif %}"
	const calls = "{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}"
	for name, c := range map[string]struct{ text, want string }{
		"JSON":                    {loop + "{{ m.content or '' }}" + calls + done, `clock{"zone": "UTC"}`},
		"None and JSON":           {loop + "{{ m.content }}" + calls + done, `clock{"zone": "UTC"}`},
		"content tested, objects": {loop + "{{ m.content[0:0] }}{% for c in m.tool_calls %}{{ c.function.name }}{% for k, v in c.function.arguments.items() %} {{ k }}={{ v }}{% endfor %}{% endfor %}" + done, "clock zone=UTC"},
		"content tested, texts":   {loop + "{% if 'x' in m.content %}x{% endif %}{% for c in m.tool_calls %}{{ c.function.name + c.function.arguments }}{% endfor %}" + done, `clock{"zone": "UTC"}`},
		"content is null":         {loop + "{% if m.content is none %}{% for c in m.tool_calls %}{{ c.function.name + c.function.arguments }}{% endfor %}{% else %}{{ m.content }}{% endif %}" + done, `clock{"zone": "UTC"}`},
		"its own syntax": {loop + "{{ m.content or '' }}{% for c in m.tool_calls %}{{ c.function.name }}{{ '{' }}{% if c.function.arguments is mapping %}{% for k, v in c.function.arguments.items() %}{{ k }}:<{{ v }}>{% endfor %}{% else %}{{ c.function.arguments }}{% endif %}{{ '}' }}{% endfor %}" + done,
			"clock{zone:<UTC>}"},
		"as Python": {loop + "{{ m.content or '' }}{% for c in m.tool_calls %}{{ c.function.name }}{{ c.function.arguments }}{% endfor %}" + done, `clock{"zone": "UTC"}`},
	} {
		t.Run(name, func(t *testing.T) {
			template, err := Parse(tokenizer.Config{ChatTemplate: c.text, EOS: "</s>"}, Options{Special: []string{"<U>", "<A>"}})
			require.NoError(t, err)
			for _, arguments := range []any{`{"zone": "UTC"}`, Object{{"zone", "UTC"}}} {
				for _, null := range []bool{false, true} {
					x := says("u:q", "a:").with(1, calling(arguments))
					x.Messages[1].NoContent = null
					l, err := template.Label(x)
					require.NoError(t, err, "%v %v", arguments, null)
					require.Equal(t, "<U>q<A>⟦"+c.want+"</s>⟧", shown(l), "%v %v", arguments, null)
					require.Empty(t, l.Notes)
				}
			}
		})
	}
}

// An empty answer of a template without a generation prompt is its end, and no header is learned.
func TestEmptyWithoutPrompt(t *testing.T) {
	l, err := shape(t, "Mistral Nemo").Label(says("u:q", "a:", "u:r", "a:z"))
	require.NoError(t, err)
	require.Equal(t, "<s>[INST]q[/INST]⟦</s>⟧[INST]r[/INST]⟦z</s>⟧", shown(l))
	require.Empty(t, l.Notes)
}

// A template that cuts contents leaves them out and is not given parts, and one that writes them twice has its end.
func TestCutAndTwice(t *testing.T) {
	c := says("u:one", "a:two", "u:three", "a:four")
	l, err := parsed(t, "{% for m in messages %}{{ m.content[:1] }}{% endfor %}").Label(c)
	require.NoError(t, err)
	require.Equal(t, "ottf", shown(l))
	require.Len(t, l.Notes, 4)
	for i, n := range l.Notes {
		require.Equal(t, LeftOut, n.Kind)
		require.Equal(t, i, n.Message)
	}
	for _, between := range []string{"", " and "} {
		l, err = parsed(t, "{% for m in messages %}{{ m.content }}"+between+"{{ m.content }}{{ eos_token }}{% endfor %}").Label(c)
		require.NoError(t, err)
		require.Equal(t, "one"+between+"one</s>⟦two"+between+"two</s>⟧three"+between+"three</s>⟦four"+between+"four</s>⟧", shown(l))
		require.Empty(t, l.Notes)
	}
}
