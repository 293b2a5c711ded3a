package chat

import (
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
)

// wantsIDs is a template that refuses ids of calls which are not of nine letters and digits.
const wantsIDs = `{% for m in messages %}{% if m.role == 'tool' %}{% if m.tool_call_id is not defined or m.tool_call_id|length != 9 %}{{ raise_exception('Tool call IDs should be alphanumeric strings with length 9!') }}{% endif %}[R]{{ m.content }} {{ m.tool_call_id }}[/R]` +
	`{% else %}{{ '[I]' if m.role == 'user' else '[A]' }}{% for c in m.tool_calls or [] %}{% if c.id is not defined or c.id|length != 9 %}{{ raise_exception('Tool call IDs should be alphanumeric strings with length 9!') }}{% endif %}{{ c.function.name }} {{ c.id }}{% else %}{{ m.content }}{% endfor %}{{ eos_token if m.role == 'assistant' }}{% endif %}{% endfor %}{% if add_generation_prompt %}[A]{% endif %}`

// TestIDs: where a template refuses the ids of calls, or that there are none, a call and its result get the same made id.
func TestIDs(t *testing.T) {
	call := func(ids ...string) Object {
		var calls []any
		for _, id := range ids {
			o := Object{{"type", "function"}, {"function", Object{{"name", "f"}, {"arguments", Object{}}}}}
			if id != "" {
				o = append(Object{{"id", id}}, o...)
			}
			calls = append(calls, o)
		}
		return Object{{"tool_calls", calls}}
	}
	result := func(id string) Object {
		if id == "" {
			return nil
		}
		return Object{{"tool_call_id", id}}
	}
	template := parsed(t, wantsIDs)
	for _, c := range []struct {
		about   string
		call    Object
		first   Object
		pattern string // of what the template writes
		note    bool
	}{
		{"none", call(""), result(""), `^\[I\]x\[A\]f (\w{9})</s>\[R\]1 (\w{9})\[/R\]\[A\]y</s>$`, true},
		{"those of OpenAI", call("call_1"), result("call_1"), `^\[I\]x\[A\]f (\w{9})</s>\[R\]1 (\w{9})\[/R\]\[A\]y</s>$`, true},
		{"those that it takes", call("abcdefgh1"), result("abcdefgh1"), `^\[I\]x\[A\]f (abcdefgh1)</s>\[R\]1 (abcdefgh1)\[/R\]\[A\]y</s>$`, false},
		{"a result without one", call("abcdefgh1"), result(""), `^\[I\]x\[A\]f (abcdefgh1)</s>\[R\]1 (abcdefgh1)\[/R\]\[A\]y</s>$`, true},
	} {
		t.Run(c.about, func(t *testing.T) {
			conversation := says("u:x", "a:", "t:1", "a:y").with(1, c.call).with(2, c.first)
			l, err := template.Label(conversation)
			require.NoError(t, err, c.about)
			require.Regexp(t, c.pattern, l.Text, c.about)
			ids := regexp.MustCompile(c.pattern).FindStringSubmatch(l.Text)
			require.Equal(t, ids[1], ids[2], c.about)
			require.Equal(t, c.note, len(l.Notes) == 1, c.about)
			if c.note {
				require.Equal(t, "the chat template refuses the ids of the tool calls; ids of 9 letters and digits, which are made, replace them", l.Notes[0].Text)
			}
			require.Len(t, l.Turns, 2)
			require.Equal(t, "f "+ids[1]+"</s>", l.Text[l.Turns[0].Begin:l.Turns[0].End], c.about)
			again, err := template.Label(conversation)
			require.NoError(t, err)
			require.Equal(t, l.Text, again.Text, "the same conversation has the same ids")
		})
	}
	// Results in another order than their calls.
	c, found := numbered(says("u:x", "a:", "t:1", "t:2").with(1, call("c1", "c2")).with(2, result("c2")).with(3, result("c1")))
	require.True(t, found)
	calls := c.Messages[1].Fields[0].Value.([]any)
	require.NotEqual(t, calls[0].(Object)[0].Value, calls[1].(Object)[0].Value)
	require.Equal(t, calls[1].(Object)[0].Value, c.Messages[2].Fields[0].Value)
	require.Equal(t, calls[0].(Object)[0].Value, c.Messages[3].Fields[0].Value)

	_, err := parsed(t, "{{ raise_exception('roles must alternate') }}").Label(says("u:x", "a:y"))
	require.ErrorIs(t, err, snug.ErrConfig)
	require.ErrorContains(t, err, "the chat template says: roles must alternate (join the turns of one role that follow each other, and begin with the user)")
}

// TestCallsLeftOut: a template that writes no calls leaves out the calls of a message, and not the message.
func TestCallsLeftOut(t *testing.T) {
	l, err := parsed(t, "{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ eos_token }}{% endfor %}").Label(says("u:x", "a:", "t:noon", "a:y").with(1, calling("{}")))
	require.NoError(t, err)
	require.Equal(t, "the chat template leaves out the tool calls of message 1 (assistant)", l.Notes[0].Text)
}
