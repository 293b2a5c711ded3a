package jinja

import (
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// values are what templates see in testdata/make.py.
func values(messages []map[string]string) map[string]any {
	var list []any
	for _, m := range messages {
		list = append(list, Dict("role", m["role"], "content", m["content"]))
	}
	return map[string]any{"messages": List(list...), "tools": nil, "documents": nil, "add_generation_prompt": false,
		"bos_token": "<s>", "eos_token": "</s>"}
}

func render(text string, v map[string]any) (string, error) {
	t, err := Parse(text)
	if err != nil {
		return "", err
	}
	return t.Render(v)
}

func TestAgainstJinja2(t *testing.T) {
	text, err := os.ReadFile("testdata/golden.json")
	require.NoError(t, err)
	var golden struct {
		Messages []map[string]string
		Cases    []struct {
			Template    string
			Text, Error *string
		}
	}
	require.NoError(t, json.Unmarshal(text, &golden))
	require.NotEmpty(t, golden.Cases)
	for _, c := range golden.Cases {
		have, err := render(c.Template, values(golden.Messages))
		if c.Error != nil {
			require.Error(t, err, "%s: %q", c.Template, have)
			continue
		}
		require.NoError(t, err, c.Template)
		require.Equal(t, *c.Text, have, c.Template)
	}
}

func TestRefused(t *testing.T) {
	for text, want := range map[string]string{
		"{% include 'x' %}":         `the tag "include" is not known`,
		"a\n{{ x | xmlattr('a') }}": `line 2: the filter "xmlattr" is not known`,
		"{{ x is nothing }}":        `the test "nothing" is not known`,
		"{% if x %}":                "the template ends where",
		"{% endif %}":               `the tag "endif" is not known here`,
		"{{ x":                      "a tag has no end }}",
		"{{ 'x }}":                  "a text has no end",
		"{# x":                      "a comment has no end",
		"{% raw %}":                 "the tag raw has no end",
		"{{ a b }}":                 `"b" where }} is expected`,
		"{{ $ }}":                   `the character '$' is not known`,
		"{{ }}":                     "where a value is expected",
		"{{ x[] }}":                 "a subscript is empty",
		"{{ f(a=1, 2) }}":           "follows one with a name",
		"{% break %}":               "outside of loops",
		"{% for a in b %}{% macro c() %}{% break %}{% endmacro %}{% endfor %}":           "outside of loops",
		"{{ " + strings.Repeat("(", 300) + "1" + strings.Repeat(")", 300) + " }}":        "parts within another",
		strings.Repeat("{% if a %}", 300):                                                "parts within another",
		strings.Repeat("{{ 1 }}", 1e5):                                                   "the template has more than",
		"{{ 99999999999999999999 }}":                                                     "is not supported",
		"{{ raise('no') }}":                                                              "no",
		"{{ nothing.a }}":                                                                `"nothing" is undefined`,
		"{{ loop.index }}":                                                               `"loop" is undefined`,
		"{% for i in range(99999999) %}{% endfor %}":                                     "range has more than",
		"{% for i in range(60000) %}{% for j in range(60000) %}{% endfor %}{% endfor %}": "steps",
		"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}":                                "calls within another",
		"{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}":                                    "has 1 arguments, and 2 are given",
		"{% macro m(a) %}{% endmacro %}{{ m(b=2) }}":                                     "has no argument",
		"{{ 'x' * 1999999999 }}":                                                         "bytes of text",
		"{{ [1] * 99999999 }}":                                                           "a list has more than",
		"{{ ('x' * 5000).replace('', 'y' * 5000) }}":                                     "bytes of text",
		"{{ 'x'.ljust(999999999) }}":                                                     "bytes of text",
		"{{ 10 ** 40 }}":                                                                 "beyond 2^53",
		"{% set ns = namespace(a='x') %}{% for i in range(40) %}{% set ns.a = ns.a + ns.a %}{% endfor %}":      "bytes of text",
		"{% set ns = namespace(a=[]) %}{% for i in range(999) %}{% set ns.a = [ns.a] %}{% endfor %}{{ ns.a }}": "values within another",
	} {
		t.Run(text, func(t *testing.T) {
			have, err := render(text, map[string]any{"raise": Func(func(args []any, _ map[string]any) (any, error) { return nil, errors.New(args[0].(string)) })})
			require.ErrorContains(t, err, want, "%.80s: %.80s", text, have)
			require.Less(t, len(err.Error()), 200)
		})
	}
}

// TestMarks: what a tag generation surrounds is marked, also within a text that a tag captures.
func TestMarks(t *testing.T) {
	parsed, err := Parse("{% set x %}a{% generation %}b{% endgeneration %}{% endset %}{{ x }}")
	require.NoError(t, err)
	text, err := parsed.Render(nil)
	require.NoError(t, err)
	require.Equal(t, "a"+BeginMark+"b"+EndMark, text)
}

// anyTemplate: whatever a template is, it neither panics nor hangs.
func anyTemplate(t *rapid.T) {
	parts := rapid.SliceOfN(rapid.SampledFrom([]string{"{%", "%}", "{{", "}}", "-", "for", " m ", "in", "messages", "if", "else", "endif", "endfor", "elif",
		"set", "endset", "=", "[", "]", "(", ")", "'", "x", ".", "content", "|", "trim", "0", "1", ":", "loop", "index0", "%", "+", "{#", "#}", "\n", "range",
		"generation", "endgeneration", "macro", "endmacro", "namespace", "is", "defined", "~", "not", "*", "**", "//", "{", "}", ",", "raw", "endraw",
		"split", "join", "tojson", "selectattr", "map", "call", "endcall", "caller", "filter", "endfilter", "with", "endwith", "\\", "9", "é", "none"}), 0, 40).Draw(t, "parts")
	_, _ = render(strings.Join(parts, rapid.SampledFrom([]string{"", " "}).Draw(t, "between"))+" ",
		values([]map[string]string{{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}}))
}

func TestAnyTemplate(t *testing.T) { rapid.Check(t, anyTemplate) }

func FuzzTemplate(f *testing.F) { f.Fuzz(rapid.MakeFuzz(anyTemplate)) }
