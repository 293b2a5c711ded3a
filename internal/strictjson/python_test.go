package strictjson

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPython: the three words that Python's json.dump writes for floats are JSON afterwards, and nothing else changes.
func TestPython(t *testing.T) {
	for name, test := range map[string]struct{ text, want string }{
		"infinite":     {`{"a": [0.0, Infinity]}`, `{"a": [0.0, 1e999]}`},
		"minus":        {`[-Infinity,1]`, `[-1e999,1]`},
		"not a number": {`{"a":NaN}`, `{"a":"NaN"}`},
		"alone":        {`Infinity`, `1e999`},
		"strings":      {`{"Infinity": "NaN, \"Infinity", "b\\": Infinity}`, `{"Infinity": "NaN, \"Infinity", "b\\": 1e999}`},
		"none":         {`{"a": null, "b": 1}`, `{"a": null, "b": 1}`},
	} {
		t.Run(name, func(t *testing.T) {
			have := string(Python([]byte(test.text)))
			require.Equal(t, test.want, have)
			require.True(t, json.Valid([]byte(have)), have)
		})
	}
	for _, text := range []string{`[Infinit]`, `[1Infinity]`, `[Infinity1]`, `[-NaN]`, `[NaNa]`, `[--Infinity]`, `"\`, `["Infinity`} {
		require.False(t, json.Valid(Python([]byte(text))), text)
	}
}
