package chat

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/tokenizer"
)

// golden is what testdata/make.py wrote.
type golden struct {
	Names         map[string]string
	Templates     map[string]string
	Conversations [][]turn
	Cases         []struct {
		Template     string
		Conversation int
		Prompt       bool
		Text, Error  string
		Spans        [][2]int
	}
}

// turn is a message of the file.
type turn struct{ Role, Content string }

func conversation(turns []turn) (c Conversation) {
	for _, x := range turns {
		c.Messages = append(c.Messages, Message{Role: x.Role, Content: x.Content})
	}
	return c
}

func parsed(t require.TestingT, text string) *Template {
	template, err := Parse(tokenizer.Config{ChatTemplate: text, BOS: "<s>", EOS: "</s>", Pad: "<pad>", Unknown: "<unk>"}, Options{})
	require.NoError(t, err)
	return template
}

func TestAgainstTransformers(t *testing.T) {
	text, err := os.ReadFile("testdata/golden.json")
	require.NoError(t, err)
	var g golden
	require.NoError(t, json.Unmarshal(text, &g))
	for _, c := range g.Cases {
		template, messages := parsed(t, g.Templates[c.Template]), conversation(g.Conversations[c.Conversation])
		have, err := template.Render(messages, c.Prompt)
		if c.Error != "" {
			require.ErrorContains(t, err, c.Error)
			continue
		}
		require.NoError(t, err, "%s %d", c.Template, c.Conversation)
		require.Equal(t, c.Text, have, "%s %d", c.Template, c.Conversation)
		if c.Spans == nil {
			continue
		}
		labeled, err := template.Label(messages)
		require.NoError(t, err)
		require.Equal(t, c.Text, labeled.Text)
		for i, s := range c.Spans { // transformers counts characters
			runes := []rune(c.Text)
			want := string(runes[s[0]:s[1]])
			if text, ok := strings.CutSuffix(want, "</s>\n"); ok { // the model does not write what follows the end
				want = text + "</s>"
			}
			require.Equal(t, want, c.Text[labeled.Turns[i].Begin:labeled.Turns[i].End])
		}
		require.Len(t, labeled.Turns, len(c.Spans))
	}
}

func TestRefused(t *testing.T) {
	for text, want := range map[string]string{
		"":                            "no chat template",
		"{% for m in messages %}":     "chat template",
		"{{ nothing(":                 "chat template",
		"{% include '/etc/passwd' %}": `the tag "include" is not known`,
		"{% for i in range(99999999) %}{{ i }}{% endfor %}":                                "range has more than",
		"{{ raise_exception('no system') }}":                                               "no system",
		"{{ strftime_now('%Q') }}":                                                         "not supported",
		"{% for i in range(60000) %}{{ '" + strings.Repeat("x", 1000) + "' }}{% endfor %}": "bytes of text",
	} {
		t.Run(text, func(t *testing.T) {
			template, err := Parse(tokenizer.Config{ChatTemplate: text}, Options{})
			if err == nil {
				_, err = template.Render(Conversation{Messages: []Message{{Role: "user", Content: "x"}}}, false)
			}
			require.ErrorIs(t, err, snug.ErrConfig, text)
			require.ErrorContains(t, err, want)
			require.Less(t, len(err.Error()), 500)
		})
	}
	_, err := parsed(t, "x").Render(Conversation{Messages: []Message{{Content: "\ufdd0"}}}, false)
	require.ErrorIs(t, err, snug.ErrConfig)
}

// Whatever a template is, it neither panics nor hangs.
func anyTemplate(t *rapid.T) {
	parts := rapid.SliceOfN(rapid.SampledFrom([]string{"{%", "%}", "{{", "}}", "-", "for", " m ", "in", "messages", "if", "else", "endif", "endfor",
		"set", "=", "[", "]", "(", ")", "'", "x", ".", "content", "|", "trim", "0", ":", "loop", "index0", "%", "+", "{#", "#}", "\n", "range", "generation",
		"macro", "endmacro", "namespace", "is", "defined", "~", "not"}), 0, 40).Draw(t, "parts")
	template, err := Parse(tokenizer.Config{ChatTemplate: strings.Join(parts, rapid.SampledFrom([]string{"", " "}).Draw(t, "between")) + " "}, Options{})
	if err == nil {
		_, _ = template.Label(conversation([]turn{{"user", "hello"}, {"assistant", "hi"}}))
	}
}

func TestAnyTemplate(t *testing.T) { rapid.Check(t, anyTemplate) }

func FuzzTemplate(f *testing.F) { f.Fuzz(rapid.MakeFuzz(anyTemplate)) }

// TestSpecialTokens: a template sees every special token that has a name, and none takes the place of what it is given.
func TestSpecialTokens(t *testing.T) {
	template, err := Parse(tokenizer.Config{ChatTemplate: "{{ image_token }}{{ bos_token }}{{ messages | length }}", BOS: "<s>",
		Special: []tokenizer.SpecialToken{{Name: "bos_token", Text: "<s>"}, {Name: "image_token", Text: "<i>"}, {Name: "messages", Text: "xyz"}}}, Options{})
	require.NoError(t, err)
	text, err := template.Render(Conversation{Messages: []Message{{Role: "user", Content: "a"}}}, false)
	require.NoError(t, err)
	require.Equal(t, "<i><s>1", text)
}

// TestLargeIntegers: whole numbers beyond 64 bits keep their digits, as in Python, in objects and in texts of JSON.
func TestLargeIntegers(t *testing.T) {
	const digits = "12345678901234567890"
	v, err := Value([]byte(`{"a": ` + digits + `, "b": -1, "c": 1.5}`))
	require.NoError(t, err)
	require.Equal(t, Object{{"a", json.Number(digits)}, {"b", int64(-1)}, {"c", 1.5}}, v)
	text, err := json.Marshal(v)
	require.NoError(t, err)
	require.Equal(t, `{"a":`+digits+`,"b":-1,"c":1.5}`, string(text))
	for _, arguments := range []any{v, string(text)} {
		c := Conversation{Messages: []Message{{Role: "assistant", Fields: Object{{"tool_calls", []any{Object{{"function", Object{{"name", "f"}, {"arguments", arguments}}}}}}}}}}
		parsed, err := Parse(tokenizer.Config{ChatTemplate: "{% for m in messages %}{% for k, v in m.tool_calls[0].function.arguments.items() %}{{ k }}={{ v }}/{{ v | tojson }} {% endfor %}{% endfor %}"}, Options{})
		require.NoError(t, err)
		have, err := parsed.Render(c, false)
		require.NoError(t, err)
		require.Equal(t, "a="+digits+"/"+digits+" b=-1/-1 c=1.5/1.5 ", have)
	}
	parsed, err := Parse(tokenizer.Config{ChatTemplate: "{{ x }}"}, Options{})
	require.NoError(t, err)
	for _, bad := range []json.Number{"1.5", "x", "", "01"} {
		_, err = parsed.Render(Conversation{Values: Object{{"x", bad}}}, false)
		require.ErrorContains(t, err, "want an integer")
	}
}
