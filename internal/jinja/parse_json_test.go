package jinja

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestFromJSON: integers keep their digits, objects their order, and what is no JSON is an error.
func TestFromJSON(t *testing.T) {
	for _, c := range []struct{ text, want, fails string }{
		{text: `{{ '{"b": [1, 12345678901234567890, 1.5, null, true], "a": {}, "b": "x"}' | from_json | tojson }}`, want: `{"b": "x", "a": {}}`},
		{text: `{{ '[1, -12345678901234567890, 1.5, null, true]' | from_json }}`, want: "[1, -12345678901234567890, 1.5, None, True]"},
		{text: `{{ '[]' | from_json }}{{ '"é\\u00e9"' | from_json }}`, want: "[]éé"},
		{text: `{{ x | tojson }} {{ x }} {{ x is integer }} {{ x == x }} {{ x == 1 }} {{ x ~ '' }}`, want: "12345678901234567890 12345678901234567890 True True False 12345678901234567890"},
		{text: `{{ x + 1 }}`, fails: "an integer"},
		{text: `{{ x | int }}`, fails: "the integer 12345678901234567890 is too large to compute with"},
		{text: `{{ '{"a": ' | from_json }}`, fails: "from_json: "},
		{text: `{{ '1 2' | from_json }}`, fails: "more than one value"},
		{text: `{{ 1 | from_json }}`, fails: "from_json of an integer"},
		{text: `{{ '1e999' | from_json }}`, fails: "the number 1e999 is too large"},
		{text: `{{ self.title }}|{{ self is defined }}`, want: "|True"},
	} {
		have, err := render(c.text, map[string]any{"x": Whole("12345678901234567890")})
		if c.fails != "" {
			require.ErrorContains(t, err, c.fails, c.text)
			continue
		}
		require.NoError(t, err, c.text)
		require.Equal(t, c.want, have, c.text)
	}
}
